// Maps that layouts of several families are made of. A family's own maps stand in its folder
// (backends/<family>/maps.hpp); those that changed over time take what changed as a parameter.
#pragma once
#include <cstdint>
#include <string_view>

#include "fp4moe/layout/index_map.hpp"

namespace fp4moe::layout {

// Rows one after another; columns padded to a multiple.
Map plain(std::uint32_t pad_cols = 1);

// Columns one after another in the kernel's tensor, which has the last two dimensions exchanged.
Map column_major(Element element = Element::byte);

// Block scales as SM100's tensor cores read them: tiles of 128 rows by 4 columns, 512 bytes, in
// which the four groups of 32 rows interleave. Columns are padded to a multiple.
Map scales_128x4(std::uint32_t pad_cols = 4);

// Block scales as CDNA4's matrix cores read them: tiles of 32 rows by 8 columns, 256 bytes, which
// rows and columns either fill (`pads`) or have to be multiples of.
Map scales_32x8(bool pads);

// The same under a family's name.
Map named(std::string_view name, Map map);

}  // namespace fp4moe::layout
