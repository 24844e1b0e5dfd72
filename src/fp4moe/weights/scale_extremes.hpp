// The extremes of block scales, which decide what a layout takes out of them.
#pragma once
#include <cstdint>

#include "fp4moe/weights/expert.hpp"

namespace fp4moe::weights {

// Extremes of some scale bytes. For E4M3 only positive ones count; for E8M0 all do.
struct ScaleExtremes {
  std::uint8_t largest = 0, smallest = 255;  // 0 and 255: none
  bool has_negative = false;

  void add(const ScaleExtremes& other);
};
ScaleExtremes extremes_of(WeightFormat format, const RowsView& scales);

}  // namespace fp4moe::weights
