// E5M2: the wide 8-bit float, the upper byte of an F16.
//
//   code  s eeeee mm     bias 15, subnormal step 2^-16, largest 57344 (0x7B)
//
// As in IEEE 754: 0x7C is infinity, 0x7D ... 0x7F are NaN.
#pragma once
#include <cstdint>

#include "fp4moe/formats/small_float.hpp"

namespace fp4moe::formats {

struct E5m2 {
  static constexpr int kBits = 8;
  static constexpr float kMax = 57344.0f;
  static constexpr std::uint8_t kMaxCode = 0x7B;
  static constexpr std::uint8_t kInfinity = 0x7C;
  static constexpr std::uint8_t kNan = 0x7F;

  static constexpr float decode(std::uint8_t code) {
    const std::uint32_t sign = (code & 0x80u) << 24;
    const std::uint32_t magnitude = code & 0x7F;
    if (magnitude > kInfinity) return float_from_bits(sign | kFloatNanBits);
    if (magnitude == kInfinity) return float_from_bits(sign | kFloatInfinityBits);
    return float_from_bits(sign | float_bits(Fields::magnitude_value(magnitude)));
  }

  // "rne_satfinite": nearest, ties to the even code; above 57344 and infinity become +-57344; NaN
  // becomes 0x7F whatever its sign.
  static constexpr std::uint8_t encode(float x) {
    if (is_nan(x)) return kNan;
    const std::uint32_t code = magnitude_code(x);
    return with_sign(x, code > kMaxCode ? kMaxCode : code);
  }

  // "rne_overflow_to_inf": IEEE rounding, from 61440 on infinity; NaN keeps its sign.
  static constexpr std::uint8_t encode_or_infinity(float x) {
    return with_sign(x, is_nan(x) ? kNan : magnitude_code(x));
  }

 private:
  using Fields = SmallFloat<2, 15>;
  static constexpr std::uint32_t magnitude_code(float x) {
    if (is_infinite(x)) return kInfinity;
    const std::uint32_t code = Fields::nearest_magnitude(magnitude_bits(x));
    return code > kInfinity ? kInfinity : code;
  }
  static constexpr std::uint8_t with_sign(float x, std::uint32_t code) {
    return static_cast<std::uint8_t>(code | (is_negative(x) ? 0x80 : 0));
  }
};

static_assert(E5m2::decode(0x7B) == 57344.0f && E5m2::decode(0x01) == 0x1p-16f);
static_assert(E5m2::encode(1e9f) == 0x7B && E5m2::encode_or_infinity(1e9f) == 0x7C);
static_assert(E5m2::encode_or_infinity(61440.0f) == 0x7C);  // the tie goes to the even code
static_assert(E5m2::encode_or_infinity(61439.0f) == 0x7B);

}  // namespace fp4moe::formats
