// E8M0: the block scale of the MX formats, a bare exponent.
//
//   code  eeeeeeee     value = 2^(code - 127), code 0 ... 254; 255 is NaN
//
// No sign, no zero. Kernels that shift the byte into the exponent field of a float read both ends
// differently: 0 as 0.0 and 255 as +infinity (decode_shifted). Encoders look at the magnitude only.
#pragma once
#include <cstdint>

#include "fp4moe/formats/small_float.hpp"

namespace fp4moe::formats {

struct E8m0 {
  static constexpr int kBits = 8;
  static constexpr int kBias = 127;
  static constexpr std::uint8_t kNan = 255;
  static constexpr std::uint8_t kMaxCode = 254;

  static constexpr float decode(std::uint8_t code) {
    if (code == kNan) return float_from_bits(kFloatNanBits);
    return power_of_two(code - kBias);
  }
  static constexpr float decode_shifted(std::uint8_t code) {
    return float_from_bits(static_cast<std::uint32_t>(code) << 23);
  }

  // "toward_pos_inf_satfinite": the smallest power of two >= |x|; infinity saturates to 254.
  static constexpr std::uint8_t encode_up(float x) {
    if (is_nan(x)) return kNan;
    const std::uint32_t bits = magnitude_bits(x);
    const std::uint32_t exponent = bits >> 23, fraction = bits & 0x7FFFFF;
    if (exponent == 0) return fraction > 0x400000 ? 1 : 0;  // code 0 is 2^-127 = bits 0x400000
    const std::uint32_t code = exponent + (fraction != 0 ? 1 : 0);
    return static_cast<std::uint8_t>(code > kMaxCode ? kMaxCode : code);
  }

  // "toward_zero_satfinite": the exponent field; subnormals give 0, infinity 254.
  static constexpr std::uint8_t encode_down(float x) {
    if (is_nan(x)) return kNan;
    const std::uint32_t exponent = magnitude_bits(x) >> 23;
    return static_cast<std::uint8_t>(exponent > kMaxCode ? kMaxCode : exponent);
  }

  // "torch_cast": PyTorch's cast to float8_e8m0fnu: the next power from 1.5 times a power on (just
  // above it where the power below is the smallest code); overflow and infinity become NaN.
  static constexpr std::uint8_t encode_torch(float x) {
    const std::uint32_t bits = magnitude_bits(x);
    const std::uint32_t exponent = bits >> 23, fraction = bits & 0x7FFFFF;
    if (exponent == 255) return kNan;
    const bool up = fraction > 0x400000 || (fraction == 0x400000 && exponent > 0);
    return static_cast<std::uint8_t>(exponent + (up ? 1 : 0));
  }
};

static_assert(E8m0::decode(127) == 1.0f && E8m0::decode(0) == 0x1p-127f);
static_assert(E8m0::decode_shifted(0) == 0.0f && is_infinite(E8m0::decode_shifted(255)));
static_assert(E8m0::encode_up(1.5f) == 128 && E8m0::encode_up(0x1p-127f) == 0);
static_assert(E8m0::encode_down(1.5f) == 127 && E8m0::encode_torch(1.5f) == 128);
static_assert(E8m0::encode_torch(1.49f) == 127 && E8m0::encode_torch(0x1p-127f) == 0);

}  // namespace fp4moe::formats
