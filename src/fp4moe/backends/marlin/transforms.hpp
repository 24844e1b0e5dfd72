// Transforms of scales, biases and global scales for Marlin's kernels.
#pragma once
#include "fp4moe/layout/transforms.hpp"

namespace fp4moe::backends::marlin {

// MXFP4 with FP8 activations: the byte + 6.
extern const layout::ScaleTransform kPlusSix;
// NVFP4 as S0E5M3: no common exponent; one from the smallest scale; one from the largest.
extern const layout::ScaleTransform kScales202601, kScales202603, kScales202604;
// Biases as rows, then the permutation of every 32.
extern const layout::BiasTransform kSinglePermutation;
// Global scales with the exponents folded in, of the parameters' type or float32.
extern const layout::ScalarTransform kFoldedGlobals, kFoldedGlobalsF32;

}  // namespace fp4moe::backends::marlin
