#include "fp4moe/convert/folder/manifest.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/convert/folder/intact.hpp"
#include "fp4moe/convert/folder/record_fields.hpp"
#include "fp4moe/tensor/files/mapped_file.hpp"

namespace fp4moe::convert {
namespace {

constexpr std::string_view kChecksumKey = "xxh3_128";
constexpr std::uint64_t kSchemaVersion = 1;

Json to_json(const TensorRecord& tensor) {
  return {{"name", tensor.name},
          {"dtype", tensor::name(tensor.dtype)},
          {"shape", tensor.shape},
          {"bytes", tensor.bytes},
          {"piece_bytes", tensor.piece_bytes},
          {"xxh3_128", text(tensor.checksum)}};
}

TensorRecord tensor_from(RecordFields fields) {
  TensorRecord tensor{.name = fields.string("name"), .dtype = fields.dtype("dtype")};
  for (const Json& extent : fields.array("shape")) {
    if (extent.is_number_unsigned())
      tensor.shape.push_back(extent.get<std::uint64_t>());
    else
      fields.fail("shape", "whole numbers");
  }
  tensor.bytes = fields.number("bytes");
  tensor.piece_bytes = fields.number("piece_bytes");
  tensor.checksum = fields.digest("xxh3_128");
  return tensor;
}

FileRecord file_from(RecordFields fields) {
  FileRecord file{.name = fields.file_name("name"),
                  .bytes = fields.number("bytes"),
                  .header_bytes = fields.number("header_bytes"),
                  .header = fields.digest("header_xxh3_128")};
  for (const Json& tensor : fields.array("tensors"))
    file.tensors.push_back(tensor_from(fields.inside(tensor, "tensors")));
  return file;
}

Json to_json(const layout::Sizes& sizes) {
  return {{"hidden", sizes.hidden}, {"intermediate", sizes.intermediate}};
}

layout::Sizes sizes_from(RecordFields fields) {
  return {fields.number("hidden"), fields.number("intermediate")};
}

LayerRecord layer_from(RecordFields fields) {
  LayerRecord layer{.index = fields.number("index"),
                    .prefix = fields.string("prefix"),
                    .file = fields.file_name("file")};
  Problem& problem = layer.problem;
  problem.experts = fields.number("experts");
  problem.global_experts = fields.number("global_experts");
  problem.real = sizes_from(fields.object("sizes"));
  problem.padded = sizes_from(fields.object("padded"));
  problem.has_bias = fields.flag("has_bias");
  problem.bias_type = fields.dtype("bias_dtype");
  const std::string order = fields.string("order");
  const checkpoint::RowOrder orders[] = {checkpoint::RowOrder::interleaved,
                                         checkpoint::RowOrder::halves,
                                         checkpoint::RowOrder::single};
  const auto* found = std::ranges::find_if(
      orders, [&](checkpoint::RowOrder each) { return checkpoint::name(each) == order; });
  if (found == std::end(orders))
    fields.fail("order", "interleaved, halves or single");
  else
    problem.order = *found;
  layer.record = fields.any("record");
  layer.content = fields.digest("content_xxh3_128");
  for (const Json& loss : fields.array("losses")) {
    if (loss.is_string())
      layer.losses.push_back(loss.string());
    else
      fields.fail("losses", "sentences");
  }
  return layer;
}

Json slice_json(const checkpoint::Slice& slice) {
  return {{"tp", text(slice.tensor_parallel)},
          {"ep", text(slice.expert_parallel)},
          {"placement", name(slice.placement)}};
}

checkpoint::Slice slice_from(RecordFields fields) {
  const auto rank = [&fields](const char* key) {
    const auto found = rank_from_text(fields.string(key));
    if (!found) fields.fail(key, "rank/size");
    return found.value_or(checkpoint::Rank{});
  };
  checkpoint::Slice slice{.tensor_parallel = rank("tp"), .expert_parallel = rank("ep")};
  const auto placement = placement_from_name(fields.string("placement"));
  if (!placement) fields.fail("placement", "linear or round-robin");
  slice.placement = placement.value_or(checkpoint::Placement::linear);
  return slice;
}

Json body_of(const Manifest& manifest) {
  Json files = Json::array(), layers = Json::array(), companions = Json::array();
  for (const FileRecord& file : manifest.files) files.push_back(to_json(file));
  for (const LayerRecord& layer : manifest.layers) layers.push_back(to_json(layer));
  for (const CompanionRecord& file : manifest.companions)
    companions.push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", text(file.checksum)}});
  Json source_files = Json::array();
  for (const SourceFile& file : manifest.source_files)
    source_files.push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"frame_xxh3_128", text(file.frame)}});
  return {{"schema_version", kSchemaVersion},
          {"version", kFolderVersion},
          {"layout", manifest.layout},
          {"generation", manifest.generation},
          {"backend", manifest.backend},
          {"library", manifest.library},
          {"shard", slice_json(manifest.slice)},
          {"params_dtype", tensor::name(manifest.params_type)},
          {"experts_only", manifest.experts_only},
          {"source",
           {{"path", manifest.source_path},
            {"dialect", manifest.dialect},
            {"files", std::move(source_files)}}},
          {"layers", std::move(layers)},
          {"files", std::move(files)},
          {"companions", std::move(companions)}};
}

std::string dumped(const Json& json) { return json.dump(1) + "\n"; }

Manifest manifest_from(RecordFields fields) {
  Manifest manifest{.layout = fields.string("layout"),
                    .generation = fields.string("generation"),
                    .backend = fields.string("backend"),
                    .library = fields.string("library"),
                    .slice = slice_from(fields.object("shard")),
                    .params_type = fields.dtype("params_dtype"),
                    .experts_only = fields.flag("experts_only")};
  RecordFields source = fields.object("source");
  manifest.source_path = source.string("path");
  manifest.dialect = source.string("dialect");
  for (const Json& each : source.array("files")) {
    RecordFields file = source.inside(each, "files");
    manifest.source_files.push_back({.name = file.relative_name("name"),
                                     .bytes = file.number("bytes"),
                                     .frame = file.digest("frame_xxh3_128")});
  }
  for (const Json& layer : fields.array("layers"))
    manifest.layers.push_back(layer_from(fields.inside(layer, "layers")));
  for (LayerRecord& layer : manifest.layers) layer.problem.params_type = manifest.params_type;
  for (const Json& file : fields.array("files"))
    manifest.files.push_back(file_from(fields.inside(file, "files")));
  for (const Json& each : fields.array("companions")) {
    RecordFields file = fields.inside(each, "companions");
    manifest.companions.push_back({.name = file.file_name("name"),
                                   .bytes = file.number("bytes"),
                                   .checksum = file.digest("xxh3_128")});
  }
  return manifest;
}

Error bad_manifest(std::string_view expected, std::string_view found) {
  return invalid("converted.manifest", "the manifest of the converted folder is damaged")
      .expects(expected, found)
      .try_this("convert the checkpoint again");
}

}  // namespace

Json to_json(const FileRecord& file) {
  Json tensors = Json::array();
  for (const TensorRecord& tensor : file.tensors) tensors.push_back(to_json(tensor));
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"header_bytes", file.header_bytes},
          {"header_xxh3_128", text(file.header)},
          {"tensors", std::move(tensors)}};
}

Json to_json(const LayerRecord& layer) {
  const Problem& problem = layer.problem;
  return {{"index", layer.index},
          {"prefix", layer.prefix},
          {"file", layer.file},
          {"experts", problem.experts},
          {"global_experts", problem.global_experts},
          {"sizes", to_json(problem.real)},
          {"padded", to_json(problem.padded)},
          {"order", checkpoint::name(problem.order)},
          {"has_bias", problem.has_bias},
          {"bias_dtype", tensor::name(problem.bias_type)},
          {"content_xxh3_128", text(layer.content)},
          {"record", layer.record},
          {"losses", layer.losses}};
}

Result<FileRecord> file_from_json(const Json& json) {
  std::string why;
  FileRecord file = file_from(RecordFields(json, "file", why));
  if (!why.empty()) return bad_manifest("a file's record", why);
  return file;
}

Result<LayerRecord> layer_from_json(const Json& json) {
  std::string why;
  LayerRecord layer = layer_from(RecordFields(json, "layer", why));
  if (!why.empty()) return bad_manifest("a layer's record", why);
  return layer;
}

const FileRecord* Manifest::find_file(std::string_view file_name) const {
  const auto found = std::ranges::find(files, file_name, &FileRecord::name);
  return found == files.end() ? nullptr : &*found;
}

std::string to_text(const Manifest& manifest) {
  Json json = body_of(manifest);
  json[std::string(kChecksumKey)] = text(digest_of(dumped(json)));
  return dumped(json);
}

Result<Manifest> manifest_from_text(std::string_view whole) {
  Result<Json> parsed = parse_json(whole);
  if (!parsed) return bad_manifest("JSON", parsed.why().message);
  Json& json = *parsed;
  std::string why;
  RecordFields top(json, "the manifest", why);
  const std::uint64_t schema = top.number("schema_version");
  const std::string version = top.string("version");
  if (!why.empty()) return bad_manifest("fp4moe's own fields", why);
  if (schema != kSchemaVersion || version != kFolderVersion)
    return invalid("converted.version", "the folder was written by another version of fp4moe")
        .expects(fmt::format("schema {}, version {}", kSchemaVersion, kFolderVersion),
                 fmt::format("schema {}, version {}", schema, printable(version)))
        .try_this("convert the checkpoint again with this version");
  const std::string stated = top.string(std::string(kChecksumKey).c_str());
  if (!why.empty()) return bad_manifest("its own checksum", why);
  if (dumped(json) != whole) return bad_manifest("the text as fp4moe writes it", "another text");
  json.erase(std::string(kChecksumKey));
  if (const std::string found = text(digest_of(dumped(json))); found != stated)
    return bad_manifest(fmt::format("checksum {}", printable(stated)), found);
  Manifest manifest = manifest_from(RecordFields(json, "the manifest", why));
  if (!why.empty()) return bad_manifest("fp4moe's own fields", why);
  return manifest;
}

Result<Manifest> read_manifest(const std::string& folder) {
  const std::string path = fmt::format("{}/{}", folder, kManifestName);
  std::error_code code;
  if (!std::filesystem::exists(folder, code))
    return system_error("file.open", "cannot open", code ? code.value() : ENOENT).in(folder);
  const Result<tensor::MappedFile> file = tensor::MappedFile::open(path);
  if (!file && !is_damage(file.why())) return file.why();
  if (!file)
    return invalid("converted.manifest", "this is not a converted folder")
        .in(folder)
        .expects(fmt::format("a folder with {}", kManifestName),
                 fmt::format("{}: {}", kManifestName, file.why().message))
        .try_this("make one: fp4moe convert PATH -o OUT");
  const std::span<const std::byte> bytes = file->bytes();
  Result<Manifest> manifest =
      manifest_from_text({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!manifest) return Error(manifest.why()).in(path);
  return manifest;
}

std::string text(checkpoint::Rank rank) { return fmt::format("{}/{}", rank.rank, rank.size); }

std::optional<checkpoint::Rank> rank_from_text(std::string_view text) {
  checkpoint::Rank rank;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, rank.rank);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '/') return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, rank.size);
  if (second.ec != std::errc() || second.ptr != end || rank.rank >= rank.size) return std::nullopt;
  return rank;
}

std::string_view name(checkpoint::Placement placement) {
  return placement == checkpoint::Placement::linear ? "linear" : "round-robin";
}

std::optional<checkpoint::Placement> placement_from_name(std::string_view word) {
  for (const auto placement : {checkpoint::Placement::linear, checkpoint::Placement::round_robin})
    if (word == name(placement)) return placement;
  return std::nullopt;
}

tensor::Metadata tags_of(const Manifest& manifest, const LayerRecord& layer) {
  const Problem& problem = layer.problem;
  return {{"format", "pt"},
          {"fp4moe.layout", manifest.layout},
          {"fp4moe.generation", manifest.generation},
          {"fp4moe.version", std::string(kFolderVersion)},
          {"fp4moe.backend", manifest.backend},
          {"fp4moe.tp", text(manifest.slice.tensor_parallel)},
          {"fp4moe.ep", text(manifest.slice.expert_parallel)},
          {"fp4moe.placement", std::string(name(manifest.slice.placement))},
          {"fp4moe.layer", std::to_string(layer.index)},
          {"fp4moe.experts", std::to_string(problem.experts)},
          {"fp4moe.global_experts", std::to_string(problem.global_experts)},
          {"fp4moe.hidden", std::to_string(problem.real.hidden)},
          {"fp4moe.hidden_padded", std::to_string(problem.padded.hidden)},
          {"fp4moe.intermediate", std::to_string(problem.real.intermediate)},
          {"fp4moe.intermediate_padded", std::to_string(problem.padded.intermediate)},
          {"fp4moe.order", std::string(checkpoint::name(problem.order))},
          {"fp4moe.params_dtype", std::string(tensor::name(manifest.params_type))}};
}

std::string packed_name(const LayerRecord& layer, std::string_view tensor) {
  return fmt::format("{}experts.{}", layer.prefix, tensor);
}

std::string layout_text(std::string_view layout, std::string_view generation) {
  return generation.empty() ? std::string(layout) : fmt::format("{} ({})", layout, generation);
}

}  // namespace fp4moe::convert
