// Marlin's maps.
#pragma once
#include "fp4moe/layout/index_map.hpp"

namespace fp4moe::backends::marlin {

// 4-bit tiles for 16-bit activations (16 k x 64 n) and for 8-bit ones (32 k x 32 n). Words of 32
// bits, [k / 16, 2 n].
layout::Map codes_w4a16();
layout::Map codes_w4a8();

// Scales, transposed: an 8 x 8 transposition of every 64 columns, its middle bits exchanged so that
// the kernel's unpacking puts them back; and without that exchange.
layout::Map scales();
layout::Map scales_grouped();
// The single permutation of 32, plain or exchanged likewise, which is used where all of k is one
// group.
layout::Map scales_single();
layout::Map scales_single_exchanged();

}  // namespace fp4moe::backends::marlin
