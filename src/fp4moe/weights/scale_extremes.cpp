#include "fp4moe/weights/scale_extremes.hpp"

#include <algorithm>

namespace fp4moe::weights {

void ScaleExtremes::add(const ScaleExtremes& other) {
  largest = std::max(largest, other.largest);
  smallest = std::min(smallest, other.smallest);
  has_negative = has_negative || other.has_negative;
}

// Reductions over bytes that compilers turn into vector instructions. Of E4M3 only 1 to 127 count:
// as signed numbers they are the positive ones, and less one they lie below all others.
ScaleExtremes extremes_of(WeightFormat format, const RowsView& scales) {
  ScaleExtremes found;
  for (std::uint64_t row = 0; row < scales.rows; ++row) {
    const auto* codes = reinterpret_cast<const std::uint8_t*>(scales.row(row).data());
    std::uint8_t largest = 0, smallest = 255, least = 255;
    std::int8_t most = 0;
    for (std::uint64_t i = 0; i < scales.row_bytes; ++i) {
      largest = std::max(largest, codes[i]);
      smallest = std::min(smallest, codes[i]);
      least = std::min(least, static_cast<std::uint8_t>(codes[i] - 1));
      most = std::max(most, static_cast<std::int8_t>(codes[i]));
    }
    if (format == WeightFormat::mxfp4)
      found.add({largest, smallest, false});
    else
      found.add({static_cast<std::uint8_t>(most),
                 static_cast<std::uint8_t>(least < 127 ? least + 1 : 255), largest >= 0x80});
  }
  return found;
}

}  // namespace fp4moe::weights
