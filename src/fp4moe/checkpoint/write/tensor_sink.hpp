// The files of a new checkpoint: numbered shards with an index inside a folder, or one GGUF
// file. Everything is laid out and reserved before the first byte is written, and nothing of it is
// visible before finish().
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/tensor/files/atomic_file.hpp"
#include "fp4moe/tensor/files/gguf.hpp"
#include "fp4moe/tensor/files/safetensors.hpp"

namespace fp4moe::checkpoint {

inline constexpr std::uint64_t kDefaultShardBytes = 5'000'000'000;

// The tensors of a checkpoint to be written, made on demand: a list of a hundred thousand of them
// is never held whole.
struct SpecList {
  std::size_t count = 0;
  std::function<tensor::TensorSpec(std::size_t)> at{};
};

struct SinkOptions {
  std::uint64_t max_shard_bytes = kDefaultShardBytes;
  // The `__metadata__` of the shard that holds tensors [begin, end).
  std::function<tensor::Metadata(std::size_t begin, std::size_t end)> metadata{};
};

class TensorSink {
 public:
  // A folder of safetensors: model.safetensors, or model-00001-of-00003.safetensors and an index.
  static Result<TensorSink> create(const std::string& folder, const SpecList& specs,
                                   const SinkOptions& options);
  // A GGUF file; a path that does not end in .gguf is a folder that gets a model.gguf.
  static Result<TensorSink> create_gguf(const std::string& path, const SpecList& specs,
                                        std::span<const tensor::GgufField> fields);

  // Bytes of tensor number `index` of the list. Any number of threads.
  Result<Done> write(std::size_t index, std::uint64_t offset, std::span<const std::byte> bytes);
  // A small file beside the tensors.
  Result<Done> put_file(std::string_view name, std::string_view content);
  Result<Done> put_json(std::string_view name, const Json& document);
  // Copies a file, a piece at a time.
  Result<Done> copy_file(std::string_view name, const std::string& from);
  Result<Done> finish();

  bool has_folder() const { return has_folder_; }
  std::size_t shards() const { return shards_.empty() ? 1 : shards_.size(); }
  std::uint64_t bytes() const { return bytes_; }  // of all tensors

 private:
  struct ShardIndex {
    std::uint32_t shard = 0, index = 0;
  };
  Result<Done> lay_out(const SpecList& specs, std::uint64_t max_shard_bytes);
  std::string shard_name(std::size_t shard) const;
  Result<Done> write_index();
  Error explain(const Error& why) const { return folder_.explain(why); }

  // Destroyed last to first: files before the folder that holds them.
  tensor::AtomicFolder folder_{};
  bool has_folder_ = false;
  std::vector<tensor::SafetensorsWriter> shards_{};
  tensor::GgufWriter gguf_{};
  bool is_gguf_ = false;
  std::vector<ShardIndex> places_{};
  std::vector<std::size_t> begins_{};  // the first tensor of each shard, and the end
  std::uint64_t bytes_ = 0;
};

}  // namespace fp4moe::checkpoint
