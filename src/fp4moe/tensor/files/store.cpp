#include "fp4moe/tensor/files/store.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "fp4moe/base/parallel.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/tensor/files/store_files.hpp"

namespace fp4moe::tensor {
namespace {

struct OpenedFile {
  MappedFile file{};
  std::vector<StoredTensor> tensors{};  // sorted by name
  Metadata metadata{};
  std::vector<GgufField> fields{};
  std::uint64_t header = 0;  // bytes before the tensors
};

bool by_name(const StoredTensor& a, const StoredTensor& b) { return a.entry.name < b.entry.name; }

Result<Done> read_header(StoreKind kind, std::uint32_t number, OpenedFile& opened) {
  std::vector<TensorEntry> entries;
  if (kind == StoreKind::safetensors) {
    Result<SafetensorsHeader> header = parse_safetensors(opened.file.bytes());
    if (!header) return Error(header.why()).in(opened.file.path());
    entries = std::move(header->tensors);
    opened.metadata = std::move(header->metadata);
    opened.header = header->data_begin;
  } else {
    Result<GgufHeader> header = parse_gguf(opened.file.bytes());
    if (!header) return Error(header.why()).in(opened.file.path());
    entries = std::move(header->tensors);
    opened.fields = std::move(header->fields);
    opened.header = std::min<std::uint64_t>(header->data_begin, opened.file.bytes().size());
  }
  opened.file.drop(opened.file.bytes().first(opened.header));
  opened.tensors.reserve(entries.size());
  for (TensorEntry& entry : entries) opened.tensors.push_back({std::move(entry), number});
  std::sort(opened.tensors.begin(), opened.tensors.end(), by_name);
  return Done{};
}

// Merges sorted runs pairwise: n log(files) moves.
std::vector<StoredTensor> merged(std::vector<OpenedFile>& files) {
  std::vector<StoredTensor> all;
  std::vector<std::ptrdiff_t> ends{0};
  for (OpenedFile& file : files) {
    std::move(file.tensors.begin(), file.tensors.end(), std::back_inserter(all));
    ends.push_back(static_cast<std::ptrdiff_t>(all.size()));
  }
  while (ends.size() > 2) {
    std::vector<std::ptrdiff_t> fewer{0};
    for (std::size_t i = 0; i + 1 < ends.size(); i += 2) {
      const std::size_t last = std::min(i + 2, ends.size() - 1);
      std::inplace_merge(all.begin() + ends[i], all.begin() + ends[i + 1], all.begin() + ends[last],
                         by_name);
      fewer.push_back(ends[last]);
    }
    ends = std::move(fewer);
  }
  return all;
}

Result<Done> check_unique(std::span<const StoredTensor> tensors,
                          std::span<const MappedFile> files) {
  const auto duplicate = std::adjacent_find(
      tensors.begin(), tensors.end(),
      [](const StoredTensor& a, const StoredTensor& b) { return a.entry.name == b.entry.name; });
  if (duplicate == tensors.end()) return Done{};
  return invalid("store.duplicate", "two files hold a tensor of this name")
      .in(files[duplicate->file].path())
      .at(duplicate->entry.name)
      .expects("each name once", "it also in " + files[std::next(duplicate)->file].path())
      .try_this("add an index that names the files to use, or name one file");
}

// Both sorted by name.
Result<Done> check_index(const StoreFiles& files, std::span<const StoredTensor> tensors) {
  const StoreIndex& index = *files.index;
  auto listed = index.entries.begin();
  auto stored = tensors.begin();
  while (listed != index.entries.end() || stored != tensors.end()) {
    const bool is_listed = listed != index.entries.end() &&
                           (stored == tensors.end() || listed->name <= stored->entry.name);
    const bool is_stored = stored != tensors.end() &&
                           (listed == index.entries.end() || stored->entry.name <= listed->name);
    if (!is_stored)
      return invalid("store.not_in_shard", "the shard lacks a tensor that the index puts there")
          .in(files.paths[listed->shard])
          .at(listed->name)
          .expects("it in this file", "it in none of the files");
    if (!is_listed)
      return invalid("store.not_in_index", "the index lacks a tensor of a shard")
          .in(files.index_path)
          .at(stored->entry.name)
          .expects("it in \"weight_map\"", "it only in " + files.paths[stored->file]);
    if (listed->shard != stored->file)
      return invalid("store.wrong_shard", "the tensor is not where the index says")
          .in(files.index_path)
          .at(listed->name)
          .expects("it in " + files.paths[listed->shard], "it in " + files.paths[stored->file]);
    ++listed;
    ++stored;
  }
  return Done{};
}

// The value of an unsigned or signed integer field of a GGUF file.
std::optional<std::uint64_t> integer(std::span<const GgufField> fields, std::string_view key) {
  for (const GgufField& field : fields) {
    if (field.key != key) continue;
    if (const auto* value = std::get_if<std::uint64_t>(&field.value)) return *value;
    const auto* value = std::get_if<std::int64_t>(&field.value);
    if (value != nullptr && *value >= 0) return static_cast<std::uint64_t>(*value);
  }
  return std::nullopt;
}

// Checks the parts of a split GGUF model by their own metadata: split.no (from 0), split.count and
// split.tensors.count. A file outside its set, or a set of unrelated files, must not pass for a
// model.
Result<Done> check_split(std::span<const OpenedFile> files) {
  std::uint64_t tensors = 0;
  for (const OpenedFile& file : files) tensors += file.tensors.size();
  const auto wrong = [](const OpenedFile& file, std::string_view key, std::uint64_t expected,
                        std::optional<std::uint64_t> found) {
    return invalid("store.split", "the part does not belong here")
        .in(file.file.path())
        .at(key)
        .expects(std::to_string(expected), found ? std::to_string(*found) : "nothing");
  };
  for (std::size_t i = 0; i < files.size(); ++i) {
    const OpenedFile& file = files[i];
    const std::optional<std::uint64_t> count = integer(file.fields, "split.count");
    if (files.size() == 1 && !count) continue;  // an ordinary file
    if (count != files.size() && !(files.size() == 1 && *count == 0))
      return wrong(file, "split.count", files.size(), count);
    if (const auto number = integer(file.fields, "split.no"); number.value_or(0) != i)
      return wrong(file, "split.no", i, number);
    const auto total = integer(file.fields, "split.tensors.count");
    if (total && *total != tensors) return wrong(file, "split.tensors.count", tensors, total);
  }
  return Done{};
}

// Bytes on the heap, with what the allocator adds.
std::uint64_t heap_bytes(std::uint64_t bytes) { return bytes == 0 ? 0 : bytes + 16; }
std::uint64_t heap_bytes(const std::string& text) {
  constexpr std::uint64_t kInside = 15;  // characters that a string holds in itself
  return text.capacity() <= kInside ? 0 : heap_bytes(text.capacity());
}
std::uint64_t heap_bytes(const GgufValue& value) {
  const auto bytes = [](const auto& held) -> std::uint64_t {
    using Held = std::decay_t<decltype(held)>;
    if constexpr (std::is_arithmetic_v<Held>) {
      return 0;
    } else if constexpr (std::is_same_v<Held, std::string>) {
      return heap_bytes(held);
    } else {
      std::uint64_t sum = heap_bytes(held.size() * sizeof(typename Held::value_type));
      if constexpr (std::is_same_v<Held, std::vector<std::string>>)
        for (const std::string& text : held) sum += heap_bytes(text);
      return sum;
    }
  };
  return std::visit(bytes, value);
}

}  // namespace

Result<Store> Store::open(const std::string& path) {
  const Result<StoreFiles> files = find_store_files(path);
  if (!files) return files.why();
  std::vector<OpenedFile> opened(files->paths.size());
  const Result<Done> read =
      parallel_for(available_threads(), opened.size(), [&](std::size_t i) -> Result<Done> {
        Result<MappedFile> file = MappedFile::open(files->paths[i]);
        if (!file) return file.why();
        opened[i].file = *std::move(file);
        return read_header(files->kind, static_cast<std::uint32_t>(i), opened[i]);
      });
  if (!read) return read.why();
  if (files->kind == StoreKind::gguf)
    if (Result<Done> split = check_split(opened); !split) return split.why();

  Store store;
  store.kind_ = files->kind;
  store.folder_ = files->folder;
  store.is_one_file_ = files->is_one_file;
  store.tensors_ = merged(opened);
  const std::uint64_t together = std::min(available_threads(), opened.size());
  for (OpenedFile& file : opened) {
    store.text_bytes_ = std::max(store.text_bytes_, file.header * together);
    store.files_.push_back(std::move(file.file));
    if (files->kind == StoreKind::safetensors) store.metadata_.push_back(std::move(file.metadata));
  }
  if (files->kind == StoreKind::gguf) store.gguf_fields_ = std::move(opened.front().fields);
  if (Result<Done> unique = check_unique(store.tensors_, store.files_); !unique)
    return unique.why();
  if (files->index)
    if (Result<Done> agrees = check_index(*files, store.tensors_); !agrees) return agrees.why();
  return store;
}

std::uint64_t Store::header_bytes() const {
  constexpr std::uint64_t kNode = 48;     // of a map, beside its key and value
  std::uint64_t bytes = 2 * text_bytes_;  // the mapped pages, and a string of it that grows
  for (const StoredTensor& tensor : tensors_)
    bytes += sizeof tensor + heap_bytes(tensor.entry.name) +
             heap_bytes(tensor.entry.shape.capacity() * sizeof(std::uint64_t));
  for (const Metadata& metadata : metadata_)
    for (const auto& [key, value] : metadata)
      bytes += kNode + sizeof key + sizeof value + heap_bytes(key) + heap_bytes(value);
  for (const GgufField& field : gguf_fields_)
    bytes += sizeof field + heap_bytes(field.key) + heap_bytes(field.value);
  return bytes;
}

const StoredTensor* Store::find(std::string_view name) const {
  const auto place = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                      [](const StoredTensor& tensor, std::string_view wanted) {
                                        return tensor.entry.name < wanted;
                                      });
  return place != tensors_.end() && place->entry.name == name ? &*place : nullptr;
}

std::span<const std::byte> Store::bytes(const StoredTensor& tensor) const {
  if (tensor.entry.bytes == 0) return {};  // its place may lie behind the end of the file
  return files_[tensor.file].bytes().subspan(tensor.entry.begin, tensor.entry.bytes);
}

}  // namespace fp4moe::tensor
