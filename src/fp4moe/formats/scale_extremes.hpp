// The smallest and the largest of block scales, as bytes: what a layout takes out of them, and
// whether a kernel's format can hold them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace fp4moe::formats {

// For E4M3 only positive scales count; for E8M0 all do.
struct ScaleExtremes {
  std::uint8_t largest = 0, smallest = 255;  // 0 and 255: there are none
  bool has_negative = false;

  void add(const ScaleExtremes& other);
};

ScaleExtremes e8m0_extremes(std::span<const std::byte> scales);
ScaleExtremes e4m3_extremes(std::span<const std::byte> scales);

}  // namespace fp4moe::formats
