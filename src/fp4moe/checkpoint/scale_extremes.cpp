#include "fp4moe/checkpoint/scale_extremes.hpp"

namespace fp4moe::checkpoint {

ScaleExtremes extremes_of(WeightFormat format, const RowsView& scales) {
  const auto of_row =
      format == WeightFormat::mxfp4 ? formats::e8m0_extremes : formats::e4m3_extremes;
  ScaleExtremes found;
  for (std::uint64_t row = 0; row < scales.rows; ++row) found.add(of_row(scales.row(row)));
  return found;
}

}  // namespace fp4moe::checkpoint
