// Extents of a dense row-major tensor, outermost first, and its size in bytes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fp4moe/tensor/dtype.hpp"

namespace fp4moe::tensor {

using Shape = std::vector<std::uint64_t>;

// "[32, 5760, 90, 16]"; a scalar is "[]".
std::string text(const Shape& shape);

std::optional<std::uint64_t> element_count(const Shape& shape);  // nothing on overflow

// Bytes of a tensor; nothing on overflow or when blocks do not fill: safetensors packs the whole
// tensor (elements divide by the block), GGUF blocks lie along the last dimension.
std::optional<std::uint64_t> byte_count(DType dtype, const Shape& shape);

}  // namespace fp4moe::tensor
