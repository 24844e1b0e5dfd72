// Transforms of scales for this library's tensor core kernels, and the factors of accumulators.
#pragma once
#include "fp4moe/layout/transforms.hpp"

namespace fp4moe::backends::tensor_core {

extern const layout::ScaleTransform kMxfp4Scales, kNvfp4Scales;
extern const layout::ScalarTransform kMxfp4Factors, kNvfp4Factors;

}  // namespace fp4moe::backends::tensor_core
