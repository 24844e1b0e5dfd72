// The largest block scale of every row of MXFP4 weights, and how many rows span more block scales than
// E4M3 holds. Blocks whose codes are all zero do not count: any scale makes zeros of them.
//
//   role                                                                                       time ─►
//
//   block: an M block
//     thread: a row         K block 0: codes of 2 blocks ─► [all 0?] ─► max, min ─► K block 1 ─► ... ─┐
//                                                                       row_scales[row], wide_rows ◄─┘
//
// Threads do not wait for each other.
#include "fp4moe/kernels/cuda/sm90/grouped_gemm_fp8/shape.hpp"
#include "fp4moe/kernels/cuda/sm90/row_scales/params.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

// True if the word has a code of row g (`is_g8`: g + 8) whose magnitude is not 0: see
// unscaled_fragment for the bits.
__device__ bool has_magnitude(std::uint32_t word, bool is_g8) {
  if (!is_g8) return (word & 0x1DC01DC0u) != 0;
  return ((word & 0x00070007u) | ((word ^ word >> 8) & 0x00700070u)) != 0;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kRowScalesThreads)
    fp4moe_sm90_row_scales(const __grid_constant__ RowScalesParams p) {
  constexpr std::uint32_t kTileBytes = weight_tile_bytes(false);
  constexpr std::uint32_t kNoWeights = 254;
  const std::uint32_t row = threadIdx.x, warp = row / 16, g = row % 8;
  const bool is_g8 = row % 16 >= 8;
  const std::uint8_t* tile = p.tiles + std::uint64_t{blockIdx.x} * p.k_blocks * kTileBytes;
  std::uint32_t largest = 0, smallest = 255;
  for (std::uint32_t k_block = 0; k_block < p.k_blocks; ++k_block, tile += kTileBytes) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(tile + warp * 512 + g * 64);
    const std::uint8_t* scales = tile + kTileCodeBytes + (warp * 8 + g) * 4 + (is_g8 ? 1 : 0);
    for (std::uint32_t group = 0; group < 2; ++group) {
      bool is_used = false;
      for (std::uint32_t j = 0; j < 4; ++j)
        for (std::uint32_t step = 0; step < 2; ++step)
          is_used = is_used || has_magnitude(words[j * 4 + group * 2 + step], is_g8);
      if (!is_used) continue;
      const std::uint32_t scale = scales[group * 2];
      largest = max(largest, scale);
      smallest = min(smallest, scale);
    }
  }
  const bool is_zero = smallest > largest;
  p.largest[blockIdx.x * kBlockM + row] = static_cast<std::uint8_t>(is_zero ? kNoWeights : largest);
  if (!is_zero && (largest - smallest > grouped_gemm_fp8::kMaxScaleSpan ||
                   largest < grouped_gemm_fp8::kMinRowScale))
    atomicAdd(p.wide_rows, 1u);
}

}  // namespace fp4moe::kernels::cuda::sm90
