#include "fp4moe/formats/scale_extremes.hpp"

#include <algorithm>

namespace fp4moe::formats {

void ScaleExtremes::add(const ScaleExtremes& other) {
  largest = std::max(largest, other.largest);
  smallest = std::min(smallest, other.smallest);
  has_negative = has_negative || other.has_negative;
}

// Both loops are reductions over bytes, which compilers vectorize.

ScaleExtremes e8m0_extremes(std::span<const std::byte> scales) {
  std::uint8_t max = 0, min = 255;
  for (const std::byte scale : scales) {
    const auto code = std::to_integer<std::uint8_t>(scale);
    max = std::max(max, code);
    min = std::min(min, code);
  }
  return {max, min, false};
}

// Codes 1 to 127 are positive. As signed bytes they are the positive ones; minus one, as unsigned
// bytes, they are below all others.
ScaleExtremes e4m3_extremes(std::span<const std::byte> scales) {
  std::uint8_t max = 0, min_less_one = 255;
  std::int8_t signed_max = 0;
  for (const std::byte scale : scales) {
    const auto code = std::to_integer<std::uint8_t>(scale);
    max = std::max(max, code);
    min_less_one = std::min(min_less_one, static_cast<std::uint8_t>(code - 1));
    signed_max = std::max(signed_max, static_cast<std::int8_t>(code));
  }
  const int min = min_less_one < 127 ? min_less_one + 1 : 255;
  return {static_cast<std::uint8_t>(signed_max), static_cast<std::uint8_t>(min), max >= 0x80};
}

}  // namespace fp4moe::formats
