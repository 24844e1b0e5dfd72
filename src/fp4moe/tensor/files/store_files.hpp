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
  bool is_one_file = false;  // named by the user; what lies beside it need not belong to it
};

// The files that `path` stands for: see store.hpp.
Result<StoreFiles> find_store_files(const std::string& path);

// The path of a file of a checkpoint's or an adapter's folder. The one rule for all of them: links
// may not leave the folder, except from snapshots/<revision>/ of a Hugging Face cache into the
// blobs/ beside it. Errors: store.open, store.link.
Result<std::string> file_inside(const std::string& folder, const std::string& name);

// "model-00002-of-00003.gguf" -> {"model", 2, 3}; nothing for other names.
struct PartName {
  std::string_view stem{};
  std::uint32_t number = 0, count = 0;
};
std::optional<PartName> part_name(std::string_view file_name, std::string_view extension);

}  // namespace fp4moe::tensor
