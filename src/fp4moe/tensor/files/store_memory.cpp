// A store of tensors that lie in memory already or in files to come, and the documents of any
// store. Each tensor in memory is a file of its own to the rest of the library: one that is
// borrowed, so that its pages are never advised, dropped or unmapped.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "fp4moe/base/text.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::tensor {
namespace {

Result<Done> check_tensor(const MemoryTensor& tensor) {
  if (tensor.name.empty() || tensor.name.find('\0') != std::string::npos)
    return invalid("store.name", "a tensor has no usable name")
        .expects("a name without NUL",
                 tensor.name.empty() ? "an empty name" : printable(tensor.name));
  const std::optional<std::uint64_t> size = byte_count(tensor.dtype, tensor.shape);
  if (size && *size == tensor.bytes.size()) return Done{};
  return invalid("store.shape", "the shape does not fill the memory")
      .at(tensor.name)
      .expects(std::string(name(tensor.dtype)) + " " + text(tensor.shape) +
                   (size ? " = " + std::to_string(*size) + " bytes" : " in whole bytes"),
               std::to_string(tensor.bytes.size()) + " bytes");
}

Error duplicate_error(std::string_view name) {
  return invalid("store.duplicate", "two tensors have this name")
      .at(name)
      .expects("each name once", "it twice");
}

}  // namespace

Result<Store> Store::of(std::vector<MemoryTensor> tensors, std::vector<Document> documents) {
  for (const MemoryTensor& tensor : tensors)
    if (const auto fine = check_tensor(tensor); !fine) return fine.why();
  std::ranges::sort(tensors, {}, &MemoryTensor::name);
  const auto duplicate = std::ranges::adjacent_find(tensors, {}, &MemoryTensor::name);
  if (duplicate != tensors.end()) return duplicate_error(duplicate->name);
  Store store;
  store.kind_ = StoreKind::memory;
  store.has_own_documents_ = true;
  store.documents_ = std::move(documents);
  store.files_.reserve(tensors.size());
  store.tensors_.reserve(tensors.size());
  for (MemoryTensor& tensor : tensors) {
    const auto number = static_cast<std::uint32_t>(store.files_.size());
    store.files_.push_back(MappedFile::of({}, tensor.bytes));
    store.tensors_.push_back({{.name = std::move(tensor.name),
                               .dtype = tensor.dtype,
                               .shape = std::move(tensor.shape),
                               .bytes = tensor.bytes.size()},
                              number});
  }
  return store;
}

Result<Store> Store::planned(std::vector<TensorSpec> tensors, std::vector<Document> documents) {
  Store store;
  store.has_own_documents_ = true;
  store.documents_ = std::move(documents);
  store.files_.push_back(MappedFile::of({}, {}));
  store.tensors_.reserve(tensors.size());
  for (TensorSpec& spec : tensors)
    store.tensors_.push_back(
        {{.name = std::move(spec.name), .dtype = spec.dtype, .shape = std::move(spec.shape)}});
  const auto name_of = [](const StoredTensor& tensor) -> std::string_view {
    return tensor.entry.name;
  };
  std::ranges::sort(store.tensors_, {}, name_of);
  const auto duplicate = std::ranges::adjacent_find(store.tensors_, {}, name_of);
  if (duplicate != store.tensors_.end()) return duplicate_error(duplicate->entry.name);
  return store;
}

Result<Store> Store::planned_gguf(std::vector<TensorSpec> tensors, std::vector<GgufField> fields) {
  Result<Store> store = planned(std::move(tensors), {});
  if (!store) return store.why();
  store->kind_ = StoreKind::gguf;
  store->gguf_fields_ = std::move(fields);
  return store;
}

std::string Store::path_of(std::string_view document) const {
  return folder_.empty() ? std::string(document) : folder_ + "/" + std::string(document);
}

Result<std::optional<MappedFile>> Store::document(std::string_view name) const {
  if (has_own_documents_) {
    const auto found = std::ranges::find(documents_, name, &Document::name);
    if (found == documents_.end()) return std::optional<MappedFile>{};
    return std::optional(MappedFile::of(found->name, std::as_bytes(std::span(found->text))));
  }
  const std::string path = path_of(name);
  std::error_code failed;
  if (!std::filesystem::exists(path, failed) && !failed) return std::optional<MappedFile>{};
  if (const auto inside = file_inside(folder_.empty() ? "." : folder_, std::string(name)); !inside)
    return inside.why();
  Result<MappedFile> file = MappedFile::open(path);
  if (!file) return file.why();
  return std::optional(*std::move(file));
}

Result<Done> Store::require_files() const {
  if (kind_ != StoreKind::memory) return Done{};
  return usage("store.memory", "a checkpoint in memory has no files to copy")
      .expects("a checkpoint that was opened from files", "tensors in memory")
      .try_this("write them with safetensors first");
}

}  // namespace fp4moe::tensor
