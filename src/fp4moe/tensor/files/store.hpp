// All tensors of a checkpoint by name, whatever files they lie in:
//
//   model.safetensors                       one file
//   folder/model.safetensors.index.json     an index that names the shards
//   folder/*.safetensors                    no index: every header is read
//   model.gguf, folder/*.gguf               one file or its numbered parts
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

class Store {
 public:
  static Result<Store> open(const std::string& path);

  StoreKind kind() const { return kind_; }
  const std::string& folder() const { return folder_; }  // where config.json would be
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

 private:
  StoreKind kind_ = StoreKind::safetensors;
  std::string folder_{};
  std::vector<MappedFile> files_{};
  std::vector<StoredTensor> tensors_{};
  std::vector<Metadata> metadata_{};
  std::vector<GgufField> gguf_fields_{};
};

}  // namespace fp4moe::tensor
