// E2M1: the 4-bit element of MXFP4 and NVFP4.
//
//   code  s ee m     value = (-1)^s * 2^(ee-1) * (1 + m/2)   for ee > 0
//                            (-1)^s * m/2                    for ee = 0
//
// Sixteen codes, no infinity, no NaN. Two codes share a byte: see nibbles.hpp.
#pragma once
#include <cstdint>
#include <limits>

#include "fp4moe/formats/small_float.hpp"

namespace fp4moe::formats {

struct E2m1 {
  static constexpr int kBits = 4;
  static constexpr float kMax = 6.0f;
  static constexpr std::uint8_t kMaxCode = 7;

  static constexpr float decode(std::uint8_t code) {
    return (code & 8) != 0 ? -magnitude(code & 7) : magnitude(code & 7);
  }

  // "rne_satfinite": nearest, ties to the even code, saturating; -0 keeps its sign. NaN becomes
  // code 7 whatever its sign, as the conversion of CUDA does.
  static constexpr std::uint8_t encode(float x) { return nearest(x, Tie::to_even); }

  // "nearest_ties_away_satfinite": nearest, ties to the larger magnitude (triton_kernels 3.5).
  static constexpr std::uint8_t encode_ties_away(float x) { return nearest(x, Tie::away); }

 private:
  enum class Tie : std::uint8_t { to_even, away };

  // Computed, not looked up: device code cannot read a table of the host. Codes 2 ... 7 are the
  // upper bits of a float32 whose exponent is 126 higher.
  static constexpr float magnitude(std::uint32_t code) {
    if (code < 2) return 0.5f * static_cast<float>(code);
    return float_from_bits((code + (126u << 1)) << 22);
  }

  static constexpr std::uint8_t nearest(float x, Tie tie) {
    if (is_nan(x)) return kMaxCode;
    const float size = is_negative(x) ? -x : x;
    std::uint8_t code = 0;
    while (code < kMaxCode && is_nearer_above(size, code, tie)) ++code;
    return static_cast<std::uint8_t>(code | (is_negative(x) ? 8 : 0));
  }
  static constexpr bool is_nearer_above(float x, std::uint8_t code, Tie tie) {
    const float midpoint = 0.5f * (magnitude(code) + magnitude(code + 1u));
    const bool gives_way = tie == Tie::away || (code & 1) != 0;
    return x > midpoint || (x == midpoint && gives_way);
  }
};

static_assert(E2m1::decode(E2m1::encode(5.0f)) == 4.0f);  // tie, 4 is the even code
static_assert(E2m1::decode(E2m1::encode_ties_away(5.0f)) == 6.0f);
static_assert(E2m1::decode(E2m1::encode(-100.0f)) == -6.0f);  // saturates
static_assert(E2m1::encode(-0.0f) == 8 && E2m1::encode(-0.25f) == 8);
static_assert(E2m1::encode(-std::numeric_limits<float>::infinity()) == 15);
static_assert(E2m1::encode(std::numeric_limits<float>::quiet_NaN()) == 7);

}  // namespace fp4moe::formats
