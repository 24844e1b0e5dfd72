// What comes before a product that sorts for itself: tokens' experts, a warp each; and tokens as
// the first product reads them, unless they are that already: a warp 256 columns of one, 8 a lane.
//
//   x [tokens, hidden] ─► [quantised, read back] ─► raised ─► [tokens, units of 64 columns]
#include "fp4moe/kernels/cuda/sm90/launches.hpp"
#include "fp4moe/kernels/cuda/sm90/pieces.cuh"
#include "fp4moe/kernels/cuda/sm90/route.cuh"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

inline constexpr std::uint32_t kWarps = kPrepareThreads / 32;

__device__ void route_token(const RouteParams& p, std::uint32_t token, float* scratch) {
  const std::uint64_t at = std::uint64_t{token} * p.top_k;
  HeldRow row;
  if (choose_token(p, token, scratch, p.ids + at, p.weights + at, row))
    weigh_token(p, row, p.weights + at);
}

__device__ void round_tokens(const PrepareParams& p, std::uint32_t block) {
  const std::uint32_t units = p.layer.w13.units, lane = threadIdx.x % 32;
  const std::uint32_t segments = (units * kUnit + kSegment - 1) / kSegment;
  const std::uint32_t warps = (gridDim.x - p.routers) * kWarps;
  const Quantise kind = p.call.x_is_quantised != 0 ? Quantise::none : p.layer.quantise;
  const float global = kind == Quantise::none ? 1.0f : input_scale(p.layer, 0);
  for (std::uint32_t item = block * kWarps + threadIdx.x / 32; item < p.call.tokens * segments;
       item += warps) {
    const std::uint32_t token = item / segments, piece = (item - token * segments) * 32 + lane;
    Piece values = load_columns(p.call, p.layer, token * p.call.x.stride, piece);
    if (kind != Quantise::none)
      values = placed_columns(p.layer, piece, values, block_amax(kind, values), global);
    if (piece < units * (kUnit / kPiece))
      reinterpret_cast<uint4*>(p.rows + std::uint64_t{token} * units * 128)[piece] =
          to_bf16(raised(values, p.raise));
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kPrepareThreads)
    fp4moe_sm90_prepare(const __grid_constant__ PrepareParams p) {
  extern __shared__ __align__(16) float scratch[];
  let_next_begin();
  fetch_params(p);
  wait_for_previous();
  if (blockIdx.x >= p.routers) return round_tokens(p, blockIdx.x - p.routers);
  const std::uint32_t warp = threadIdx.x / 32, token = blockIdx.x * kWarps + warp;
  if (token < p.route.tokens) route_token(p.route, token, scratch + warp * 2 * p.route.columns);
}

}  // namespace fp4moe::kernels::cuda::sm90
