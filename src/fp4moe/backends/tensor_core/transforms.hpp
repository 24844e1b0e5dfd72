// What this library's kernels for tensor cores ask of scales, and what they multiply accumulators by.
#pragma once
#include "fp4moe/layout/transforms.hpp"

namespace fp4moe::backends::tensor_core {

extern const layout::ScaleTransform kMxfp4Scales, kNvfp4Scales;
extern const layout::ScalarTransform kMxfp4Factors, kNvfp4Factors;

}  // namespace fp4moe::backends::tensor_core
