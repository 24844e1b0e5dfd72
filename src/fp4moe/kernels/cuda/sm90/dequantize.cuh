// FP4 weights to BF16, in registers, on their way to the tensor cores.
//
// A weight tile is 64 rows x 64 columns: four blocks of 16 rows, 512 bytes each, then the block
// scales. Lane l of the warp that owns a block has 16 bytes of it, one word for each 16 columns (one
// k step). The scales follow for each block and each g of 0 to 7: those of rows g and g + 8,
// alternating, for each scale group of columns.
//
//   word, 8 codes ── shifts, one mask ──► 4 pairs of BF16, 2^-126 times their value (0.5 is subnormal)
//                 ── * scale * 2^126 ───► 4 pairs of BF16, exact
//
// With few tokens the second step is left out: tokens are prescaled by 2^64 instead, the products
// stay well inside the range of float32, and block scales multiply the accumulators of their 32
// columns. These are fewer than the weights.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90 {

// A word without its scales, 2^-126 times the values. Where two shifts meet, either brings some of
// the bits. The other bits that they bring were XORed into the word beforehand
// (layout/word_code.hpp), so one mask is enough. Left shifts run on the multiplier, everything else
// on the logic unit: both are about equally busy.
__device__ inline AFragment unscaled_fragment(std::uint32_t word) {
  constexpr std::uint32_t kMask = 0x81C081C0u;
  return {word & kMask, (word << 6) & kMask, __funnelshift_r(word, word, 4) & kMask,
          ((word << 2) ^ (word >> 6)) & kMask};
}
inline constexpr float kInversePrescale = 0x1p-64f;

// `scales`: of rows g and g + 8, times 2^126.
__device__ inline AFragment dequantize(std::uint32_t word, std::uint32_t scales) {
  const AFragment unscaled = unscaled_fragment(word);
  const std::uint32_t scale = broadcast_low_bf16(scales), scale8 = broadcast_high_bf16(scales);
  return {mul_bf16x2(unscaled.a0, scale), mul_bf16x2(unscaled.a1, scale8),
          mul_bf16x2(unscaled.a2, scale), mul_bf16x2(unscaled.a3, scale8)};
}

// Block scales are E8M0, rebiased: the byte is the exponent of a BF16 number.
struct Mxfp4 {
  static constexpr bool kIsNvfp4 = false;
  static constexpr std::uint32_t kTileBytes = weight_tile_bytes(false);
  static constexpr std::uint32_t kRowPairScaleBytes = 4;
  using Scales = std::uint32_t;

  __device__ static Scales load(std::uint32_t at) { return ld_shared_4(at); }
  __device__ static Scales load(const std::uint8_t* from) { return ld_global_nc_4(from); }
  // One k step (16 columns): rows g and g + 8 as BF16.
  template <int step>
  __device__ static std::uint32_t scale(Scales scales) {
    return __byte_perm(scales, 0, step < 2 ? 0x4140 : 0x4342) * 128;
  }
  // The scale of a scale group (32 columns) and row g (half 0) or g + 8 (half 1), as float32. The
  // multiplication runs on the unit that the shifts leave idle.
  template <int group, int half>
  __device__ static float accumulator_scale(Scales scales) {
    constexpr std::uint32_t kSelect = 0x4440u | (group * 2 + half);
    return __uint_as_float(__byte_perm(scales, 0, kSelect) * (1u << 23));
  }
};

// Block scales have five bits of exponent and three of mantissa.
struct Nvfp4 {
  static constexpr bool kIsNvfp4 = true;
  static constexpr std::uint32_t kTileBytes = weight_tile_bytes(true);
  static constexpr std::uint32_t kRowPairScaleBytes = 8;
  using Scales = uint2;

  __device__ static Scales load(std::uint32_t at) { return ld_shared_8(at); }
  __device__ static Scales load(const std::uint8_t* from) { return ld_global_nc_8(from); }
  template <int step>
  __device__ static std::uint32_t scale(Scales scales) {
    const std::uint32_t four = step < 2 ? scales.x : scales.y;
    return __byte_perm(four, 0, step % 2 == 0 ? 0x4140 : 0x4342) * 16 + 0x70007000u;
  }
};

// The part of a weight tile that a lane holds.
template <class Format>
struct LaneWeights {
  uint4 words;
  typename Format::Scales scales;

  // `tile`: its address in shared memory; `warp`: of the warpgroup.
  __device__ static LaneWeights load(std::uint32_t tile, std::uint32_t warp, std::uint32_t lane) {
    return {
        ld_shared_16(tile + warp * 512 + lane * 16),
        Format::load(tile + kTileCodeBytes + (warp * 8 + lane / 4) * Format::kRowPairScaleBytes)};
  }
  template <int step>
  __device__ AFragment dequantize_step() const {
    const std::uint32_t word = step == 0   ? words.x
                               : step == 1 ? words.y
                               : step == 2 ? words.z
                                           : words.w;
    return dequantize(word, Format::template scale<step>(scales));
  }
};

// Operands of mma.sync for one K block: a warp's 16 rows of a weight tile and n_groups * 8 tokens.
// For few tokens mma.sync takes fewer instructions than wgmma.
__device__ inline std::uint32_t ldmatrix_row_offset(std::uint32_t lane) {
  return lane % 8 * 128 + (lane / 8 ^ lane % 8) * 16;
}
template <class Format, int n_groups>
struct MmaOperands {
  LaneWeights<Format> weights;
  uint4 low[n_groups], high[n_groups];  // tokens: the first and the second 32 columns

  // `tokens`: address of the tokens of the K block; `row`: ldmatrix_row_offset.
  __device__ void load(std::uint32_t tile, std::uint32_t warp, std::uint32_t lane,
                       std::uint32_t tokens, std::uint32_t row) {
    weights = LaneWeights<Format>::load(tile, warp, lane);
    load_tokens(tokens, row);
  }
  __device__ void load_tokens(std::uint32_t tokens, std::uint32_t row) {
#pragma unroll
    for (int n = 0; n < n_groups; ++n) {
      low[n] = ldmatrix_x4(tokens + n * 1024 + row);
      high[n] = ldmatrix_x4(tokens + n * 1024 + (row ^ 64));
    }
  }
  // For prescaled tokens: E8M0 scales multiply the accumulators of their 32 columns.
  __device__ void mma_prescaled(float* sums) const {
    static_assert(!Format::kIsNvfp4);
    mma_scale_group<0>(sums, unscaled_fragment(weights.words.x), unscaled_fragment(weights.words.y),
                       low);
    mma_scale_group<1>(sums, unscaled_fragment(weights.words.z), unscaled_fragment(weights.words.w),
                       high);
  }
  template <int group>
  __device__ void mma_scale_group(float* sums, const AFragment& first, const AFragment& second,
                                  const uint4 (&tokens)[n_groups]) const {
#pragma unroll
    for (int n = 0; n < n_groups; ++n) {
      float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      mma_m16n8k16(part, first, tokens[n].x, tokens[n].y);
      mma_m16n8k16(part, second, tokens[n].z, tokens[n].w);
      add_scaled<group>(sums + 4 * n, part);
    }
  }
  template <int group>
  __device__ void add_scaled(float* sums, const float (&part)[4]) const {
    const float scale = Format::template accumulator_scale<group, 0>(weights.scales);
    const float scale8 = Format::template accumulator_scale<group, 1>(weights.scales);
    sums[0] = fmaf(part[0], scale, sums[0]);
    sums[1] = fmaf(part[1], scale, sums[1]);
    sums[2] = fmaf(part[2], scale8, sums[2]);
    sums[3] = fmaf(part[3], scale8, sums[3]);
  }
  __device__ void mma(float* sums) const {
    const AFragment a0 = weights.template dequantize_step<0>();
#pragma unroll
    for (int n = 0; n < n_groups; ++n) mma_m16n8k16(sums + 4 * n, a0, low[n].x, low[n].y);
    const AFragment a1 = weights.template dequantize_step<1>();
#pragma unroll
    for (int n = 0; n < n_groups; ++n) mma_m16n8k16(sums + 4 * n, a1, low[n].z, low[n].w);
    const AFragment a2 = weights.template dequantize_step<2>();
#pragma unroll
    for (int n = 0; n < n_groups; ++n) mma_m16n8k16(sums + 4 * n, a2, high[n].x, high[n].y);
    const AFragment a3 = weights.template dequantize_step<3>();
#pragma unroll
    for (int n = 0; n < n_groups; ++n) mma_m16n8k16(sums + 4 * n, a3, high[n].z, high[n].w);
  }
};

}  // namespace fp4moe::kernels::cuda::sm90
