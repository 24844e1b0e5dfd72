// Maps of AITER and CK: tiles of 16 x 16 bytes, scales as CDNA4 reads them.
#pragma once
#include <cstdint>

#include "fp4moe/layout/index_map.hpp"

namespace fp4moe::backends::aiter {

layout::Map codes(std::uint32_t need_bytes = 64);
// `pads`: columns are filled up to a multiple of 8 with scale 1.
layout::Map scales(bool pads);
layout::Map scales_all_experts();  // rows of all experts together, padded to 256 x 8
layout::Map scales_n32k4();

// The map that AITER's Triton kernels read.
layout::Map triton_strided();
layout::Map triton_scales();

}  // namespace fp4moe::backends::aiter
