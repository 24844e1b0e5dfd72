// F16: IEEE 754 half precision.
//
//   code  s eeeee mmmmmmmmmm     bias 15, subnormal step 2^-24, largest 65504 (0x7BFF)
#pragma once
#include <cstdint>

#include "fp4moe/formats/small_float.hpp"

namespace fp4moe::formats {

struct F16 {
  static constexpr int kBits = 16;
  static constexpr float kMax = 65504.0f;
  static constexpr std::uint16_t kMaxCode = 0x7BFF;
  static constexpr std::uint16_t kInfinity = 0x7C00;

  static constexpr float decode(std::uint16_t code) {
    const std::uint32_t sign = (code & 0x8000u) << 16;
    const std::uint32_t magnitude = code & 0x7FFF;
    if (magnitude >= kInfinity)  // NaN payloads move with the mantissa
      return float_from_bits(sign | kFloatInfinityBits | ((magnitude & 0x3FF) << 13));
    return float_from_bits(sign | float_bits(Fields::magnitude_value(magnitude)));
  }

  // Nearest, ties to even, overflow (from 65520 on) to infinity. NaN stays NaN: its upper payload
  // bits are kept and the quiet bit is set.
  static constexpr std::uint16_t encode(float x) {
    const std::uint32_t bits = magnitude_bits(x);
    std::uint32_t code = kInfinity;
    if (is_nan(x)) {
      code = kInfinity | 0x200 | ((bits >> 13) & 0x3FF);
    } else if (bits < kFloatInfinityBits) {
      code = Fields::nearest_magnitude(bits);
      if (code > kInfinity) code = kInfinity;
    }
    return static_cast<std::uint16_t>(code | (is_negative(x) ? 0x8000 : 0));
  }

  // As encode, but infinity and what would overflow to it become the largest finite value.
  static constexpr std::uint16_t encode_finite(float x) {
    const std::uint16_t code = encode(x);
    if ((code & 0x7FFF) != kInfinity) return code;
    return static_cast<std::uint16_t>((code & 0x8000) | kMaxCode);
  }

 private:
  using Fields = SmallFloat<10, 15>;
};

static_assert(F16::decode(0x3C00) == 1.0f && F16::decode(0x0001) == 0x1p-24f);
static_assert(F16::encode(65504.0f) == 0x7BFF && F16::encode(65520.0f) == 0x7C00);
static_assert(F16::encode(65519.0f) == 0x7BFF && F16::encode_finite(-1e9f) == 0xFBFF);
static_assert(F16::encode(0x1p-25f) == 0 && F16::encode(0x1.8p-24f) == 2);  // ties
static_assert(F16::encode(0x1.ff8p-15f) == 0x03FF);                         // largest subnormal

}  // namespace fp4moe::formats
