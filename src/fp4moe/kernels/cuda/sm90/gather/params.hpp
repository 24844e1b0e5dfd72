// Parameters of the kernel gather: x into token tiles, quantized and dequantized on the way.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/routing_tables.hpp"
#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90 {

struct GatherParams {
  CallParams call{};
  LayerParams layer{};
  std::uint32_t tile_tokens = kMaxTileTokens;  // max of a tile, see kTileSizes
  RoutingTables tables{};
  std::uint8_t* tiles = nullptr;            // out, of w13.k_blocks
  std::uint32_t filled_tiles = 0xFFFFFFFF;  // gather fills the first ones, the GEMM the others
  float prescale = 1;                       // see activation_prescale
};

inline constexpr std::uint32_t kGatherThreads = 256;  // a warp per token, or per part of a token
constexpr std::uint32_t gather_blocks(const LayerParams& layer, std::uint64_t tokens,
                                      std::uint32_t sms) {
  const std::uint64_t segments =
      ceil_div_u64(std::uint64_t{layer.w13.k_blocks} * kBlockK, kSegmentColumns);
  return clamp_blocks(ceil_div_u64(tokens * segments, kGatherThreads / 32), sms * 4ull);
}
// Tables of experts, and one partial sum for each warp.
constexpr std::uint32_t gather_shared_bytes(std::uint32_t experts) {
  return 4 * (3 * experts + 2) + 8 * (kGatherThreads / 32);
}

}  // namespace fp4moe::kernels::cuda::sm90
