// Parameters of the kernel gather: x into token tiles, quantized and dequantized on the way. And of
// route_gather, which routes a few tokens first (family sm80).
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/route/params.hpp"
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

// Every block routes all tokens for itself, a warp each: one launch less than prepare and gather.
struct RouteGatherParams {
  RouteParams route{};  // columns 0: ids and weights are given
  GatherParams gather{};
};

inline constexpr std::uint32_t kMaxRouteGatherTokens = kGatherThreads / 32;
// In shared memory, in words: the tables of gather, the local expert and the rank of each
// assignment, weights that only one block may write, and scratch memory of the router.
struct RouteGatherOffsets {
  std::uint32_t experts, ranks, weights, scratch, end;
};
constexpr RouteGatherOffsets route_gather_offsets(std::uint32_t experts, std::uint32_t columns) {
  const std::uint32_t begin = (gather_shared_bytes(experts) / 4 + 3) / 4 * 4;
  const std::uint32_t max_assignments = kMaxRouteGatherTokens * kMaxTopK;
  return {.experts = begin,
          .ranks = begin + max_assignments,
          .weights = begin + 2 * max_assignments,
          .scratch = begin + 3 * max_assignments,
          .end = begin + 3 * max_assignments + kMaxRouteGatherTokens * 2 * columns};
}
constexpr std::uint32_t route_gather_shared_bytes(std::uint32_t experts, std::uint32_t columns) {
  return 4 * route_gather_offsets(experts, columns).end;
}
// True if a few tokens are routed, and shared memory that any kernel may use is enough.
constexpr bool can_route_in_gather(const CallParams& call, const LayerParams& layer,
                                   std::uint32_t columns) {
  return call.counts == nullptr && call.tokens <= kMaxRouteGatherTokens && call.top_k <= kMaxTopK &&
         route_gather_shared_bytes(layer.experts, columns) <= 48u * 1024;
}

}  // namespace fp4moe::kernels::cuda::sm90
