// Maps of triton_kernels.
#pragma once
#include <cstdint>

#include "fp4moe/layout/index_map.hpp"

namespace fp4moe::backends::triton {

// Multiples that weights are padded to, in rows and bytes.
struct Pads {
  std::uint32_t rows = 1, bytes = 1;
};

layout::Map strided();
layout::Map hopper_value(unsigned mma_version, Pads pads);
layout::Map hopper_scale(std::uint32_t warps, std::uint32_t pad_cols = 2);
layout::Map blackwell_value(bool padding_is_unset = false);
layout::Map blackwell_value_shuffled(std::uint32_t block_k = 128, std::uint32_t block_n = 256);
layout::Map blackwell_scale();
layout::Map cdna4_scale(bool pads);
layout::Map gfx1250_scale(std::uint64_t columns);

}  // namespace fp4moe::backends::triton
