// Elements in memory (bf16, f16, f32) to float32 and back, and rounding to small formats. Magnitudes
// are compared as integers: NaN is the largest and is never lost.
#pragma once
#include <cstdint>

#include <cuda_fp16.h>

#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90 {

inline constexpr std::uint32_t kInfinityBits = 0x7F800000u;
inline constexpr std::uint32_t kNanBits = 0x7FC00000u;

__device__ inline float infinity() { return __uint_as_float(kInfinityBits); }
__device__ inline bool is_nan(float x) { return x != x; }
__device__ inline bool is_finite(float x) {
  return (__float_as_uint(x) & kInfinityBits) != kInfinityBits;
}

// The two halves of a word of BF16.
__device__ inline float low_bf16(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_bf16(std::uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}
__device__ inline std::uint16_t to_bf16(float x) { return cvt_bf16(x); }
__device__ inline float round_to_bf16(float x) { return low_bf16(to_bf16(x)); }

__device__ inline float from_f16(std::uint16_t code) {
  return __half2float(__ushort_as_half(code));
}
__device__ inline std::uint16_t to_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }
__device__ inline float round_to_f16(float x) { return from_f16(to_f16(x)); }

__device__ inline float round_to(ElementType type, float x) {
  if (type == ElementType::bf16) return round_to_bf16(x);
  return type == ElementType::f16 ? round_to_f16(x) : x;
}

__host__ __device__ inline std::uint32_t bytes_of(ElementType type) {
  return type == ElementType::f32 ? 4 : 2;
}

// Element `index` of an array.
__device__ inline float load_element(const void* data, ElementType type, std::uint64_t index) {
  if (type == ElementType::f32) return static_cast<const float*>(data)[index];
  const std::uint16_t code = static_cast<const std::uint16_t*>(data)[index];
  return type == ElementType::bf16 ? low_bf16(code) : from_f16(code);
}
__device__ inline void store_element(void* data, ElementType type, std::uint64_t index, float x) {
  if (type == ElementType::f32)
    static_cast<float*>(data)[index] = x;
  else
    static_cast<std::uint16_t*>(data)[index] = type == ElementType::bf16 ? to_bf16(x) : to_f16(x);
}

// Integers in the order of magnitudes.
__device__ inline std::uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }
// The maximum of magnitude_bits as a number; NaN if there was a NaN.
__device__ inline float amax_of(std::uint32_t max_abs_bits) {
  return __uint_as_float(max_abs_bits > kInfinityBits ? kNanBits : max_abs_bits);
}

// To E4M3 and back: to nearest, ties to even, saturating. NaN stays. In software a step is an eighth of
// the power of two at or below the number, at least 2^-9, and rounding is as for E2M1 below.
__device__ inline float round_to_e4m3(float x) {
#ifdef FP4MOE_HAS_E4M3
  return from_f16(cvt_e4m3_f16(x));
#else
  constexpr std::uint32_t kMinNormal = 0x3C800000u;  // 2^-6
  constexpr float kTimes = 1.5f * 1048576.0f;        // times the power of two: 1.5 * 2^23 steps
  if (is_nan(x)) return x;
  const float size = fminf(fabsf(x), 448.0f);
  const float power = __uint_as_float(max(__float_as_uint(size), kMinNormal) & kInfinityBits);
  return copysignf(__fmaf_rn(power, -kTimes, __fmaf_rn(power, kTimes, size)), x);
#endif
}

// To E2M1 and back: to nearest, ties to even, saturating. NaN becomes 6 or -6; the scale of its block
// is NaN. A step is half the power of two at or below the number, at least 1/2. Adding 1.5 * 2^23
// steps and subtracting them rounds to a step.
__device__ inline float round_to_e2m1(float x) {
  constexpr std::uint32_t kOne = 0x3F800000u;
  constexpr float kTimes = 1.5f * 4194304.0f;  // times the power of two: 1.5 * 2^23 steps
  const float size = fminf(fabsf(x), 6.0f);
  const float power = __uint_as_float(max(__float_as_uint(size), kOne) & kInfinityBits);
  return copysignf(__fmaf_rn(power, -kTimes, __fmaf_rn(power, kTimes, size)), x);
}

}  // namespace fp4moe::kernels::cuda::sm90
