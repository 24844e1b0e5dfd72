// Quantizes the experts of an unquantized checkpoint to MXFP4 or NVFP4 and writes them in a
// dialect; everything else is copied.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/dialect.hpp"
#include "fp4moe/checkpoint/edit/plain_checkpoint.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"
#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/formats/nvfp4.hpp"

namespace fp4moe::checkpoint {

struct QuantizeOptions {
  WeightFormat format = WeightFormat::mxfp4;
  std::optional<Dialect> to{};  // absent: gpt-oss for gpt-oss models, else compressed-tensors for
                                // MXFP4 and modelopt for NVFP4
  formats::Mxfp4Rule mxfp4_rule = formats::Mxfp4Rule::even_rne;
  formats::Nvfp4Rule nvfp4_rule = formats::Nvfp4Rule::reference;
  // Gate and up share one global scale unless this is set: most backends use the gate's for both.
  bool separate_global_scales = false;
  // NVFP4 input scales by module name with * and ?, the first match counts. None: weights only.
  std::vector<std::pair<std::string, float>> input_scales{};
  std::size_t threads = 1;
  std::uint64_t max_shard_bytes = kDefaultShardBytes;
  ProgressFunction progress{};
};

// How far the quantized values are from the given ones.
struct QuantizeError {
  double max = 0;  // the largest |error| as a share of its block's largest magnitude
  double rms = 0;  // root mean square error / root mean square of the values
};

struct QuantizeReport {
  std::string to{}, rule{};
  WeightFormat format = WeightFormat::mxfp4;
  std::uint64_t layers = 0, experts = 0;
  std::uint64_t input_bytes = 0, expert_bytes = 0, other_bytes = 0;
  std::uint64_t shards = 0;
  std::size_t threads = 0;
  double seconds = 0;
  QuantizeError gate{}, up{}, down{};
  std::vector<std::string> notes{};  // what a person should know
};

// Errors: quantize.not_finite, quantize.blocks, quantize.dialect, quantize.input_scale, those of
// PlainCheckpoint and of the writer.
Result<QuantizeReport> quantize(const PlainCheckpoint& source, const std::string& out,
                                const QuantizeOptions& options);

// The checkpoint that would be written.
Result<CheckpointPlan> plan_quantize(const PlainCheckpoint& source, const QuantizeOptions& options);

}  // namespace fp4moe::checkpoint
