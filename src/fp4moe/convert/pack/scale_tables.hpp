// The mapping of scale bytes into a layout and back: a table of 256 bytes, made from
// the layout's transform and from what the layer's scales are like.
#pragma once
#include <optional>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/scale_extremes.hpp"
#include "fp4moe/convert/pack/pack_matrix.hpp"
#include "fp4moe/layout/layout.hpp"
#include "fp4moe/tensor/dtype.hpp"

namespace fp4moe::convert {

using checkpoint::extremes_of;
using checkpoint::ScaleExtremes;
using layout::ScaleTransform;

// A null transform leaves bytes as they are: no exponent, no table.

// Errors: scale.range, scale.negative.
Result<int> exponent_of(const ScaleTransform* transform, const ScaleExtremes& extremes,
                        tensor::DType params_type);
std::optional<ByteTable> scale_table(const ScaleTransform* transform, int exponent);
std::optional<ByteTable> inverse_scale_table(const ScaleTransform* transform, int exponent);

}  // namespace fp4moe::convert
