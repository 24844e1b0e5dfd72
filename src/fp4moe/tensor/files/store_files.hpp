// Which files make up a checkpoint, and whether they may be read.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/tensor/files/store_index.hpp"

namespace fp4moe::tensor {

enum class StoreKind : std::uint8_t { safetensors, gguf, memory };

struct StoreFiles {
  StoreKind kind = StoreKind::safetensors;
  std::string folder{};
  std::vector<std::string> paths{};   // all exist and lie where they may
  std::optional<StoreIndex> index{};  // its shards are `paths`, in this order
  std::string index_path{};
};

// What `path` means: see store.hpp.
Result<StoreFiles> find_store_files(const std::string& path);

// "model-00002-of-00003.gguf" -> {"model", 2, 3}; nothing for other names.
struct PartName {
  std::string_view stem{};
  std::uint32_t number = 0, count = 0;
};
std::optional<PartName> part_name(std::string_view file_name, std::string_view extension);

}  // namespace fp4moe::tensor
