// What becomes of scale bytes on the way into a layout and back: a table of 256 bytes, made from
// the rule and from what the layer's scales are like.
#pragma once
#include <cstdint>
#include <optional>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/scale_extremes.hpp"
#include "fp4moe/convert/pack/pack_matrix.hpp"
#include "fp4moe/layout/layout.hpp"
#include "fp4moe/tensor/dtype.hpp"

namespace fp4moe::convert {

using checkpoint::extremes_of;
using checkpoint::ScaleExtremes;

// True when the table of one expert depends on all experts of the layer.
bool needs_all_experts(layout::ScaleRule rule);
bool needs_extremes(layout::ScaleRule rule);

// The power of two that a rule takes out of the scales: Marlin's common exponent, or the offset of
// native_sm90. Errors: scale.range, scale.negative.
Result<int> common_exponent(layout::ScaleRule rule, const ScaleExtremes& extremes,
                            tensor::DType params_type);

// Nothing where bytes stay as they are.
std::optional<ByteTable> scale_table(layout::ScaleRule rule, int exponent);
std::optional<ByteTable> inverse_scale_table(layout::ScaleRule rule, int exponent);

// A block whose scale is zero has no code of its own in native_sm90.nvfp4: this one stands for it,
// and the block's FP4 codes are written as zero.
inline constexpr std::uint8_t kNativeZeroScale = 0xF0;

}  // namespace fp4moe::convert
