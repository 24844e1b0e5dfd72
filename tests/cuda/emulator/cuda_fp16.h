// The conversions of CUDA's header of this name that kernels use.
#pragma once
#include <cstdint>

#include "fp4moe/formats/f16.hpp"

struct emulated_half {
  std::uint16_t code;
};
// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names
inline emulated_half __ushort_as_half(std::uint16_t code) { return {code}; }
inline std::uint16_t __half_as_ushort(emulated_half x) { return x.code; }
inline float __half2float(emulated_half x) { return fp4moe::formats::F16::decode(x.code); }
inline emulated_half __float2half_rn(float x) { return {fp4moe::formats::F16::encode(x)}; }
// NOLINTEND(bugprone-reserved-identifier)
