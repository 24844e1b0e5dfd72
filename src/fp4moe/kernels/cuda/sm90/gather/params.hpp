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
inline constexpr std::uint32_t kGatherWarps = kGatherThreads / 32;

// Shared memory of gather and gather_fp8, the only place with its offsets, in words:
//
//   partial   partial sums of the warps
//   experts   tables of experts (ExpertSharedStorage)
struct GatherSharedStorage {
  std::uint32_t experts = 0;

  static constexpr std::uint32_t kExpertTables =
      ExpertSharedStorage::kPartialBytes * kGatherWarps / 4;
  constexpr std::uint32_t bytes() const {
    return 4 * ExpertSharedStorage::words(experts) + 4 * kExpertTables;
  }
};
constexpr std::uint32_t gather_shared_bytes(std::uint32_t experts) {
  return GatherSharedStorage{experts}.bytes();
}

// Every block routes all tokens for itself, a warp each: one launch less than prepare and gather.
struct RouteGatherParams {
  RouteParams route{};  // columns 0: ids and weights are given
  GatherParams gather{};
};

inline constexpr std::uint32_t kMaxRouteGatherTokens = kGatherWarps;

// Shared memory of route_gather, the only place with its offsets, in words:
//
//   tables          those of gather (GatherSharedStorage), up to a multiple of 4 words
//   local_experts   [kMaxAssignments]: the local expert of each assignment
//   ranks           [kMaxAssignments]
//   weights         [kMaxAssignments], of the router; the first block has them in global memory
//   scratch         [kMaxRouteGatherTokens][2 * columns], of the router
struct RouteGatherSharedStorage {
  std::uint32_t experts = 0, columns = 0;  // columns: of the logits

  static constexpr std::uint32_t kMaxAssignments = kMaxRouteGatherTokens * kMaxTopK;

  constexpr std::uint32_t local_experts() const {
    return (GatherSharedStorage{experts}.bytes() / 4 + 3) / 4 * 4;
  }
  constexpr std::uint32_t ranks() const { return local_experts() + kMaxAssignments; }
  constexpr std::uint32_t weights() const { return local_experts() + 2 * kMaxAssignments; }
  constexpr std::uint32_t scratch() const { return local_experts() + 3 * kMaxAssignments; }
  constexpr std::uint32_t bytes() const {
    return 4 * (scratch() + kMaxRouteGatherTokens * 2 * columns);
  }
};
constexpr std::uint32_t route_gather_shared_bytes(std::uint32_t experts, std::uint32_t columns) {
  return RouteGatherSharedStorage{experts, columns}.bytes();
}
// True if a few tokens are routed, and shared memory that any kernel may use is enough.
constexpr bool can_route_in_gather(const CallParams& call, const LayerParams& layer,
                                   std::uint32_t columns) {
  return call.counts == nullptr && call.tokens <= kMaxRouteGatherTokens && call.top_k <= kMaxTopK &&
         route_gather_shared_bytes(layer.experts, columns) <= 48u * 1024;
}

}  // namespace fp4moe::kernels::cuda::sm90
