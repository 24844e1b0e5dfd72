// FP4 weights on their way to the tensor cores: a word of native_sm90 holds eight codes with their
// bits where shifts and a mask make four pairs of BF16 numbers of them, each 2^-126 times its value
// (0.5 is a subnormal). One multiplication by scale * 2^126 makes them normal and scales them, both
// exactly.
//
// A record is 64 rows x 64 columns: four blocks of 16 rows (512 bytes; lane l of the warp that owns
// a block has 16 bytes, a word for each 16 columns), then the scales: for each block and row g of
// eight, the scales of rows g and g + 8 for each group of columns in turn.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/ptx.cuh"

namespace fp4moe::kernels::cuda::sm90 {

// One number of a pair in both places: multiplications take it so at no cost.
__device__ inline std::uint32_t lower_twice(std::uint32_t pair) {
  std::uint32_t made;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low}; }"
      : "=r"(made)
      : "r"(pair));
  return made;
}
__device__ inline std::uint32_t upper_twice(std::uint32_t pair) {
  std::uint32_t made;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high}; }"
      : "=r"(made)
      : "r"(pair));
  return made;
}

// The A fragment of a 16 x 16 block: rows g and g + 8 by turns, first and second half of columns.
struct Fragment {
  std::uint32_t a0, a1, a2, a3;
};

// A word without its scales: 2^-126 times the code's value, for tokens that are 2^64 times theirs
// (products of both are float32 numbers well inside its range). Scales then multiply sums, a few
// instead of all weights. Where two shifts meet, either brings some of the bits; what else they
// bring was XORed into the word beforehand (layout/word_code.hpp), so that one mask does. Shifts to
// the left take the unit of multiplications, all else that of logic: both have about as much to do.
__device__ inline Fragment plain_fragment(std::uint32_t word) {
  constexpr std::uint32_t kMask = 0x81C081C0u;
  return {word & kMask, (word << 6) & kMask, __funnelshift_r(word, word, 4) & kMask,
          ((word << 2) ^ (word >> 6)) & kMask};
}
inline constexpr float kLower = 0x1p-64f;

// `scales`: of rows g and g + 8.
__device__ inline Fragment fragment(std::uint32_t word, std::uint32_t scales) {
  const Fragment plain = plain_fragment(word);
  const std::uint32_t scale = lower_twice(scales), scale8 = upper_twice(scales);
  return {mul_bf16x2(plain.a0, scale), mul_bf16x2(plain.a1, scale8), mul_bf16x2(plain.a2, scale),
          mul_bf16x2(plain.a3, scale8)};
}

// A warp's 16 rows times 8 tokens.
__device__ inline void multiply_eight(float* sums, const Fragment& f, std::uint32_t b0,
                                      std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(f.a0), "r"(f.a1), "r"(f.a2), "r"(f.a3), "r"(b0), "r"(b1));
}

// E8M0, rebiased: the byte is the exponent of a BF16 number.
struct Mxfp4 {
  static constexpr bool kIsNvfp4 = false;
  static constexpr std::uint32_t kRecord = 2176;
  static constexpr std::uint32_t kRowScales = 4;  // bytes of a row pair
  using Scales = std::uint32_t;

  __device__ static Scales load(std::uint32_t at) { return ld_shared_4(at); }
  // Of step `step` (16 columns): rows g and g + 8.
  template <int step>
  __device__ static std::uint32_t scale(Scales scales) {
    return __byte_perm(scales, 0, step < 2 ? 0x4140 : 0x4342) * 128;
  }
  // As float32, of `group` (32 columns). A multiplication takes the units that logic leaves idle.
  template <int group, int half>
  __device__ static float sum_scale(Scales scales) {
    constexpr std::uint32_t kTake = 0x4440u | (group * 2 + half);
    return __uint_as_float(__byte_perm(scales, 0, kTake) * (1u << 23));
  }
};

// Five bits of exponent, three of mantissa.
struct Nvfp4 {
  static constexpr bool kIsNvfp4 = true;
  static constexpr std::uint32_t kRecord = 2304;
  static constexpr std::uint32_t kRowScales = 8;
  using Scales = uint2;

  __device__ static Scales load(std::uint32_t at) { return ld_shared_8(at); }
  template <int step>
  __device__ static std::uint32_t scale(Scales scales) {
    const std::uint32_t four = step < 2 ? scales.x : scales.y;
    return __byte_perm(four, 0, step % 2 == 0 ? 0x4140 : 0x4342) * 16 + 0x70007000u;
  }
};

// What a lane holds of a record.
template <class Format>
struct Block {
  uint4 words;
  typename Format::Scales scales;

  // `record` in shared memory, `warp` of the warpgroup.
  __device__ static Block load(std::uint32_t record, std::uint32_t warp, std::uint32_t lane) {
    return {ld_shared_16(record + warp * 512 + lane * 16),
            Format::load(record + 2048 + (warp * 8 + lane / 4) * Format::kRowScales)};
  }
  template <int step>
  __device__ Fragment at() const {
    const std::uint32_t word = step == 0   ? words.x
                               : step == 1 ? words.y
                               : step == 2 ? words.z
                                           : words.w;
    return fragment(word, Format::template scale<step>(scales));
  }
};

// A warp's 16 rows of a record and `eights` times 8 tokens of a unit, for the warp's own tensor
// instructions: with so few tokens they need fewer instructions than a warpgroup's.
__device__ inline std::uint32_t matrix_row(std::uint32_t lane) {
  return lane % 8 * 128 + (lane / 8 ^ lane % 8) * 16;
}
template <class Format, int eights>
struct Operands {
  Block<Format> block;
  uint4 low[eights], high[eights];

  // `tokens` is the address of the unit's tokens, `row` what matrix_row says.
  __device__ void load(std::uint32_t record, std::uint32_t warp, std::uint32_t lane,
                       std::uint32_t tokens, std::uint32_t row) {
    block = Block<Format>::load(record, warp, lane);
#pragma unroll
    for (int e = 0; e < eights; ++e) {
      low[e] = ldmatrix_x4(tokens + e * 1024 + row);
      high[e] = ldmatrix_x4(tokens + e * 1024 + (row ^ 64));
    }
  }
  // Tokens are raised by 2^64; E8M0 scales multiply the sums of their 32 columns.
  __device__ void multiply_raised(float* sums) const {
    static_assert(!Format::kIsNvfp4);
    multiply_group<0>(sums, plain_fragment(block.words.x), plain_fragment(block.words.y), low);
    multiply_group<1>(sums, plain_fragment(block.words.z), plain_fragment(block.words.w), high);
  }
  template <int group>
  __device__ void multiply_group(float* sums, const Fragment& first, const Fragment& second,
                                 const uint4 (&tokens)[eights]) const {
#pragma unroll
    for (int e = 0; e < eights; ++e) {
      float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      multiply_eight(part, first, tokens[e].x, tokens[e].y);
      multiply_eight(part, second, tokens[e].z, tokens[e].w);
      add_scaled<group>(sums + 4 * e, part);
    }
  }
  template <int group>
  __device__ void add_scaled(float* sums, const float (&part)[4]) const {
    const float scale = Format::template sum_scale<group, 0>(block.scales);
    const float scale8 = Format::template sum_scale<group, 1>(block.scales);
    sums[0] = fmaf(part[0], scale, sums[0]);
    sums[1] = fmaf(part[1], scale, sums[1]);
    sums[2] = fmaf(part[2], scale8, sums[2]);
    sums[3] = fmaf(part[3], scale8, sums[3]);
  }
  __device__ void multiply(float* sums) const {
    const Fragment f0 = block.template at<0>();
#pragma unroll
    for (int e = 0; e < eights; ++e) multiply_eight(sums + 4 * e, f0, low[e].x, low[e].y);
    const Fragment f1 = block.template at<1>();
#pragma unroll
    for (int e = 0; e < eights; ++e) multiply_eight(sums + 4 * e, f1, low[e].z, low[e].w);
    const Fragment f2 = block.template at<2>();
#pragma unroll
    for (int e = 0; e < eights; ++e) multiply_eight(sums + 4 * e, f2, high[e].x, high[e].y);
    const Fragment f3 = block.template at<3>();
#pragma unroll
    for (int e = 0; e < eights; ++e) multiply_eight(sums + 4 * e, f3, high[e].z, high[e].w);
  }
};

}  // namespace fp4moe::kernels::cuda::sm90
