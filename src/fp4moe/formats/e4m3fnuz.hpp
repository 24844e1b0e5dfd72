// E4M3FNUZ: the 8-bit float of AMD's gfx942.
//
//   code  s eeee mmm     bias 8, subnormal step 2^-10, largest 240 (0x7F)
//
// "Finite, unsigned zero": no infinity, no -0; the code of -0, 0x80, is the only NaN.
#pragma once
#include <cstdint>

#include "fp4moe/formats/small_float.hpp"

namespace fp4moe::formats {

struct E4m3fnuz {
  static constexpr int kBits = 8;
  static constexpr float kMax = 240.0f;
  static constexpr std::uint8_t kMaxCode = 0x7F;
  static constexpr std::uint8_t kNan = 0x80;

  static constexpr float decode(std::uint8_t code) {
    if (code == kNan) return float_from_bits(kFloatNanBits);
    const std::uint32_t sign = (code & 0x80u) << 24;
    return float_from_bits(sign | float_bits(Fields::magnitude_value(code & 0x7F)));
  }

  // "rne_satfinite": nearest, ties to the even code; above 240 and infinity become +-240.
  static constexpr std::uint8_t encode(float x) {
    if (is_nan(x)) return kNan;
    const std::uint32_t code = magnitude_code(x);
    return with_sign(x, code > kMaxCode ? kMaxCode : code);
  }

  // "rne_overflow_to_nan": what rounds above 240 (from 248 on) and infinity become NaN.
  static constexpr std::uint8_t encode_or_nan(float x) {
    if (is_nan(x)) return kNan;
    const std::uint32_t code = magnitude_code(x);
    return code > kMaxCode ? kNan : with_sign(x, code);
  }

 private:
  using Fields = SmallFloat<3, 8>;
  static constexpr std::uint32_t magnitude_code(float x) {
    return is_infinite(x) ? kMaxCode + 1u : Fields::nearest_magnitude(magnitude_bits(x));
  }
  static constexpr std::uint8_t with_sign(float x, std::uint32_t code) {
    return static_cast<std::uint8_t>(code | (is_negative(x) && code != 0 ? 0x80 : 0));
  }
};

static_assert(E4m3fnuz::decode(0x7F) == 240.0f && E4m3fnuz::decode(0x01) == 0x1p-10f);
static_assert(E4m3fnuz::encode(-0.0f) == 0 && E4m3fnuz::encode(-1e-9f) == 0);
static_assert(E4m3fnuz::encode(-1e9f) == 0xFF && E4m3fnuz::encode_or_nan(248.0f) == 0x80);
static_assert(E4m3fnuz::encode_or_nan(247.0f) == 0x7F);

}  // namespace fp4moe::formats
