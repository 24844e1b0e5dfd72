// A layer as gpt-oss has it, from its six tensors in memory, by their names in the checkpoint: MXFP4,
// gate and up rows interleaved, swigluoai, softmax over the chosen experts. No file, no config.json.
//
//   Result<MoeLayer> layer = gpt_oss_layer({.gate_up_proj_blocks = ..., .down_proj_blocks = ...});
//   layer->run({.x = x, .logits = logits}, out);
//
// Other models: MoeLayer::create(description, weights).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "fp4moe/base/result.hpp"
#include "fp4moe/runtime/layer.hpp"

namespace fp4moe::runtime {

// Dense, of all experts. The sizes are gpt-oss-20b's.
struct GptOssExperts {
  std::uint64_t experts = 32, hidden = 2880, intermediate = 2880, top_k = 4;
  std::span<const std::byte> gate_up_proj_blocks{};  // [experts, 2 * intermediate, hidden / 2]
  std::span<const std::byte> gate_up_proj_scales{};  // [experts, 2 * intermediate, hidden / 32]
  std::span<const std::byte> gate_up_proj_bias{};    // [experts, 2 * intermediate] BF16; none: none
  std::span<const std::byte> down_proj_blocks{};     // [experts, hidden, intermediate / 2]
  std::span<const std::byte> down_proj_scales{};     // [experts, hidden, intermediate / 32]
  std::span<const std::byte> down_proj_bias{};       // [experts, hidden] BF16; none: none
};

// Loaded and processed: ready to run. The memory may go, unless options.weights are mapped. Errors:
// those of LayerWeightsView::make, MoeLayer::create, load and process.
Result<MoeLayer> gpt_oss_layer(const GptOssExperts& given, LayerOptions options = {});

}  // namespace fp4moe::runtime
