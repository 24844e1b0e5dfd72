// Copies tokens into token tiles. A warp reads a token, or a part of it where there are more warps
// than tokens, quantizes and dequantizes it, and writes it into the row of each of its assignments.
// Every block computes the prefix sums over experts for itself and writes the tables of its
// assignments; the first block writes all tiles.
//
//   x [tokens, hidden] ─► a Vec8 per lane ─► [quantize, dequantize] ─► 16 bytes into top_k tiles
//
//   role                                                                                    time ─►
//
//   block 0         pdl_wait ─► prefix sums ─► tiles ─► fence, __syncthreads ─┐
//   other blocks    pdl_wait ─► prefix sums ──────────────────────────────────┤
//                               (two __syncthreads for every 256 experts)     ▼
//                   ┌─────────────────────────────────────────── pdl_launch_dependents
//   warp: a token,  │
//     or part of it └► x, its rows, tables ─► [quantize, dequantize] ─► 16 bytes a lane ─► next
//
// route_gather does the same for at most 8 tokens, which every block routes and ranks for itself.
// Arrows from line to line are __syncthreads:
//
//   warp: a token            x in flight ─► top-k ─┐
//   thread: an assignment,                         ▼
//     an expert                                    ranks, counts ─┐
//   all warps                                                     ▼ prefix sums ─► [tiles] ─► rows
#include "fp4moe/kernels/cuda/sm90/gather/params.hpp"
#include "fp4moe/kernels/cuda/sm90/gather/tables.cuh"
#include "fp4moe/kernels/cuda/sm90/route/local_expert.cuh"
#include "fp4moe/kernels/cuda/sm90/route/router.cuh"
#include "fp4moe/kernels/cuda/sm90/vec8.cuh"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

// The largest magnitude of a row of x. All lanes of a warp call.
__device__ float row_amax(const GatherParams& p, std::uint64_t row) {
  std::uint32_t largest = 0;
  for (std::uint32_t c = threadIdx.x % 32 * kVecColumns; c < p.layer.hidden; c += kSegmentColumns)
    largest = max(largest, max_abs_bits(load_vec8(p.call.x.data, p.call.x.type, row + c)));
  return amax_of(__reduce_max_sync(kFullWarp, largest));
}

// Writes the same words into the rows of all assignments of the token.
__device__ void store_rows(const GatherParams& p, const GatherTarget& target, std::uint32_t choices,
                           std::uint32_t vec, const uint4& words) {
  for (std::uint32_t j = 0; j < choices; ++j) {
    const TileRowAddress address = broadcast_row_address(target.address, j);
    if (address.k_block_stride == 0 || vec >= p.layer.w13.k_blocks * kBlockVecs) continue;
    st_global_no_allocate_16(p.tiles + address.of(vec), words);
  }
}

// The same where each expert has its own quantization scale.
__device__ void store_rows_per_expert(const GatherParams& p, const GatherTarget& target,
                                      std::uint32_t choices, std::uint32_t vec, const Vec8& values,
                                      float amax) {
  for (std::uint32_t j = 0; j < choices; ++j) {
    const TileRowAddress address = broadcast_row_address(target.address, j);
    const float global = __shfl_sync(kFullWarp, target.global, static_cast<int>(j));
    if (address.k_block_stride == 0 || vec >= p.layer.w13.k_blocks * kBlockVecs) continue;
    st_global_no_allocate_16(
        p.tiles + address.of(vec),
        to_bf16(prescaled(quantize_dequantize_columns(p.layer, vec, values, amax, global),
                          p.prescale)));
  }
}

// How the block's warps share tokens: a warp takes every `parts`-th segment of a token.
struct GatherItems {
  std::uint32_t choices, tokens, warps, segments, parts;

  __device__ explicit GatherItems(const GatherParams& p) {
    const bool is_batched = p.call.counts != nullptr;
    choices = is_batched ? 1 : p.call.top_k;
    tokens = is_batched ? p.layer.experts * p.call.capacity : p.call.tokens;
    warps = gridDim.x * kGatherWarps;
    segments = (p.layer.w13.k_blocks * kBlockK + kSegmentColumns - 1) / kSegmentColumns;
    parts = max(1u, min(segments, warps / max(tokens, 1u)));
  }
  __device__ static std::uint32_t first() { return blockIdx.x * kGatherWarps + threadIdx.x / 32; }
  // The columns of an item's first segment.
  __device__ Vec8 load(const GatherParams& p, std::uint32_t item) const {
    return load_token_columns(p.call, p.layer, item / parts * p.call.x.stride,
                              item % parts * 32 + threadIdx.x % 32);
  }
};

// All rows of the block. load_first(item): the columns of an item's first segment.
template <class LoadFirst>
__device__ void gather_rows(const GatherParams& p, const GatherTables& tables,
                            const GatherItems& items, const LoadFirst& load_first) {
  const bool is_batched = p.call.counts != nullptr;
  const std::uint32_t choices = items.choices, parts = items.parts, segments = items.segments;
  const std::uint32_t lane = threadIdx.x % 32;
  const Quantization kind = p.call.x_is_quantized != 0 ? Quantization::none : p.layer.quantization;
  const bool is_each = p.layer.input_scales_each != 0;

  for (std::uint32_t item = GatherItems::first(); item < items.tokens * parts;
       item += items.warps) {
    const std::uint32_t token = item / parts;
    const std::uint64_t row = token * p.call.x.stride;
    std::uint32_t segment = item % parts;
    // Loads x while the tables are read. Unoccupied rows of batches are not read.
    Vec8 next = is_batched ? zero_vec8() : load_first(item);
    const GatherTarget target = target_of(p, tables, token, choices, segment == 0,
                                          [&](const TokenTile& tile, std::uint32_t r) {
                                            return tile_row_address(tile, r, p.layer.w13.k_blocks);
                                          });
    const std::uint32_t here = __ballot_sync(kFullWarp, target.address.k_block_stride != 0);
    if (here == 0) continue;
    if (is_batched) next = items.load(p, item);
    const float whole = kind == Quantization::fp8_token ? row_amax(p, row) : 0.0f;
    const float global = __shfl_sync(kFullWarp, target.global, __ffs(here) - 1);
    for (; segment < segments; segment += parts) {
      const std::uint32_t vec = segment * 32 + lane;
      const Vec8 values = next;
      next = load_token_columns(p.call, p.layer, row, vec + parts * 32);
      if (kind == Quantization::none) {
        store_rows(p, target, choices, vec, to_bf16(prescaled(values, p.prescale)));
        continue;
      }
      const float amax = kind == Quantization::fp8_token ? whole : block_amax(kind, values);
      if (is_each)
        store_rows_per_expert(p, target, choices, vec, values, amax);
      else
        store_rows(
            p, target, choices, vec,
            to_bf16(prescaled(quantize_dequantize_columns(p.layer, vec, values, amax, global),
                              p.prescale)));
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kGatherThreads, 4)
    FP4MOE_KERNEL(gather)(const __grid_constant__ GatherParams p) {
  extern __shared__ __align__(16) std::uint32_t shared[];
  prefetch_params(p);
  const GatherTables tables(shared, p.layer.experts, p.tables.rank_of_assignment);
  begin_tables(p, tables);
  const GatherItems items(p);
  gather_rows(p, tables, items, [&](std::uint32_t item) { return items.load(p, item); });
}

#ifdef FP4MOE_SM80
namespace {

// In shared memory, see RouteGatherSharedStorage.
struct RoutedAssignments {
  std::int32_t* experts;  // [assignments, rounded up to 4]: local; -1: not on this rank
  std::int32_t* ranks;
  float* weights;
  float* scratch;

  __device__ RoutedAssignments(std::uint32_t* shared, const RouteGatherParams& p) {
    const RouteGatherSharedStorage storage{p.gather.layer.experts, p.route.columns};
    experts = reinterpret_cast<std::int32_t*>(shared + storage.local_experts());
    ranks = reinterpret_cast<std::int32_t*>(shared + storage.ranks());
    weights = reinterpret_cast<float*>(shared + storage.weights());
    scratch = reinterpret_cast<float*>(shared + storage.scratch());
  }
  // The number of assignments of `expert` among the first `end`, a multiple of 4.
  __device__ std::uint32_t count(std::uint32_t end, std::int32_t expert) const {
    std::uint32_t found = 0;
#pragma unroll 4
    for (std::uint32_t i = 0; i < end; i += 4) {
      const int4 four = *reinterpret_cast<const int4*>(experts + i);
      found += (four.x == expert ? 1 : 0) + (four.y == expert ? 1 : 0) +
               (four.z == expert ? 1 : 0) + (four.w == expert ? 1 : 0);
    }
    return found;
  }
};

// A warp per token chooses its experts; the first block writes its weights for combine.
__device__ void route_tokens(const RouteGatherParams& p, const RoutedAssignments& to) {
  const CallParams& call = p.gather.call;
  const std::uint32_t experts = p.gather.layer.experts, assignments = call.tokens * call.top_k;
  const std::uint32_t lane = threadIdx.x % 32, token = threadIdx.x / 32;
  if (threadIdx.x < (4 - assignments % 4) % 4) to.experts[assignments + threadIdx.x] = -1;
  if (p.route.columns == 0) {
    if (threadIdx.x < assignments)
      to.experts[threadIdx.x] = local_expert(call, experts, call.ids[threadIdx.x]);
  } else if (token < call.tokens) {
    const std::uint32_t first = token * call.top_k;
    float* const weights = (blockIdx.x == 0 ? p.route.weights : to.weights) + first;
    std::int32_t* const ids = to.experts + first;
    RegisterRow row;
    const bool needs_weights = choose_token_experts(
        p.route, token, to.scratch + token * 2 * p.route.columns, ids, weights, row);
    __syncwarp();
    if (lane < call.top_k) ids[lane] = local_expert(call, experts, ids[lane]);
    if (needs_weights && blockIdx.x == 0) write_token_weights(p.route, row, weights);
  }
  __syncthreads();
}

// An assignment's rank is the number of those before it with the same expert: every block gives the
// same ranks.
__device__ void rank_assignments(std::uint32_t assignments, const RoutedAssignments& to) {
  if (threadIdx.x >= assignments) return;
  const std::int32_t expert = to.experts[threadIdx.x];
  const std::uint32_t whole = threadIdx.x / 4 * 4;
  std::uint32_t rank = to.count(whole, expert);
  for (std::uint32_t i = whole; i < threadIdx.x; ++i) rank += to.experts[i] == expert ? 1 : 0;
  to.ranks[threadIdx.x] =
      expert < 0 ? -1 : pack_expert_rank(static_cast<std::uint32_t>(expert), rank);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kGatherThreads)
    FP4MOE_KERNEL(route_gather)(const __grid_constant__ RouteGatherParams p) {
  extern __shared__ __align__(16) std::uint32_t shared[];
  const GatherParams& gather = p.gather;
  const GatherItems items(gather);
  Vec8 ahead = zero_vec8();  // x arrives while the tokens are routed
  if (GatherItems::first() < items.tokens * items.parts)
    ahead = items.load(gather, GatherItems::first());
  const RoutedAssignments routed(shared, p);
  route_tokens(p, routed);
  const std::uint32_t assignments = gather.call.tokens * gather.call.top_k;
  rank_assignments(assignments, routed);
  const GatherTables tables(shared, gather.layer.experts, routed.ranks);
  scan_all_experts(gather, tables, [&](std::uint32_t expert) {
    return routed.count((assignments + 3) / 4 * 4, static_cast<std::int32_t>(expert));
  });
  if (blockIdx.x == 0) write_tiles(gather, tables.experts);
  gather_rows(gather, tables, items, [&](std::uint32_t item) {
    return item == GatherItems::first() ? ahead : items.load(gather, item);
  });
}
#endif

}  // namespace fp4moe::kernels::cuda::sm90
