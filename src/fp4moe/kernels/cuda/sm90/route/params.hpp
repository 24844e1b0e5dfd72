// Parameters of the kernel prepare, which routes and ranks.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/routing_tables.hpp"
#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90 {

struct RouteParams {
  ConstDeviceRows logits{};  // [tokens, columns]
  std::uint32_t tokens = 0, columns = 0, top_k = 0;
  Score key = Score::logit, weight = Score::logit;  // what is compared; what becomes the weight
  Normalization normal = Normalization::none;       // not `optional`
  std::uint32_t groups = 1, chosen_groups = 1, adds_two_per_group = 0;  // groups of experts
  std::uint32_t scores_in_logits_type = 0, weights_in_bf16 = 0;
  const float* bias = nullptr;  // [columns] or null
  float scale = 1;
  float* weights = nullptr;  // out: [tokens, top_k]

  friend bool operator==(const RouteParams&, const RouteParams&) = default;
};
inline constexpr std::uint32_t kMaxRegisterLogits = 128;  // that a warp keeps in registers

// The first `rank_blocks` blocks route and rank. The others convert tokens to the form that the
// grouped GEMM reads, where it sorts in its blocks and the tokens are not in that form yet.
struct PrepareParams {
  RouteParams route{};  // columns 0: ids and weights are given
  std::uint32_t rank_blocks = 0;
  CallParams call{};
  LayerParams layer{};
  RoutingTables tables{};
  std::uint8_t* rows = nullptr;  // out: [tokens][w13.k_blocks][128 bytes]; null: not needed
  float prescale = 1;            // see activation_prescale
};

// A warp per token that is routed, a thread per assignment that is only ranked, or a warp per 256
// columns that are converted.
inline constexpr std::uint32_t kPrepareThreads = 128;
constexpr std::uint32_t prepare_rank_blocks(const RouteParams& route, std::uint64_t assignments) {
  const std::uint64_t threads = route.columns == 0 ? assignments : std::uint64_t{route.tokens} * 32;
  return static_cast<std::uint32_t>(ceil_div_u64(threads, kPrepareThreads));
}
constexpr std::uint32_t prepare_convert_blocks(const LayerParams& layer, std::uint64_t tokens,
                                               std::uint32_t sms) {
  const std::uint64_t segments =
      ceil_div_u64(std::uint64_t{layer.w13.k_blocks} * kBlockK, kSegmentColumns);
  return clamp_blocks(ceil_div_u64(tokens * segments, kPrepareThreads / 32), sms * 12ull);
}
// Two floats per column for each warp that routes.
constexpr std::uint32_t prepare_shared_bytes(std::uint32_t columns) {
  return kPrepareThreads / 32 * 8 * columns;
}

}  // namespace fp4moe::kernels::cuda::sm90
