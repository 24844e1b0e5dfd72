// Activations rounded to what a backend's kernels would compute with, and read back: the same bits
// as moe/quantised_rows.cpp. A factor that all values share is left out: it multiplies sums.
//
//   kind           block   rounded to   scale of a block                 shared factor
//   mxfp8          32      e4m3         e8m0, ceil(log2(amax / 448))     1
//   mxfp4          32      e2m1         e8m0, "even"                     1
//   nvfp4          16      e2m1         e4m3 of G amax / 6               1 / G
//   fp8_static     -       e4m3         -                                the scale
//   fp8_block128   128     e4m3         amax / 448                       1
//   fp8_token      row     e4m3         amax / 448                       1
//
// Who calls computes the maximum of a block's magnitudes with magnitude_bits and amax_of. Divisions
// are IEEE's: nothing here may be compiled with fast arithmetic.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/numbers.cuh"

namespace fp4moe::kernels::cuda::sm90 {

// Values that share a scale. 0: those of a row; 1: no maximum is needed.
__host__ __device__ constexpr std::uint32_t quantise_block(Quantise kind) {
  switch (kind) {
    case Quantise::nvfp4:
      return 16;
    case Quantise::mxfp8:
    case Quantise::mxfp4:
      return 32;
    case Quantise::fp8_block128:
      return 128;
    case Quantise::fp8_token:
      return 0;
    case Quantise::none:
    case Quantise::fp8_static:
      break;
  }
  return 1;
}

// The kind, told to the compiler: it has code for each.
template <Quantise kind>
struct Kind {
  static constexpr Quantise value = kind;
};
template <class Use>
__device__ inline auto with_kind(Quantise kind, const Use& use) {
  switch (kind) {
    case Quantise::mxfp8:
      return use(Kind<Quantise::mxfp8>{});
    case Quantise::mxfp4:
      return use(Kind<Quantise::mxfp4>{});
    case Quantise::nvfp4:
      return use(Kind<Quantise::nvfp4>{});
    case Quantise::fp8_static:
      return use(Kind<Quantise::fp8_static>{});
    case Quantise::fp8_block128:
      return use(Kind<Quantise::fp8_block128>{});
    case Quantise::fp8_token:
      return use(Kind<Quantise::fp8_token>{});
    case Quantise::none:
      break;
  }
  return use(Kind<Quantise::none>{});
}

__device__ inline float shared_factor(Quantise kind, float global) {
  if (kind == Quantise::nvfp4) return __frcp_rn(global);
  return kind == Quantise::fp8_static ? global : 1.0f;
}
// What all blocks have in common: it is computed once.
struct SharedScale {
  float global = 1.0f, factor = 1.0f;
};
__device__ inline SharedScale shared_scale(Quantise kind, float global) {
  return {global, shared_factor(kind, global)};
}

// What a block's values are multiplied by (divided by, in FP8 with a float32 scale) before they are
// rounded, and what multiplies them after.
struct BlockScale {
  float before = 1.0f, after = 1.0f;
};

// 2^(code - 127), code 0 to 254, and its inverse.
__device__ inline float power_of_scale(std::uint32_t code) {
  return __uint_as_float(code == 0 ? 0x00400000u : code << 23);
}
__device__ inline float inverse_of_scale(std::uint32_t code) {
  return __uint_as_float(code == 254 ? 0x00400000u : (254 - code) << 23);
}

// E8M0 codes: 0 turns all values into zeros, 255 into NaN.
__device__ inline BlockScale mx_block_scale(std::uint32_t code) {
  if (code == 255) return {0.0f, __uint_as_float(kNanBits)};
  return {code == 0 ? 0.0f : inverse_of_scale(code), power_of_scale(code)};
}

__device__ inline BlockScale block_scale(Quantise kind, float amax, SharedScale shared) {
  switch (kind) {
    case Quantise::mxfp8: {
      const std::uint32_t ratio = __float_as_uint(__fdiv_rn(amax, 448.0f));
      return mx_block_scale(is_nan(amax) ? 0 : (ratio + 0x7FFFFFu) >> 23 & 0xFFu);
    }
    case Quantise::mxfp4: {
      const std::uint32_t bits = is_nan(amax) ? kNanBits : __float_as_uint(amax);
      const std::uint32_t exponent = (bits + 0x200000u) >> 23 & 0xFFu;
      return mx_block_scale(exponent < 2 ? 0 : exponent - 2);
    }
    case Quantise::nvfp4: {
      constexpr float kReciprocalOf6 = 1.0f / 6.0f;
      const float scale =
          rounded_to_e4m3(__fmul_rn(shared.global, __fmul_rn(amax, kReciprocalOf6)));
      if (scale == 0.0f) return {0.0f, scale};
      return {__frcp_rn(__fmul_rn(scale, shared.factor)), scale};
    }
    case Quantise::fp8_static:
      return {shared.global, 1.0f};
    case Quantise::fp8_block128:
    case Quantise::fp8_token: {
      const float scale = amax > 0.0f ? __fdiv_rn(amax, 448.0f) : 1.0f;
      return {scale, scale};
    }
    case Quantise::none:
      break;
  }
  return {};
}

// What exceeds float32 becomes its largest number; NaN stays.
__device__ inline float held_finite(float x) {
  constexpr float kLargest = 3.402823466e+38f;
  return x > kLargest ? kLargest : x < -kLargest ? -kLargest : x;
}

__device__ inline float quantised(Quantise kind, float value, BlockScale scale) {
  switch (kind) {
    case Quantise::mxfp8:
      return held_finite(__fmul_rn(rounded_to_e4m3(__fmul_rn(value, scale.before)), scale.after));
    case Quantise::mxfp4:
      return held_finite(__fmul_rn(rounded_to_e2m1(__fmul_rn(value, scale.before)), scale.after));
    case Quantise::nvfp4:
      return __fmul_rn(rounded_to_e2m1(__fmul_rn(value, scale.before)), scale.after);
    case Quantise::fp8_static:
    case Quantise::fp8_block128:
    case Quantise::fp8_token:
      return __fmul_rn(rounded_to_e4m3(__fdiv_rn(value, scale.before)), scale.after);
    case Quantise::none:
      break;
  }
  return value;
}

// One value of a block whose maximum of magnitudes is `amax`. Quantise::none: as it is.
__device__ inline float quantised(Quantise kind, float value, float amax, float global) {
  return quantised(kind, value, block_scale(kind, amax, shared_scale(kind, global)));
}

// Of expert `expert`; 1 where none are read.
__device__ inline float scale_of(const float* scales, bool is_each, std::uint32_t expert) {
  if (scales == nullptr) return 1.0f;
  return scales[is_each ? expert : 0];
}
__device__ inline float input_scale(const Layer& layer, std::uint32_t expert) {
  return scale_of(layer.input_scales, layer.input_scales_each != 0, expert);
}
__device__ inline float hidden_scale(const Layer& layer, std::uint32_t expert) {
  return scale_of(layer.hidden_scales, layer.hidden_scales_each != 0, expert);
}

// What multiplies sums over quantised values: the shared factor, unless values already took it.
__device__ inline float sum_factor(const Layer& layer, float global) {
  return layer.activations_in_bf16 != 0 ? 1.0f : shared_factor(layer.quantise, global);
}

}  // namespace fp4moe::kernels::cuda::sm90
