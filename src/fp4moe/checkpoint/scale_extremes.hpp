// The extremes of the block scales of a matrix.
#pragma once
#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/formats/scale_extremes.hpp"

namespace fp4moe::checkpoint {

using formats::ScaleExtremes;

ScaleExtremes extremes_of(WeightFormat format, const RowsView& scales);

}  // namespace fp4moe::checkpoint
