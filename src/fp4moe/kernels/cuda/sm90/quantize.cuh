// Activations are quantized as a backend's kernels do it, and dequantized: the same bits as
// moe/quantized_rows.cpp. A factor that all values share is not applied here; it multiplies the
// accumulators.
//
//   kind                block   rounded to   scale of a block                 shared factor
//   mxfp8               32      e4m3         e8m0, ceil(log2(amax / 448))     1
//   mxfp4               32      e2m1         e8m0, "even"                     1
//   nvfp4               16      e2m1         e4m3 of G amax / 6               1 / G
//   fp8_static_tensor   -       e4m3         -                                the scale
//   fp8_block128        128     e4m3         amax / 448                       1
//   fp8_token           row     e4m3         amax / 448                       1
//
// Callers compute the amax of a block with magnitude_bits and amax_of. Divisions are IEEE divisions:
// this file must not be compiled with fast math.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/elements.cuh"

namespace fp4moe::kernels::cuda::sm90 {

// Values that share a scale. 0: a row; 1: no amax is needed.
__host__ __device__ constexpr std::uint32_t quantization_block(Quantization kind) {
  switch (kind) {
    case Quantization::nvfp4:
      return 16;
    case Quantization::mxfp8:
    case Quantization::mxfp4:
      return 32;
    case Quantization::fp8_block128:
      return 128;
    case Quantization::fp8_token:
      return 0;
    case Quantization::none:
    case Quantization::fp8_static_tensor:
      break;
  }
  return 1;
}

// Calls use(QuantizationTag<kind>) so that the kind is known at compile time.
template <Quantization kind>
struct QuantizationTag {
  static constexpr Quantization value = kind;
};
template <class Use>
__device__ inline auto dispatch_quantization(Quantization kind, const Use& use) {
  switch (kind) {
    case Quantization::mxfp8:
      return use(QuantizationTag<Quantization::mxfp8>{});
    case Quantization::mxfp4:
      return use(QuantizationTag<Quantization::mxfp4>{});
    case Quantization::nvfp4:
      return use(QuantizationTag<Quantization::nvfp4>{});
    case Quantization::fp8_static_tensor:
      return use(QuantizationTag<Quantization::fp8_static_tensor>{});
    case Quantization::fp8_block128:
      return use(QuantizationTag<Quantization::fp8_block128>{});
    case Quantization::fp8_token:
      return use(QuantizationTag<Quantization::fp8_token>{});
    case Quantization::none:
      break;
  }
  return use(QuantizationTag<Quantization::none>{});
}

__device__ inline float shared_factor(Quantization kind, float global) {
  if (kind == Quantization::nvfp4) return __frcp_rn(global);
  return kind == Quantization::fp8_static_tensor ? global : 1.0f;
}
// Values that all blocks share. They are computed once.
struct SharedScale {
  float global = 1.0f, factor = 1.0f;
};
__device__ inline SharedScale shared_scale(Quantization kind, float global) {
  return {global, shared_factor(kind, global)};
}

// Values of a block are multiplied by `before` (FP8 with a float32 scale: divided by it), rounded,
// and multiplied by `after`.
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

// The factor of an E8M0 code. Code 0 makes all values 0, code 255 makes them NaN.
__device__ inline BlockScale mx_block_scale(std::uint32_t code) {
  if (code == 255) return {0.0f, __uint_as_float(kNanBits)};
  return {code == 0 ? 0.0f : inverse_of_scale(code), power_of_scale(code)};
}

__device__ inline BlockScale block_scale(Quantization kind, float amax, SharedScale shared) {
  switch (kind) {
    case Quantization::mxfp8: {
      const std::uint32_t ratio = __float_as_uint(__fdiv_rn(amax, 448.0f));
      return mx_block_scale(is_nan(amax) ? 0 : (ratio + 0x7FFFFFu) >> 23 & 0xFFu);
    }
    case Quantization::mxfp4: {
      const std::uint32_t bits = is_nan(amax) ? kNanBits : __float_as_uint(amax);
      const std::uint32_t exponent = (bits + 0x200000u) >> 23 & 0xFFu;
      return mx_block_scale(exponent < 2 ? 0 : exponent - 2);
    }
    case Quantization::nvfp4: {
      constexpr float kReciprocalOf6 = 1.0f / 6.0f;
      const float scale = round_to_e4m3(__fmul_rn(shared.global, __fmul_rn(amax, kReciprocalOf6)));
      if (scale == 0.0f) return {0.0f, scale};
      return {__frcp_rn(__fmul_rn(scale, shared.factor)), scale};
    }
    case Quantization::fp8_static_tensor:
      return {shared.global, 1.0f};
    case Quantization::fp8_block128:
    case Quantization::fp8_token: {
      const float scale = amax > 0.0f ? __fdiv_rn(amax, 448.0f) : 1.0f;
      return {scale, scale};
    }
    case Quantization::none:
      break;
  }
  return {};
}

// Values beyond the range of float32 become its largest number. NaN stays.
__device__ inline float clamp_finite(float x) {
  constexpr float kLargest = 3.402823466e+38f;
  return x > kLargest ? kLargest : x < -kLargest ? -kLargest : x;
}

__device__ inline float quantize_dequantize(Quantization kind, float value, BlockScale scale) {
  switch (kind) {
    case Quantization::mxfp8:
      return clamp_finite(__fmul_rn(round_to_e4m3(__fmul_rn(value, scale.before)), scale.after));
    case Quantization::mxfp4:
      return clamp_finite(__fmul_rn(round_to_e2m1(__fmul_rn(value, scale.before)), scale.after));
    case Quantization::nvfp4:
      return __fmul_rn(round_to_e2m1(__fmul_rn(value, scale.before)), scale.after);
    case Quantization::fp8_static_tensor:
    case Quantization::fp8_block128:
    case Quantization::fp8_token:
      return __fmul_rn(round_to_e4m3(__fdiv_rn(value, scale.before)), scale.after);
    case Quantization::none:
      break;
  }
  return value;
}

// One value of a block with this amax. Quantization::none: unchanged.
__device__ inline float quantize_dequantize(Quantization kind, float value, float amax,
                                            float global) {
  return quantize_dequantize(kind, value, block_scale(kind, amax, shared_scale(kind, global)));
}

// The scale of an expert; 1 if there are none.
__device__ inline float scale_of(const float* scales, bool is_each, std::uint32_t expert) {
  if (scales == nullptr) return 1.0f;
  return scales[is_each ? expert : 0];
}
__device__ inline float input_scale(const LayerParams& layer, std::uint32_t expert) {
  return scale_of(layer.input_scales, layer.input_scales_each != 0, expert);
}
__device__ inline float hidden_scale(const LayerParams& layer, std::uint32_t expert) {
  return scale_of(layer.hidden_scales, layer.hidden_scales_each != 0, expert);
}

// The factor of accumulators over quantized values: the shared factor, unless the values contain
// it already.
__device__ inline float sum_factor(const LayerParams& layer, float global) {
  return layer.activations_in_bf16 != 0 ? 1.0f : shared_factor(layer.quantization, global);
}

}  // namespace fp4moe::kernels::cuda::sm90
