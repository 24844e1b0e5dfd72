// model.safetensors.index.json: which shard holds which tensor.
//
//   {"metadata": {"total_size": 123}, "weight_map": {"name": "model-00001-of-00002.safetensors"}}
//
// Only "weight_map" is read; the rest must be JSON and is not believed.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"

namespace fp4moe::tensor {

struct IndexEntry {
  std::string name{};
  std::uint32_t shard = 0;  // into StoreIndex::shards
};

struct StoreIndex {
  std::vector<std::string> shards{};  // in order of first mention
  std::vector<IndexEntry> entries{};  // sorted by name
};

// Errors have ids `index.*`. Names of shards are checked to be plain relative paths.
Result<StoreIndex> parse_index(std::string_view text);

}  // namespace fp4moe::tensor
