// The first kernel of a call with many tokens. Rank blocks choose experts, and rank each assignment
// among the assignments of its expert. Convert blocks, where the grouped GEMM needs them, bring x
// [tokens, hidden] to the form that it reads: bf16 K blocks.
//
//   role                                                                                    time ─►
//
//   rank blocks
//     warp: a token          pdl_wait ─► top-k ─► atomicAdd expert_counts, weights ─► rank
//     or thread: a given id  pdl_wait ──────────► atomicAdd expert_counts ──────────► rank
//   convert blocks
//     warp: 256 columns      pdl_wait ─► x ─► [quantize, dequantize] ─► prescale ─► K block ─► next
//
// Warps do not wait for each other. The next kernel may start at once: it waits for the end of this
// one with pdl_wait.
#include "fp4moe/kernels/cuda/sm90/route/local_expert.cuh"
#include "fp4moe/kernels/cuda/sm90/route/params.hpp"
#include "fp4moe/kernels/cuda/sm90/route/router.cuh"
#include "fp4moe/kernels/cuda/sm90/vec8.cuh"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

inline constexpr std::uint32_t kWarps = kPrepareThreads / 32;

// The rank of an assignment among the assignments of its expert, in the order of arrival. The
// constructor issues the atomic; write() waits for it.
class Rank {
 public:
  __device__ Rank(const PrepareParams& p, std::uint32_t assignment, std::int32_t id)
      : to_(p.tables.rank_of_assignment + assignment),
        expert_(local_expert(p.call, p.layer.experts, id)) {
    if (expert_ >= 0) rank_ = atomicAdd(p.tables.expert_counts + expert_ * kCounterStride, 1u);
  }
  __device__ void write() const {
    *to_ = expert_ < 0 ? -1 : pack_expert_rank(static_cast<std::uint32_t>(expert_), rank_);
  }

 private:
  std::int32_t* to_;
  std::int32_t expert_;
  std::uint32_t rank_ = 0;
};

// `ids`: scratch memory for the ids of the token.
__device__ void route_token(const PrepareParams& p, std::uint32_t token, float* scratch,
                            std::int32_t* ids) {
  const RouteParams& route = p.route;
  const std::uint32_t lane = threadIdx.x % 32, first = token * route.top_k;
  RegisterRow row;
  const bool needs_weights =
      choose_token_experts(route, token, scratch, ids, route.weights + first, row);
  __syncwarp();
  const Rank rank(p, first + lane, lane < route.top_k ? ids[lane] : -1);
  if (needs_weights) write_token_weights(route, row, route.weights + first);
  if (lane < route.top_k) rank.write();
}

__device__ void rank_assignments(const PrepareParams& p, float* scratch) {
  __shared__ std::int32_t ids[kWarps][kMaxTopK];
  const std::uint32_t assignments = p.call.tokens * p.call.top_k;
  const std::uint32_t thread = blockIdx.x * kPrepareThreads + threadIdx.x;
  if (thread < (4 - assignments % 4) % 4) p.tables.rank_of_assignment[assignments + thread] = -1;
  if (p.route.columns == 0) {
    if (thread < assignments) Rank(p, thread, p.call.ids[thread]).write();
    return;
  }
  const std::uint32_t warp = threadIdx.x / 32, token = thread / 32;
  if (token < p.call.tokens) route_token(p, token, scratch + warp * 2 * p.route.columns, ids[warp]);
}

__device__ void convert_tokens(const PrepareParams& p, std::uint32_t block) {
  const std::uint32_t k_blocks = p.layer.w13.k_blocks, lane = threadIdx.x % 32;
  const std::uint32_t segments = (k_blocks * kBlockK + kSegmentColumns - 1) / kSegmentColumns;
  const std::uint32_t warps = (gridDim.x - p.rank_blocks) * kWarps;
  const Quantization kind = p.call.x_is_quantized != 0 ? Quantization::none : p.layer.quantization;
  const float global = kind == Quantization::none ? 1.0f : input_scale(p.layer, 0);
  for (std::uint32_t item = block * kWarps + threadIdx.x / 32; item < p.call.tokens * segments;
       item += warps) {
    const std::uint32_t token = item / segments, vec = (item - token * segments) * 32 + lane;
    Vec8 values = load_token_columns(p.call, p.layer, token * p.call.x.stride, vec);
    if (kind != Quantization::none)
      values = quantize_dequantize_columns(p.layer, vec, values, block_amax(kind, values), global);
    if (vec < k_blocks * kBlockVecs)
      reinterpret_cast<uint4*>(p.rows + std::uint64_t{token} * k_blocks * kBlockRowBytes)[vec] =
          to_bf16(prescaled(values, p.prescale));
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kPrepareThreads)
    FP4MOE_KERNEL(prepare)(const __grid_constant__ PrepareParams p) {
  extern __shared__ __align__(16) float scratch[];
  pdl_launch_dependents();
  prefetch_params(p);
  pdl_wait();
  if (blockIdx.x >= p.rank_blocks) return convert_tokens(p, blockIdx.x - p.rank_blocks);
  rank_assignments(p, scratch);
}

}  // namespace fp4moe::kernels::cuda::sm90
