#include "fp4moe/convert/folder/converted_folder.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/convert/folder/intact.hpp"

namespace fp4moe::convert {
namespace {

using tensor::SafetensorsHeader;
using tensor::TensorEntry;

// Which refusal a wrong tag is.
std::string_view id_of_tag(std::string_view tag) {
  constexpr std::pair<std::string_view, std::string_view> kIds[] = {
      {"fp4moe.layout", "converted.layout"},   {"fp4moe.generation", "converted.generation"},
      {"fp4moe.version", "converted.version"}, {"fp4moe.tp", "converted.shard"},
      {"fp4moe.ep", "converted.shard"},        {"fp4moe.placement", "converted.shard"},
      {"fp4moe.backend", "converted.backend"},
  };
  for (const auto& [name, id] : kIds)
    if (name == tag) return id;
  return "converted.size";
}

Result<Done> check_tags(const tensor::Metadata& found, const tensor::Metadata& wanted) {
  for (const auto& [tag, value] : wanted) {
    const auto at = found.find(tag);
    if (at != found.end() && at->second == value) continue;
    return invalid(id_of_tag(tag), "the file's tag is not what the manifest says")
        .at(tag)
        .expects(fmt::format("\"{}\"", printable(value)),
                 at == found.end() ? "no such tag" : fmt::format("\"{}\"", printable(at->second)))
        .try_this("files of several conversions are mixed here: convert again");
  }
  return Done{};
}

std::string shape_text(tensor::DType dtype, const tensor::Shape& shape) {
  return fmt::format("{} {}", tensor::name(dtype), tensor::text(shape));
}

Result<Done> check_tensors(const SafetensorsHeader& header, const FileRecord& record) {
  if (header.tensors.size() != record.tensors.size())
    return invalid("converted.tensor", "the file holds another number of tensors")
        .expects(std::to_string(record.tensors.size()), std::to_string(header.tensors.size()));
  for (std::size_t i = 0; i < record.tensors.size(); ++i) {
    const TensorRecord& wanted = record.tensors[i];
    const TensorEntry& found = header.tensors[i];
    if (found.name != wanted.name)
      return invalid("converted.tensor", "the file holds another tensor")
          .at(printable(wanted.name))
          .expects("it", fmt::format("\"{}\"", printable(found.name)));
    if (found.dtype != wanted.dtype || found.shape != wanted.shape || found.bytes != wanted.bytes)
      return invalid("converted.tensor", "the tensor is not what the manifest says")
          .at(printable(wanted.name))
          .expects(shape_text(wanted.dtype, wanted.shape), shape_text(found.dtype, found.shape));
  }
  return Done{};
}

Error refuse(std::string_view id, std::string_view what, const std::string& expected,
             const std::string& found) {
  return invalid(id, fmt::format("the folder was converted {}", what))
      .expects(expected, found)
      .try_this("convert the checkpoint for what is to read it: fp4moe convert");
}

std::string slice_text(const checkpoint::Slice& slice) {
  return fmt::format("tensor-parallel rank {}, expert-parallel rank {} ({})",
                     text(slice.tensor_parallel), text(slice.expert_parallel),
                     name(slice.placement));
}

bool is_same(const checkpoint::Slice& a, const checkpoint::Slice& b) {
  return text(a.tensor_parallel) == text(b.tensor_parallel) &&
         text(a.expert_parallel) == text(b.expert_parallel) &&
         (a.placement == b.placement || a.expert_parallel.size == 1);
}

std::string sizes_text(layout::Sizes sizes) {
  return fmt::format("hidden {}, intermediate {}", sizes.hidden, sizes.intermediate);
}

Result<Done> check_expectations(const Manifest& manifest, const Expectations& expected) {
  if (expected.layout && *expected.layout != manifest.layout)
    return refuse("converted.layout", "to another layout", *expected.layout,
                  printable(manifest.layout));
  if (expected.generation && *expected.generation != manifest.generation)
    return refuse("converted.generation", "to another generation of the layout",
                  layout_text(manifest.layout, *expected.generation),
                  layout_text(manifest.layout, manifest.generation));
  if (expected.backend && *expected.backend != manifest.backend)
    return refuse("converted.backend", "for another backend", *expected.backend,
                  manifest.backend.empty() ? "none in particular" : printable(manifest.backend));
  if (expected.slice && !is_same(*expected.slice, manifest.slice))
    return refuse("converted.shard", "for another rank", slice_text(*expected.slice),
                  slice_text(manifest.slice));
  for (const LayerRecord& layer : manifest.layers) {
    if (expected.sizes && *expected.sizes != layer.problem.real)
      return refuse("converted.size", "from other sizes", sizes_text(*expected.sizes),
                    sizes_text(layer.problem.real));
    if (expected.padded && *expected.padded != layer.problem.padded)
      return refuse("converted.size", "to other padded sizes", sizes_text(*expected.padded),
                    sizes_text(layer.problem.padded));
  }
  return Done{};
}

// True if the file is large enough for these sizes: nothing is allocated for unproven sizes.
bool is_plausible(const Problem& problem, std::uint64_t file_bytes) {
  const auto matrix = checked_multiply(problem.padded.hidden, problem.padded.intermediate);
  return problem.experts <= file_bytes && problem.global_experts >= problem.experts &&
         problem.global_experts <= std::uint64_t{1} << 24 && matrix && *matrix / 2 <= file_bytes &&
         problem.real.hidden <= problem.padded.hidden &&
         problem.real.intermediate <= problem.padded.intermediate;
}

}  // namespace

Result<Done> ConvertedFolder::open_file(const FileRecord& record, const LayerRecord* layer) {
  const std::string path = fmt::format("{}/{}", path_, record.name);
  Result<tensor::MappedFile> mapped = tensor::MappedFile::open(path);
  if (!mapped && !is_damage(mapped.why())) return mapped.why();
  if (!mapped)
    return invalid("converted.file", "a file of the folder cannot be opened")
        .in(path)
        .expects(fmt::format("{} bytes", record.bytes), mapped.why().message);
  if (mapped->bytes().size() != record.bytes)
    return invalid("converted.file", "a file of the folder has another size")
        .in(path)
        .expects(fmt::format("{} bytes", record.bytes),
                 fmt::format("{} bytes", mapped->bytes().size()))
        .try_this("it was cut off or replaced: convert again");
  const Result<SafetensorsHeader> header = tensor::parse_safetensors(mapped->bytes());
  if (!header) return Error(header.why()).in(path);
  if (Result<Done> fine = check_tensors(*header, record); !fine) return Error(fine.why()).in(path);
  if (header->data_begin != record.header_bytes)
    return invalid("converted.file", "the header has another size")
        .in(path)
        .expects(std::to_string(record.header_bytes), std::to_string(header->data_begin));
  if (layer != nullptr)
    if (Result<Done> fine = check_tags(header->metadata, tags_of(manifest_, *layer)); !fine)
      return Error(fine.why()).in(path);
  OpenFile opened{.mapped = *std::move(mapped)};
  for (const TensorEntry& entry : header->tensors) opened.begins.push_back(entry.begin);
  files_.push_back(std::move(opened));
  return Done{};
}

Result<ConvertedFolder> ConvertedFolder::open(const std::string& path,
                                              const Expectations& expected) {
  ConvertedFolder folder;
  folder.path_ = path;
  Result<Manifest> manifest = read_manifest(path);
  if (!manifest) return manifest.why();
  folder.manifest_ = *std::move(manifest);
  const Manifest& known = folder.manifest_;
  if (Result<Done> fine = check_expectations(known, expected); !fine)
    return Error(fine.why()).in(path);
  for (const LayerRecord& layer : known.layers)
    if (known.find_file(layer.file) == nullptr)
      return invalid("converted.manifest", "the manifest names no such file of a layer")
          .in(path)
          .at(printable(layer.prefix))
          .expects("one of its files", printable(layer.file));
  for (const FileRecord& file : known.files) {
    const auto layer = std::ranges::find(known.layers, file.name, &LayerRecord::file);
    if (Result<Done> fine = folder.open_file(file, layer == known.layers.end() ? nullptr : &*layer);
        !fine)
      return fine.why();
  }
  return folder;
}

std::span<const std::byte> ConvertedFolder::bytes(std::size_t file, std::size_t tensor) const {
  return files_[file].mapped.bytes().subspan(files_[file].begins[tensor],
                                             manifest_.files[file].tensors[tensor].bytes);
}

std::size_t ConvertedFolder::file_of_layer(std::size_t number) const {
  return static_cast<std::size_t>(manifest_.find_file(manifest_.layers[number].file) -
                                  manifest_.files.data());
}

std::vector<NamedView> ConvertedFolder::layer(std::size_t number) const {
  const std::size_t file = file_of_layer(number);
  const std::size_t front = packed_name(manifest_.layers[number], "").size();
  std::vector<NamedView> views;
  for (std::size_t t = 0; t < manifest_.files[file].tensors.size(); ++t) {
    const TensorRecord& tensor = manifest_.files[file].tensors[t];
    views.push_back({.name = tensor.name.substr(std::min(front, tensor.name.size())),
                     .view = {tensor.dtype, tensor.shape, bytes(file, t)}});
  }
  return views;
}

std::optional<ConvertedFolder::TensorIndex> ConvertedFolder::find(std::string_view file,
                                                                  std::string_view tensor) const {
  for (std::size_t f = 0; f < manifest_.files.size(); ++f) {
    if (manifest_.files[f].name != file) continue;
    const auto& tensors = manifest_.files[f].tensors;
    const auto found = std::ranges::find(tensors, tensor, &TensorRecord::name);
    if (found == tensors.end()) return std::nullopt;
    return TensorIndex{f, static_cast<std::size_t>(found - tensors.begin())};
  }
  return std::nullopt;
}

Result<const layout::Layout*> ConvertedFolder::layout() const {
  const auto found = backends::require_layout(manifest_.layout, manifest_.generation);
  if (!found) return Error(found.why()).in(path_);
  // No generation means the newest where a person names a layout, and the only one in a folder.
  if ((*found)->generation != manifest_.generation)
    return refuse("converted.generation", "before the layout changed",
                  layout_text(manifest_.layout, (*found)->generation),
                  layout_text(manifest_.layout, manifest_.generation))
        .in(path_);
  return *found;
}

Result<LayerPacker> ConvertedFolder::packer(std::size_t number) const {
  const LayerRecord& layer = manifest_.layers[number];
  const FileRecord& file = manifest_.files[file_of_layer(number)];
  const std::string path = fmt::format("{}/{}", path_, file.name);
  const auto wrong = [&](std::string_view name, const std::string& expected,
                         const std::string& found) {
    return invalid("converted.tensor",
                   "the tensors do not fit the layout and sizes of the manifest")
        .in(path)
        .at(printable(name))
        .expects(expected, found);
  };
  if (!is_plausible(layer.problem, file.bytes))
    return wrong(
        layer.prefix, "sizes that the file can hold",
        fmt::format("{} experts, {}", layer.problem.experts, sizes_text(layer.problem.padded)));
  const auto found = layout();
  if (!found) return found.why();
  Result<LayerPacker> packer = LayerPacker::make(**found, layer.problem);
  if (!packer) return Error(packer.why()).in(path);
  const auto tensors = packer->tensors();
  if (tensors.size() != file.tensors.size())
    return wrong(layer.prefix, fmt::format("{} tensors", tensors.size()),
                 std::to_string(file.tensors.size()));
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const TensorRecord& stored = file.tensors[t];
    const std::string name = packed_name(layer, tensors[t].name);
    if (stored.name != name) return wrong(name, "it", printable(stored.name));
    const std::uint64_t piece =
        tensors[t].expert_bytes == 0 ? kPieceBytes : tensors[t].expert_bytes;
    if (stored.dtype != tensors[t].dtype || stored.shape != tensors[t].shape ||
        stored.bytes != tensors[t].bytes || stored.piece_bytes != piece)
      return wrong(name, shape_text(tensors[t].dtype, tensors[t].shape),
                   shape_text(stored.dtype, stored.shape));
  }
  if (Result<Done> restored = packer->restore(layer.record); !restored)
    return Error(restored.why()).in(path_ + "/" + std::string(kManifestName));
  return packer;
}

}  // namespace fp4moe::convert
