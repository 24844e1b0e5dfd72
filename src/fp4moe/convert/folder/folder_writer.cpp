#include "fp4moe/convert/folder/folder_writer.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/parallel.hpp"
#include "fp4moe/convert/folder/content.hpp"
#include "fp4moe/convert/folder/model_files.hpp"
#include "fp4moe/convert/pack/pack_layer.hpp"

namespace fp4moe::convert {
namespace {

using tensor::SafetensorsWriter;
using tensor::TensorSpec;

// Bytes kept as they are, under a name that no tensor of a model has.
TensorSpec kept_as(std::string_view kind, std::string_view file, std::uint64_t bytes) {
  return {fmt::format("{}/{}", kind, file), tensor::DType::u8, {bytes}};
}

Result<Done> write_pieces(SafetensorsWriter& writer, std::size_t tensor,
                          std::span<const std::byte> bytes, PieceDigests& digests) {
  for (std::size_t i = 0; i < digests.count(); ++i) {
    const auto piece = bytes.subspan(digests.begin(i), digests.size(i));
    digests.put(i, piece);
    if (Result<Done> done = writer.write(tensor, digests.begin(i), piece); !done) return done;
  }
  return Done{};
}

std::vector<PieceDigests> digests_for(const SafetensorsWriter& writer) {
  std::vector<PieceDigests> digests;
  digests.reserve(writer.entries().size());
  for (const tensor::TensorEntry& entry : writer.entries())
    digests.emplace_back(entry.bytes, kPieceBytes);
  return digests;
}

// A source file without tensors that is not in the folder: its index, and files that this folder
// replaces.
struct KeptFile {
  std::string_view kind{};
  std::string name{};
  tensor::MappedFile mapped{};
};

Result<std::vector<KeptFile>> whole_files(const FolderPlan& plan) {
  std::vector<KeptFile> files;
  const auto add = [&files](std::string_view kind, const std::string& path,
                            std::string name) -> Result<Done> {
    Result<tensor::MappedFile> mapped = tensor::MappedFile::open(path);
    if (!mapped) return mapped.why();
    files.push_back({kind, std::move(name), *std::move(mapped)});
    return Done{};
  };
  if (!plan.index.empty())
    if (const auto done = add("index", plan.index, plan.index.substr(plan.index.rfind('/') + 1));
        !done)
      return done.why();
  for (const checkpoint::FileCopy& file : plan.kept)
    if (const auto done = add("file", file.from, file.name); !done) return done.why();
  return files;
}

}  // namespace

std::string FolderWriter::path(std::string_view name) const {
  return fmt::format("{}/{}", staging_, name);
}

bool FolderWriter::take(const std::string& file, const Journal& journal) {
  const FileRecord* found = journal.file(file);
  if (found == nullptr) return false;
  plan_.manifest.files.push_back(*found);
  for (const TensorRecord& tensor : found->tensors) done(tensor.bytes);
  ++skipped_;
  return true;
}

Result<FileRecord> FolderWriter::finish(const std::string& file, SafetensorsWriter& writer,
                                        const std::vector<PieceDigests>& digests) const {
  if (Result<Done> done = writer.finish(); !done) return done.why();
  const Result<tensor::MappedFile> mapped = tensor::MappedFile::open(path(file));
  if (!mapped) return mapped.why();
  FileRecord record{.name = file, .bytes = mapped->bytes().size()};
  record.header_bytes = writer.entries().empty() ? record.bytes : writer.entries().front().begin;
  record.header = digest_of(mapped->bytes().first(record.header_bytes));
  for (std::size_t t = 0; t < digests.size(); ++t) {
    const tensor::TensorEntry& entry = writer.entries()[t];
    record.tensors.push_back({.name = entry.name,
                              .dtype = entry.dtype,
                              .shape = entry.shape,
                              .bytes = entry.bytes,
                              .piece_bytes = digests[t].piece_bytes(),
                              .checksum = digests[t].whole()});
  }
  return record;
}

Result<Done> FolderWriter::write_source(Journal& journal) {
  const std::string file(kSourceName);
  if (take(file, journal)) return Done{};
  const tensor::Store& store = checkpoint_.store();
  const Result<std::vector<KeptFile>> whole = whole_files(plan_);
  if (!whole) return whole.why();
  std::vector<TensorSpec> specs;
  std::vector<std::vector<std::byte>> scalars;  // a number or two for each expert
  for (std::size_t i = 0; i < store.files().size(); ++i) {
    const std::string name = file_name(store, i);
    scalars.push_back(joined(store, plan_.parts.scalars[i]));
    specs.push_back(kept_as("frame", name, Frame(store, i).bytes()));
    specs.push_back(kept_as("scalars", name, scalars.back().size()));
  }
  for (const KeptFile& each : *whole)
    specs.push_back(kept_as(each.kind, each.name, each.mapped.bytes().size()));
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(path(file), specs);
  if (!writer) return writer.why();
  std::vector<PieceDigests> digests = digests_for(*writer);
  for (std::size_t i = 0; i < scalars.size(); ++i) {
    const std::size_t t = 2 * i;
    const auto write = [&](std::uint64_t at, std::span<const std::byte> piece) -> Result<Done> {
      digests[t].put(at / kPieceBytes, piece);
      return writer->write(t, at, piece);
    };
    if (Result<Done> done = Frame(store, i).for_each_piece(write); !done) return done;
    if (Result<Done> done = write_pieces(*writer, t + 1, scalars[i], digests[t + 1]); !done)
      return done;
  }
  for (std::size_t i = 0; i < whole->size(); ++i) {
    const std::size_t t = 2 * scalars.size() + i;
    if (Result<Done> done = write_pieces(*writer, t, (*whole)[i].mapped.bytes(), digests[t]); !done)
      return done;
  }
  Result<FileRecord> record = finish(file, *writer, digests);
  if (!record) return record.why();
  plan_.manifest.files.push_back(*record);
  return journal.add(staging_, *std::move(record));
}

// The sibling's file, when it holds what would be written; read once to know.
Result<std::optional<FileRecord>> FolderWriter::find_at_sibling(const PlannedOthers& others) const {
  if (options_.sibling.empty()) return std::optional<FileRecord>();
  const Result<Manifest> manifest = read_manifest(options_.sibling);
  const FileRecord* file = manifest ? manifest->find_file(others.file) : nullptr;
  if (file == nullptr || manifest->layout != plan_.manifest.layout ||
      file->tensors.size() != others.tensors.size())
    return std::optional<FileRecord>();
  const tensor::Store& store = checkpoint_.store();
  const auto differs = [&](std::size_t i) -> Result<bool> {
    const tensor::StoredTensor& tensor = *others.tensors[i];
    const TensorRecord& record = file->tensors[i];
    const tensor::TensorSpec spec = kept_spec(tensor.entry);
    if (record.name != spec.name || record.dtype != spec.dtype || record.shape != spec.shape ||
        record.bytes != tensor.entry.bytes)
      return true;
    if (Result<Done> go_on = check_interrupt(); !go_on) return go_on.why();
    const std::span<const std::byte> bytes = store.bytes(tensor);
    const tensor::MappedFile& mapped = store.files()[tensor.file];
    const bool is_same = checksum_of(bytes, record.piece_bytes, &mapped) == record.checksum;
    store.drop(tensor, bytes);
    return !is_same;
  };
  for (std::size_t i = 0; i < others.tensors.size(); ++i) {
    const Result<bool> other = differs(i);
    if (!other) return other.why();
    if (*other) return std::optional<FileRecord>();
  }
  return std::optional<FileRecord>(*file);
}

Result<Done> FolderWriter::write_others(const PlannedOthers& others, Journal& journal) {
  if (take(others.file, journal)) return Done{};
  Result<std::optional<FileRecord>> same = find_at_sibling(others);
  if (!same) return same.why();
  std::error_code code;
  if (*same) {
    std::filesystem::create_hard_link(fmt::format("{}/{}", options_.sibling, others.file),
                                      path(others.file), code);
    if (!code) {
      ++linked_;
      for (const TensorRecord& tensor : (*same)->tensors) done(tensor.bytes);
      plan_.manifest.files.push_back(**same);
      return journal.add(staging_, **std::move(same));
    }
  }
  const tensor::Store& store = checkpoint_.store();
  std::vector<TensorSpec> specs;
  for (const tensor::StoredTensor* tensor : others.tensors)
    specs.push_back(kept_spec(tensor->entry));
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(
      path(others.file), specs, {{"format", "pt"}, {"fp4moe.layout", plan_.manifest.layout}});
  if (!writer) return writer.why();
  std::vector<PieceDigests> digests = digests_for(*writer);
  struct Item {
    std::size_t tensor, piece;
  };
  std::vector<Item> items;
  for (std::size_t t = 0; t < digests.size(); ++t)
    for (std::size_t piece = 0; piece < digests[t].count(); ++piece) items.push_back({t, piece});
  const std::size_t copiers = std::min<std::size_t>(options_.threads, 4);
  const auto copy = [&](std::size_t i) -> Result<Done> {
    if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
    const auto [t, number] = items[i];
    const tensor::StoredTensor& tensor = *others.tensors[t];
    const auto piece =
        store.bytes(tensor).subspan(digests[t].begin(number), digests[t].size(number));
    digests[t].put(number, piece);
    if (Result<Done> written = writer->write(t, digests[t].begin(number), piece); !written)
      return written;
    store.drop(tensor, piece);
    // Reading a page may have mapped its neighbors too.
    const tensor::MappedFile& file = store.files()[tensor.file];
    if (i % 16 == 15) file.drop(file.bytes());
    done(piece.size());
    return Done{};
  };
  if (Result<Done> copied = parallel_for(copiers, items.size(), copy); !copied) return copied;
  Result<FileRecord> record = finish(others.file, *writer, digests);
  if (!record) return record.why();
  plan_.manifest.files.push_back(*record);
  return journal.add(staging_, *std::move(record));
}

// Every expert is packed into its lane's total and goes from there to its places in the file.
Result<Done> FolderWriter::pack(PlannedLayer& layer, LayerPacker& packer, SafetensorsWriter& writer,
                                std::vector<PieceDigests>& digests) const {
  PieceDigests content(layer.job.experts.size(), 1);  // a piece is an expert
  std::vector<std::uint64_t> begins;
  std::uint64_t total = 0;
  for (const PackedTensorSpec& tensor : layer.tensors) {
    begins.push_back(total);
    total += round_up(tensor.expert_bytes, tensor::Buffer::kAlignment);
  }
  const auto work = [&](std::size_t position, const checkpoint::ExpertView& view,
                        Lane& lane) -> Result<Done> {
    if (lane.buffer.size() < total) {
      Result<tensor::Buffer> result = tensor::Buffer::allocate(total);
      if (!result) return result.why();
      lane.buffer = *std::move(result);
    }
    std::vector<std::span<std::byte>> parts(layer.tensors.size());
    for (std::size_t t = 0; t < parts.size(); ++t)
      parts[t] = lane.buffer.bytes().subspan(begins[t], layer.tensors[t].expert_bytes);
    if (Result<Done> packed = packer.pack(position, view, parts); !packed) return packed;
    content.put(position, content_of(view));
    for (std::size_t t = 0; t < parts.size(); ++t) {
      if (parts[t].empty()) continue;
      digests[t].put(position, parts[t]);
      if (Result<Done> written = writer.write(t, position * parts[t].size(), parts[t]); !written)
        return written;
    }
    done(packer.expert_bytes());
    return Done{};
  };
  if (Result<Done> done = for_each_expert(layer.job, options_.threads, work); !done) return done;
  layer.record.content = content.whole();
  return Done{};
}

Result<Done> FolderWriter::pack_small(const PlannedLayer& layer, const LayerPacker& packer,
                                      SafetensorsWriter& writer,
                                      std::vector<PieceDigests>& digests) const {
  std::vector<std::vector<std::byte>> memory(layer.tensors.size());
  std::vector<std::span<std::byte>> targets(layer.tensors.size());
  for (std::size_t t = 0; t < memory.size(); ++t) {
    if (layer.tensors[t].expert_bytes != 0) continue;
    memory[t].resize(layer.tensors[t].bytes);
    targets[t] = memory[t];
  }
  if (Result<Done> packed = packer.pack_scalars(targets); !packed) {
    Error why = packed.why();
    if (why.path.empty()) why.path = checkpoint_.store().folder();
    if (why.tensor.empty()) why.tensor = layer.record.prefix;
    return why;
  }
  for (std::size_t t = 0; t < memory.size(); ++t) {
    if (layer.tensors[t].expert_bytes != 0) continue;
    if (Result<Done> done = write_pieces(writer, t, memory[t], digests[t]); !done) return done;
    this->done(memory[t].size());
  }
  return Done{};
}

Result<Done> FolderWriter::write_layer(PlannedLayer& layer, Journal& journal) {
  if (const LayerRecord* found = journal.layer(layer.record.file);
      found != nullptr && take(layer.record.file, journal)) {
    layer.record.record = found->record;
    layer.record.content = found->content;
    layer.record.losses = found->losses;
    return Done{};
  }
  Result<LayerPacker> packer = LayerPacker::make(*plan_.recipe.layout, layer.record.problem);
  if (!packer) return Error(packer.why()).at(layer.record.prefix);
  std::vector<TensorSpec> specs;
  std::vector<PieceDigests> digests;
  for (const PackedTensorSpec& tensor : layer.tensors) {
    specs.push_back({packed_name(layer.record, tensor.name), tensor.dtype, tensor.shape});
    digests.emplace_back(tensor.bytes,
                         tensor.expert_bytes == 0 ? kPieceBytes : tensor.expert_bytes);
  }
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(
      path(layer.record.file), specs, tags_of(plan_.manifest, layer.record));
  if (!writer) return writer.why();
  if (Result<Done> done = prepare(layer.job, *packer, options_.threads); !done) return done;
  if (Result<Done> done = pack(layer, *packer, *writer, digests); !done) return done;
  if (Result<Done> done = pack_small(layer, *packer, *writer, digests); !done) return done;
  Result<FileRecord> record = finish(layer.record.file, *writer, digests);
  if (!record) return record.why();
  layer.record.record = packer->record();
  layer.record.losses = packer->losses();
  plan_.manifest.files.push_back(*record);
  return journal.add(staging_, *std::move(record), &layer.record);
}

// `source`: the mapping that the bytes lie in, whose pages are released.
Result<Done> FolderWriter::add_companion(const std::string& name, std::span<const std::byte> bytes,
                                         const tensor::MappedFile* source) {
  const Result<Digest> checksum = write_with_checksum(path(name), bytes, source);
  if (!checksum) return checksum.why();
  plan_.manifest.companions.push_back({.name = name, .bytes = bytes.size(), .checksum = *checksum});
  return Done{};
}

Result<Done> FolderWriter::copy_companions() {
  for (const checkpoint::FileCopy& copy : plan_.companions) {
    if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
    const Result<tensor::MappedFile> from = tensor::MappedFile::open(copy.from);
    if (!from) return from.why();
    if (Result<Done> done = add_companion(copy.name, from->bytes(), &*from); !done) return done;
  }
  return Done{};
}

Result<Done> FolderWriter::make_model_files() {
  if (plan_.config.empty()) return Done{};
  const auto add = [this](std::string_view name, const std::string& text) {
    return add_companion(std::string(name), std::as_bytes(std::span(text)), nullptr);
  };
  if (Result<Done> done = add(kConfigName, plan_.config); !done) return done;
  if (plan_.others.empty()) return Done{};
  return add(kOthersIndexName, others_index(plan_.manifest.files));
}

Result<Done> FolderWriter::write_manifest() {
  for (const PlannedLayer& layer : plan_.layers) plan_.manifest.layers.push_back(layer.record);
  const std::string text = to_text(plan_.manifest);
  return tensor::write_file(path(kManifestName),
                            std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace fp4moe::convert
