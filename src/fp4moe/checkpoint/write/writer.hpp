// Writes a checkpoint in any dialect: the plan says what it will hold, the writer lays it out,
// takes experts in any order from any number of threads, and makes the whole appear at finish().
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/progress.hpp"
#include "fp4moe/checkpoint/write/expert_layout.hpp"
#include "fp4moe/checkpoint/write/tensor_sink.hpp"
#include "fp4moe/tensor/buffer.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::checkpoint {

// A MoE layer to be written. All layers of a plan share the dialect's row.
struct OutputLayer {
  std::uint64_t index = 0;  // the layer's number in its name
  std::string prefix{};     // e.g. "model.layers.3.mlp."
  MoeShape shape{};
};

// A run of bytes of a source tensor.
struct TensorSpan {
  const tensor::StoredTensor* tensor = nullptr;
  std::uint64_t begin = 0, bytes = 0;
};

// The FP4 weight of a module between rows of codes and scales and GGUF's blocks.
struct BlockPiece {
  enum class What : std::uint8_t { blocks, codes, scales };
  What what = What::blocks;  // to be written
  WeightFormat format = WeightFormat::mxfp4;
  const tensor::StoredTensor* codes = nullptr;   // or the blocks
  const tensor::StoredTensor* scales = nullptr;  // null: the source has blocks
  std::uint64_t rows = 0, k = 0;
};

// A tensor that holds no experts: pieces of a source one after another, bytes given here, or a
// weight that changes its form.
struct OtherTensor {
  tensor::TensorSpec spec{};
  std::vector<TensorSpan> pieces{};
  std::vector<std::byte> bytes{};
  std::optional<BlockPiece> block{};
  // The type of the pieces, if another: BF16 or F16 of an F32 tensor, or F32 that fits one of these.
  std::optional<tensor::DType> stored{};
};

struct FileCopy {
  std::string name{};  // in the new folder
  std::string from{};
};

// Scales whose reciprocal cannot be undone: the tensor's name (with [expert] where experts share
// it) and the bits it had in the other convention.
using ExactScales = std::map<std::string, std::uint32_t>;
inline constexpr std::string_view kExactScalesKey = "fp4moe.exact_scales";

struct CheckpointPlan {
  DialectRow row;  // the target's, with the projection names to use
  tensor::DType bias_dtype = tensor::DType::bf16;
  std::vector<OutputLayer> layers{};
  std::vector<OtherTensor> others{};
  const tensor::Store* source = nullptr;                  // of the pieces
  std::vector<std::pair<std::string, Json>> documents{};  // config.json, ...
  std::vector<FileCopy> files{};
  std::vector<tensor::GgufField> gguf_fields{};  // for a GGUF target
  ExactScales exact_scales{};
  std::vector<std::string> notes{};  // what a person should know
  tensor::Metadata metadata{};       // of every safetensors file
  std::uint64_t max_shard_bytes = kDefaultShardBytes;
  bool is_checked = true;  // refused where Checkpoint::open would refuse the result
};

class CheckpointWriter {
 public:
  // Creates and reserves all files under hidden names. Errors: those of Checkpoint::open for what
  // the plan says, folder.exists, file.reserve, ...
  static Result<CheckpointWriter> create(const std::string& out, CheckpointPlan plan);

  const CheckpointPlan& plan() const { return plan_; }
  const ExpertLayout& layout(std::size_t layer) const { return layouts_[layer]; }
  std::uint64_t bytes() const { return sink_.bytes(); }
  std::size_t shards() const { return sink_.shards(); }
  bool has_folder() const { return sink_.has_folder(); }

  // Expert `expert` of the plan's layer number `layer`. Any number of threads, each expert once.
  Result<Done> write_expert(std::size_t layer, std::uint64_t expert, const ExpertBytes& source);
  // Bytes of the plan's other tensor number `index`, which has no pieces of its own. As above.
  Result<Done> write_other(std::size_t index, std::uint64_t offset,
                           std::span<const std::byte> bytes) {
    return sink_.write(index, offset, bytes);
  }
  // Streams the tensors that hold no experts; source pages are released behind it.
  Result<Done> copy_others(std::size_t threads, const ProgressFunction& progress = {});
  Result<Done> finish();

 private:
  Result<Done> write_step(std::size_t layer, std::uint64_t expert, const Step& step,
                          const ExpertBytes& source);
  Result<Done> write_rows(std::size_t layer, std::uint64_t expert, std::size_t number, Range rows,
                          std::span<const std::byte> bytes);
  Result<Done> copy_block(std::size_t index, const OtherTensor& other);
  Result<Done> copy_piece(std::size_t index, const OtherTensor& other, std::uint64_t at,
                          const TensorSpan& piece, const ProgressFunction& progress);
  Result<tensor::Buffer> take_scratch(std::size_t bytes);
  void give_back(tensor::Buffer scratch);

  explicit CheckpointWriter(CheckpointPlan plan) : plan_(std::move(plan)) {}

  CheckpointPlan plan_;
  std::vector<ExpertLayout> layouts_{};
  std::vector<std::size_t> begins_{};  // the first tensor of each layer
  TensorSink sink_{};
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
  std::vector<tensor::Buffer> scratch_{};
};

std::uint64_t bytes_of(const OtherTensor& other);

}  // namespace fp4moe::checkpoint
