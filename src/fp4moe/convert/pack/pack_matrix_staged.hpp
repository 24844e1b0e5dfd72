// Packs matrices of short rows (block scales) in the L1 cache.
#pragma once
#include <span>

#include "fp4moe/convert/pack/pack_matrix.hpp"

namespace fp4moe::convert {

// Packs the matrix if its map and its rows allow it. True if it did.
bool pack_staged(const layout::IndexMap& map, const MatrixSource& from, std::span<std::byte> out);

}  // namespace fp4moe::convert
