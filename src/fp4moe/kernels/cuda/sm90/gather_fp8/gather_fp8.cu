// Copies tokens into token tiles of E4M3. A warp quantizes a token once and writes it into the row of
// each of its assignments.
//
//   role                                                                                    time ─►
//
//   block 0         pdl_wait ─► prefix sums ─► tiles ─► fence, __syncthreads ─┐
//   other blocks    pdl_wait ─► prefix sums ──────────────────────────────────┤
//                               (two __syncthreads for every 256 experts)     ▼
//                   ┌─────────────────────────────────────────── pdl_launch_dependents
//   warp: a token   └► tables, x ─► amax ─► E4M3 ─► 2 x 16 bytes a lane into top_k tiles ─► next
//
// A lane has 32 columns. The amax is that of the row, or of 128 columns.
#include "fp4moe/kernels/cuda/sm90/e4m3_columns.cuh"
#include "fp4moe/kernels/cuda/sm90/gather/tables.cuh"
#include "fp4moe/kernels/cuda/sm90/gather_fp8/params.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

// Whole vectors of BF16.
__device__ bool is_plain(const GatherParams& p) {
  return p.call.x.type == ElementType::bf16 && p.call.x.stride % kVecColumns == 0 &&
         is_aligned16(p.call.x.data);
}

template <Quantization kind, int segments>
__device__ void gather_tokens(const GatherFp8Params& params, const GatherTables& tables) {
  const GatherParams& p = params.gather;
  constexpr bool kHasBlockScales = kind == Quantization::fp8_block128;
  const bool is_batched = p.call.counts != nullptr;
  const std::uint32_t choices = is_batched ? 1 : p.call.top_k;
  const std::uint32_t tokens = is_batched ? p.layer.experts * p.call.capacity : p.call.tokens;
  const std::uint32_t groups = grouped_gemm_fp8::token_blocks(p.layer.w13.k_blocks) * kScaleLanes;
  for (std::uint32_t token = blockIdx.x * kGatherWarps + threadIdx.x / 32; token < tokens;
       token += gridDim.x * kGatherWarps) {
    const std::uint64_t row = token * p.call.x.stride;
    std::uint32_t to_scales = 0;
    const GatherTarget target =
        target_of(p, tables, token, choices, true, [&](const TokenTile& tile, std::uint32_t r) {
          const auto address = E4m3RowAddress::of(tile, r, p.layer.w13.k_blocks, kHasBlockScales);
          to_scales = address.to_scales;
          return address.codes;
        });
    if (__ballot_sync(kFullWarp, target.address.k_block_stride != 0) == 0) continue;
    const auto load = [&](std::uint32_t group) {
      if constexpr (segments != 0) {
        LaneWords result{};
#pragma unroll
        for (std::uint32_t i = 0; i < kLaneVecs; ++i) {
          const std::uint32_t column = group * kLaneColumns + i * kVecColumns;
          if (column < p.layer.hidden)
            result.vecs[i] = ld_global_no_allocate_16(
                static_cast<const std::uint16_t*>(p.call.x.data) + row + column);
        }
        return result;
      } else {
        LaneValues result;
#pragma unroll
        for (std::uint32_t i = 0; i < kLaneVecs; ++i)
          result.vecs[i] = load_token_columns(p.call, p.layer, row, group * kLaneVecs + i);
        return result;
      }
    };
    const auto store = [&](std::uint32_t group, const LaneCodes& codes, float scale) {
      for (std::uint32_t j = 0; j < choices; ++j) {
        const E4m3RowAddress address{broadcast_row_address(target.address, j),
                                     __shfl_sync(kFullWarp, to_scales, static_cast<int>(j))};
        if (address.codes.k_block_stride == 0 || group >= groups) continue;
        address.store(p.tiles, group, codes);
        if constexpr (kHasBlockScales) address.store_scale(p.tiles, group, scale);
      }
    };
    const float scale = quantize_row<kind, segments>(groups, load, store);
    if constexpr (kind == Quantization::fp8_token)
      if (target.address.k_block_stride != 0) params.token_scales[target.row] = scale;
  }
}
template <Quantization kind>
__device__ void gather_tokens(const GatherFp8Params& params, const GatherTables& tables) {
  const GatherParams& p = params.gather;
  if (is_plain(p) && p.layer.hidden <= kMaxSegments * kWarpColumns &&
      p.layer.hidden % kVecColumns == 0)
    gather_tokens<kind, kMaxSegments>(params, tables);
  else
    gather_tokens<kind, 0>(params, tables);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kGatherThreads, 3)
    fp4moe_sm90_gather_fp8(const __grid_constant__ GatherFp8Params params) {
  extern __shared__ __align__(16) std::uint32_t shared[];
  prefetch_params(params);
  const GatherParams& p = params.gather;
  const GatherTables tables(shared, p.layer.experts, p.tables.rank_of_assignment);
  begin_tables(p, tables);
  if (p.layer.quantization == Quantization::fp8_token)
    gather_tokens<Quantization::fp8_token>(params, tables);
  else
    gather_tokens<Quantization::fp8_block128>(params, tables);
}

}  // namespace fp4moe::kernels::cuda::sm90
