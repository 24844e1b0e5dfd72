// Maps of FlashInfer's mixed-input kernels for SM90.
#pragma once
#include "fp4moe/layout/index_map.hpp"

namespace fp4moe::backends::flashinfer_cutlass {

// Weights: fragments of 16 x 16 in nibbles (generation 2) or with scattered bits (generation 3).
layout::Map sm90_codes(bool scattered);
layout::Map sm90_scales();         // [columns / 4, 4 rows]
layout::Map sm90_scales_folded();  // generation 3: [rows / 64, columns / 4, 16, 16]

}  // namespace fp4moe::backends::flashinfer_cutlass
