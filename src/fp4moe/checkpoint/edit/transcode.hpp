// A checkpoint in another dialect, without loss: codes and block scales keep their bits, only their
// places change.
//
//   MXFP4   gpt-oss, openai, compressed-tensors, quark, gguf
//   NVFP4   modelopt, compressed-tensors, gguf
//
// There and back gives the same bytes. Where a reciprocal cannot be undone in float32, the original
// travels in the metadata (fp4moe.exact_scales).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/dialect.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"

namespace fp4moe::checkpoint {

struct TranscodeOptions {
  std::size_t threads = 1;
  std::uint64_t max_shard_bytes = kDefaultShardBytes;
  ProgressFunction progress{};
};

struct TranscodeReport {
  std::string from{}, to{};  // dialects
  WeightFormat format = WeightFormat::mxfp4;
  std::uint64_t layers = 0, experts = 0;            // experts of all layers
  std::uint64_t expert_bytes = 0, other_bytes = 0;  // written
  std::uint64_t exact_scales = 0;                   // recorded because 1/x cannot be undone
  std::uint64_t shards = 0;
  std::size_t threads = 0;  // that memory allowed
  double seconds = 0;
  std::vector<std::string> notes{};  // what a person should know
};

// A plan, and what to tell about it.
struct TranscodePlan {
  CheckpointPlan checkpoint;
  std::vector<std::string> notes{};
};

// The checkpoint that would be written. Errors: transcode.format, transcode.pair,
// transcode.gguf_blocks, transcode.no_gate, transcode.bias, transcode.input_scale,
// transcode.quantised_module, transcode.mixed_precision, transcode.gguf_dtype, tensor.dtype and
// tensor.shape (of a scale outside the experts), names.qkv.
Result<TranscodePlan> plan_transcode(const Checkpoint& source, Dialect target,
                                     std::uint64_t max_shard_bytes = kDefaultShardBytes);

// Writes a plan. `source` is the one the plan was made from.
Result<TranscodeReport> transcode(const Checkpoint& source, TranscodePlan plan,
                                  const std::string& out, const TranscodeOptions& options = {});
// Holds at most two experts and a few megabytes, whatever the checkpoint's size.
Result<TranscodeReport> transcode(const Checkpoint& source, Dialect target, const std::string& out,
                                  const TranscodeOptions& options = {});

}  // namespace fp4moe::checkpoint
