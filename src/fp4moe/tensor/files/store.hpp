// All tensors of a checkpoint by name, whatever files they lie in:
//
//   model.safetensors                       one file
//   folder/model.safetensors.index.json     an index that names the shards
//   folder/*.safetensors                    no index: every header is read
//   model.gguf, folder/*.gguf               one file or its numbered parts
//
// or in the memory of a caller that has read them already (store_memory.cpp).
//
// An index is not trusted: names of shards must be plain relative names inside the folder (no "..",
// no absolute path, no link out of it but into the blobs of a Hugging Face cache), every shard must
// exist, every tensor must be where the index says, and a name must occur once.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/tensor/files/gguf.hpp"
#include "fp4moe/tensor/files/mapped_file.hpp"
#include "fp4moe/tensor/files/safetensors.hpp"
#include "fp4moe/tensor/files/store_files.hpp"

namespace fp4moe::tensor {

struct StoredTensor {
  TensorEntry entry{};
  std::uint32_t file = 0;  // index into Store::files()
};

// A tensor in the caller's memory, dense and row-major.
struct MemoryTensor {
  std::string name{};
  DType dtype = DType::u8;
  Shape shape{};
  std::span<const std::byte> bytes{};
};

// A file of a folder beside the tensors.
struct Document {
  std::string name{};  // "config.json"
  std::string text{};
};

class Store {
 public:
  static Result<Store> open(const std::string& path);
  // Tensors in any order; their memory outlives the store and is never written. Errors:
  // store.name, store.duplicate, store.shape (bytes that the shape does not fill).
  static Result<Store> of(std::vector<MemoryTensor> tensors, std::vector<Document> documents);
  // A store of files yet to be written: names, types, shapes and documents. Every tensor's
  // bytes are empty. Errors: store.duplicate.
  static Result<Store> planned(std::vector<TensorSpec> tensors, std::vector<Document> documents);
  static Result<Store> planned_gguf(std::vector<TensorSpec> tensors, std::vector<GgufField> fields);

  StoreKind kind() const { return kind_; }
  const std::string& folder() const { return folder_; }  // where config.json would be; "": memory
  std::string path_of(std::string_view document) const;
  // "config.json" of the folder, or as it was given with tensors in memory; nothing when there is
  // none. Valid as long as the store. Errors: store.link, those of MappedFile.
  Result<std::optional<MappedFile>> document(std::string_view name) const;
  bool is_one_file() const { return is_one_file_; }  // that the user named, not a folder of files
  // For what copies files. Errors: store.memory.
  Result<Done> require_files() const;
  std::span<const MappedFile> files() const { return files_; }
  std::span<const StoredTensor> tensors() const { return tensors_; }  // sorted by name
  const StoredTensor* find(std::string_view name) const;              // null when there is none

  std::span<const std::byte> bytes(const StoredTensor& tensor) const;
  const std::string& path(const StoredTensor& tensor) const { return files_[tensor.file].path(); }
  void drop(const StoredTensor& tensor, std::span<const std::byte> part) const {
    files_[tensor.file].drop(part);
  }

  std::span<const Metadata> metadata() const { return metadata_; }         // per safetensors file
  std::span<const GgufField> gguf_fields() const { return gguf_fields_; }  // of the first part
  // Memory that the headers took: names and shapes, metadata, fields, and their text while it was
  // read.
  std::uint64_t header_bytes() const;

 private:
  StoreKind kind_ = StoreKind::safetensors;
  std::string folder_{};
  bool is_one_file_ = false;
  std::vector<MappedFile> files_{};  // in memory: one for each tensor
  std::vector<StoredTensor> tensors_{};
  std::vector<Metadata> metadata_{};
  std::vector<GgufField> gguf_fields_{};
  std::uint64_t text_bytes_ = 0;    // of headers that were read at once
  bool has_own_documents_ = false;  // in memory, or planned
  std::vector<Document> documents_{};
};

}  // namespace fp4moe::tensor
