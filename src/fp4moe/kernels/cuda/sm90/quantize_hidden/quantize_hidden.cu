// Quantizes h, which GEMM1 has written in BF16, to E4M3 for GEMM2. A lane has 32 columns.
//
//   role                                                                                    time ─►
//
//   warp: a row   pdl_wait ─► h, BF16 tile ─► amax ─► E4M3 ─► 2 x 16 bytes a lane, scale ─► next
//
// The amax is that of the row, or of 128 columns. Warps do not wait for each other.
#include "fp4moe/kernels/cuda/sm90/e4m3_columns.cuh"
#include "fp4moe/kernels/cuda/sm90/gather/params.hpp"
#include "fp4moe/kernels/cuda/sm90/quantize_hidden/params.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

inline constexpr std::uint32_t kWarps = kQuantizeHiddenThreads / 32;

template <Quantization kind, int segments>
__device__ void quantize_rows(const QuantizeHiddenParams& p, std::uint32_t rows) {
  constexpr bool kHasBlockScales = kind == Quantization::fp8_block128;
  const std::uint32_t groups = grouped_gemm_fp8::token_blocks(p.k_blocks) * kScaleLanes;
  for (std::uint32_t row = blockIdx.x * kWarps + threadIdx.x / 32; row < rows;
       row += gridDim.x * kWarps) {
    const TokenTile tile = p.tables.tiles[p.tables.tile_of_row_group[row / kRowGroup]];
    if (p.tables.assignment_of_row[row] < 0) continue;
    const TileRowAddress from = tile_row_address(tile, row, p.k_blocks);
    const auto to = E4m3RowAddress::of(tile, row, p.k_blocks, kHasBlockScales);
    const auto load = [&](std::uint32_t group) {
      LaneWords result{};
      if (group * kLaneColumns < p.k_blocks * kBlockK)
#pragma unroll
        for (std::uint32_t i = 0; i < kLaneVecs; ++i)
          result.vecs[i] = *reinterpret_cast<const uint4*>(p.h + from.of(group * kLaneVecs + i));
      return result;
    };
    const auto store = [&](std::uint32_t group, const LaneCodes& codes, float scale) {
      if (group >= groups) return;
      to.store(p.tiles, group, codes);
      if constexpr (kHasBlockScales) to.store_scale(p.tiles, group, scale);
    };
    const float scale = quantize_row<kind, segments>(groups, load, store);
    if constexpr (kind == Quantization::fp8_token)
      if (threadIdx.x % 32 == 0) p.token_scales[row] = scale;
  }
}
template <Quantization kind>
__device__ void quantize_rows(const QuantizeHiddenParams& p, std::uint32_t rows) {
  if (p.k_blocks * kBlockK <= kMaxSegments * kWarpColumns)
    quantize_rows<kind, kMaxSegments>(p, rows);
  else
    quantize_rows<kind, 0>(p, rows);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kQuantizeHiddenThreads, 3)
    fp4moe_sm90_quantize_hidden(const __grid_constant__ QuantizeHiddenParams p) {
  pdl_launch_dependents();
  prefetch_params(p);
  pdl_wait();
  const std::uint32_t tiles = p.tables.tile_count[0];
  if (tiles == 0) return;
  const TokenTile last = p.tables.tiles[tiles - 1];
  const std::uint32_t rows = last.first_row + last.rows;
  if (p.quantization == Quantization::fp8_token)
    quantize_rows<Quantization::fp8_token>(p, rows);
  else
    quantize_rows<Quantization::fp8_block128>(p, rows);
}

}  // namespace fp4moe::kernels::cuda::sm90
