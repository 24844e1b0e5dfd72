// What comes first: tokens' experts, a warp each, and which of an expert's slots each slot is; and
// before a product that sorts for itself tokens as it reads them, unless they are that already: a
// warp 256 columns of one, 8 a lane.
//
//   x [tokens, hidden] ─► [quantised, read back] ─► raised ─► [tokens, units of 64 columns]
#include "fp4moe/kernels/cuda/sm90/launches.hpp"
#include "fp4moe/kernels/cuda/sm90/local_expert.cuh"
#include "fp4moe/kernels/cuda/sm90/pieces.cuh"
#include "fp4moe/kernels/cuda/sm90/route.cuh"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

inline constexpr std::uint32_t kWarps = kPrepareThreads / 32;

// A slot's place among those of its expert, as they come. It is asked for when this is made.
class Rank {
 public:
  __device__ Rank(const PrepareParams& p, std::uint32_t slot, std::int32_t id)
      : to_(p.to.rank_of_slot + slot), expert_(local_expert(p.call, p.layer.experts, id)) {
    if (expert_ >= 0) rank_ = atomicAdd(p.to.totals + expert_ * kApart, 1u);
  }
  __device__ void write() const {
    *to_ = expert_ < 0 ? -1 : ranked(static_cast<std::uint32_t>(expert_), rank_);
  }

 private:
  std::int32_t* to_;
  std::int32_t expert_;
  std::uint32_t rank_ = 0;
};

// `ids`: room for the token's.
__device__ void route_token(const PrepareParams& p, std::uint32_t token, float* scratch,
                            std::int32_t* ids) {
  const RouteParams& route = p.route;
  const std::uint32_t lane = threadIdx.x % 32, first = token * route.top_k;
  HeldRow row;
  const bool is_left = choose_token(route, token, scratch, ids, route.weights + first, row);
  __syncwarp();
  const Rank rank(p, first + lane, lane < route.top_k ? ids[lane] : -1);
  if (is_left) weigh_token(route, row, route.weights + first);
  if (lane < route.top_k) rank.write();
}

__device__ void rank_slots(const PrepareParams& p, float* scratch) {
  __shared__ std::int32_t ids[kWarps][kMostChoices];
  const std::uint32_t slots = p.call.tokens * p.call.top_k;
  const std::uint32_t thread = blockIdx.x * kPrepareThreads + threadIdx.x;
  if (thread < (4 - slots % 4) % 4) p.to.rank_of_slot[slots + thread] = -1;
  if (p.route.columns == 0) {
    if (thread < slots) Rank(p, thread, p.call.ids[thread]).write();
    return;
  }
  const std::uint32_t warp = threadIdx.x / 32, token = thread / 32;
  if (token < p.call.tokens) route_token(p, token, scratch + warp * 2 * p.route.columns, ids[warp]);
}

__device__ void round_tokens(const PrepareParams& p, std::uint32_t block) {
  const std::uint32_t units = p.layer.w13.units, lane = threadIdx.x % 32;
  const std::uint32_t segments = (units * kUnit + kSegment - 1) / kSegment;
  const std::uint32_t warps = (gridDim.x - p.rankers) * kWarps;
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
  pdl_launch_dependents();
  prefetch_params(p);
  pdl_wait();
  if (blockIdx.x >= p.rankers) return round_tokens(p, blockIdx.x - p.rankers);
  rank_slots(p, scratch);
}

}  // namespace fp4moe::kernels::cuda::sm90
