// Matrices of short rows, as block scales are, by way of the first cache.
#pragma once
#include <span>

#include "fp4moe/convert/pack/pack_matrix.hpp"

namespace fp4moe::convert {

// Packs the matrix if it is of this kind, and says whether it did.
bool pack_staged(const layout::IndexMap& map, const MatrixSource& from, std::span<std::byte> out);

}  // namespace fp4moe::convert
