// BF16: the upper half of a float32.
//
//   code  s eeeeeeee mmmmmmm     bias 127, largest 0x7F7F = 3.3895e38
#pragma once
#include <cstdint>

#include "fp4moe/formats/small_float.hpp"

namespace fp4moe::formats {

struct Bf16 {
  static constexpr int kBits = 16;
  static constexpr std::uint16_t kMaxCode = 0x7F7F;
  static constexpr std::uint16_t kInfinity = 0x7F80;

  static constexpr float decode(std::uint16_t code) {
    return float_from_bits(static_cast<std::uint32_t>(code) << 16);
  }

  // Nearest, ties to even, overflow to infinity. NaN stays NaN: its upper payload bits are kept and
  // the quiet bit is set, so that it cannot turn into infinity.
  static constexpr std::uint16_t encode(float x) {
    const std::uint32_t bits = float_bits(x);
    if (is_nan(x)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
    return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }

  // As encode, but infinity and what would overflow to it become the largest finite value.
  static constexpr std::uint16_t encode_finite(float x) {
    const std::uint16_t code = encode(x);
    if ((code & 0x7FFF) != kInfinity) return code;
    return static_cast<std::uint16_t>((code & 0x8000) | kMaxCode);
  }
};

static_assert(Bf16::decode(0x3F80) == 1.0f && Bf16::encode(-2.0f) == 0xC000);
static_assert(Bf16::encode(0x1.01p0f) == 0x3F80 && Bf16::encode(0x1.03p0f) == 0x3F82);  // ties
static_assert(Bf16::encode(3.4e38f) == 0x7F80 && Bf16::encode_finite(-3.4e38f) == 0xFF7F);
static_assert(is_nan(Bf16::decode(Bf16::encode(float_from_bits(0x7F800001)))));

}  // namespace fp4moe::formats
