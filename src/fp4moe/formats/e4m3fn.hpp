// E4M3FN: the element of MXFP8 and the block scale of NVFP4.
//
//   code  s eeee mmm     bias 7, subnormal step 2^-9, largest 448 (0x7E)
//
// "Finite": no infinity. NaN is 0x7F and 0xFF only.
#pragma once
#include <cstdint>

#include "fp4moe/formats/small_float.hpp"

namespace fp4moe::formats {

struct E4m3fn {
  static constexpr int kBits = 8;
  static constexpr float kMax = 448.0f;
  static constexpr std::uint8_t kMaxCode = 0x7E;
  static constexpr std::uint8_t kNan = 0x7F;

  static constexpr float decode(std::uint8_t code) {
    const std::uint32_t sign = (code & 0x80u) << 24;
    if ((code & 0x7F) == kNan) return float_from_bits(sign | kFloatNanBits);
    return float_from_bits(sign | float_bits(Fields::magnitude_value(code & 0x7F)));
  }

  // "rne_satfinite": nearest, ties to the even code; above 448 and infinity become +-448; NaN
  // becomes 0x7F whatever its sign (CUDA).
  static constexpr std::uint8_t encode(float x) {
    if (is_nan(x)) return kNan;
    const std::uint32_t code = magnitude_code(x);
    return with_sign(x, code > kMaxCode ? kMaxCode : code);
  }

  // "rne_overflow_to_nan": what rounds above 448 (464 still rounds down to it) and infinity become
  // NaN; NaN keeps its sign (PyTorch).
  static constexpr std::uint8_t encode_or_nan(float x) {
    const std::uint32_t code = is_nan(x) ? kNan : magnitude_code(x);
    return with_sign(x, code > kMaxCode ? kNan : code);
  }

 private:
  using Fields = SmallFloat<3, 7>;
  static constexpr std::uint32_t magnitude_code(float x) {
    return is_infinite(x) ? kNan : Fields::nearest_magnitude(magnitude_bits(x));
  }
  static constexpr std::uint8_t with_sign(float x, std::uint32_t code) {
    return static_cast<std::uint8_t>(code | (is_negative(x) ? 0x80 : 0));
  }
};

static_assert(E4m3fn::decode(0x7E) == 448.0f && E4m3fn::decode(0x01) == 0x1p-9f);
static_assert(E4m3fn::encode(1e9f) == 0x7E && E4m3fn::encode(-1e9f) == 0xFE);
static_assert(E4m3fn::encode_or_nan(464.0f) == 0x7E && E4m3fn::encode_or_nan(465.0f) == 0x7F);
static_assert(E4m3fn::encode(0x1p-10f) == 0 && E4m3fn::encode(0x1.8p-9f) == 2);  // ties

}  // namespace fp4moe::formats
