// Shared by the small floating-point formats: a sign, an exponent field of width e with a bias, a
// mantissa field of width m, and gradual underflow.
//
//   code   s e...e m...m      value = (-1)^s * 2^(E - bias) * (1 + M / 2^m)    for E > 0
//                                     (-1)^s * 2^(1 - bias) * (M / 2^m)        for E = 0
//
// Because the fields are adjacent, magnitudes in order are codes in order, so rounding is integer
// arithmetic on the code. What happens at the top (infinity, NaN, saturation) is each format's own.
#pragma once
#include <bit>
#include <cstdint>

namespace fp4moe::formats {

constexpr std::uint32_t float_bits(float x) { return std::bit_cast<std::uint32_t>(x); }
constexpr float float_from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

constexpr std::uint32_t kFloatInfinityBits = 0x7F800000;
constexpr std::uint32_t kFloatNanBits = 0x7FC00000;

constexpr std::uint32_t magnitude_bits(float x) { return float_bits(x) & 0x7FFFFFFF; }
constexpr bool is_negative(float x) { return (float_bits(x) >> 31) != 0; }
constexpr bool is_nan(float x) { return magnitude_bits(x) > kFloatInfinityBits; }
constexpr bool is_infinite(float x) { return magnitude_bits(x) == kFloatInfinityBits; }

// 2^exponent for every exponent float32 has, subnormals included: -149 ... 127.
constexpr float power_of_two(int exponent) {
  if (exponent < -126) return float_from_bits(std::uint32_t{1} << (exponent + 149));
  return float_from_bits(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// value / 2^shift to the nearest integer, ties to even. `value` has at most 24 bits.
constexpr std::uint32_t shift_right_to_even(std::uint32_t value, int shift) {
  if (shift <= 0) return value << -shift;
  if (shift > 24) return 0;  // less than one half
  const std::uint32_t half = std::uint32_t{1} << (shift - 1);
  const std::uint32_t quotient = value >> shift;
  const std::uint32_t rest = value - (quotient << shift);
  const bool up = rest > half || (rest == half && (quotient & 1) != 0);
  return quotient + (up ? 1 : 0);
}

// The field widths of a format with at most 10 mantissa bits and a bias of at most 15.
template <int kMantissaBits, int kBias>
struct SmallFloat {
  static_assert(kMantissaBits >= 1 && kMantissaBits <= 10 && kBias >= 1 && kBias <= 15);

  // The code whose magnitude is nearest to the finite float with these bits, ties to the even code.
  // It counts on past the format's largest code: the caller saturates.
  static constexpr std::uint32_t nearest_magnitude(std::uint32_t finite_bits) {
    const int exponent = static_cast<int>(finite_bits >> 23) - 127 + kBias;
    const std::uint32_t fraction = finite_bits & 0x7FFFFF;
    if (exponent > 0) {
      const std::uint32_t rebiased = (static_cast<std::uint32_t>(exponent) << 23) | fraction;
      const std::uint32_t kept = rebiased >> (23 - kMantissaBits);
      const std::uint32_t rest = rebiased & ((std::uint32_t{1} << (23 - kMantissaBits)) - 1);
      const std::uint32_t half = std::uint32_t{1} << (22 - kMantissaBits);
      return kept + ((rest > half || (rest == half && (kept & 1) != 0)) ? 1 : 0);
    }
    // Subnormal here. Subnormal floats are far below the smallest code and vanish in the shift.
    const std::uint32_t significand = (finite_bits >> 23) == 0 ? fraction : fraction | 0x800000;
    return shift_right_to_even(significand, 23 - kMantissaBits + 1 - exponent);
  }

  // The value of a magnitude code without special meaning, exact in float32.
  static constexpr float magnitude_value(std::uint32_t magnitude) {
    const std::uint32_t exponent = magnitude >> kMantissaBits;
    const std::uint32_t mantissa = magnitude & ((std::uint32_t{1} << kMantissaBits) - 1);
    if (exponent == 0)
      return static_cast<float>(mantissa) * power_of_two(1 - kBias - kMantissaBits);
    return float_from_bits(((exponent + 127 - kBias) << 23) | (mantissa << (23 - kMantissaBits)));
  }
};

static_assert(power_of_two(0) == 1.0f && power_of_two(-149) == 0x1p-149f);
static_assert(shift_right_to_even(3, 1) == 2 && shift_right_to_even(1, 1) == 0);
static_assert(shift_right_to_even(0xFFFFFF, 24) == 1 && shift_right_to_even(0x800000, 24) == 0);

}  // namespace fp4moe::formats
