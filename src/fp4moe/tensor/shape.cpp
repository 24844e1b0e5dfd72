#include "fp4moe/tensor/shape.hpp"

#include "fp4moe/base/checked.hpp"

namespace fp4moe::tensor {

std::string text(const Shape& shape) {
  std::string shown = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    shown += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return shown + "]";
}

std::optional<std::uint64_t> element_count(const Shape& shape) { return checked_product(shape); }

std::optional<std::uint64_t> byte_count(DType dtype, const Shape& shape) {
  const std::optional<std::uint64_t> elements = element_count(shape);
  if (!elements) return std::nullopt;
  const DTypeRow& type = row(dtype);
  const bool blocks_along_rows = !type.in_safetensors;
  const std::uint64_t packed = blocks_along_rows ? (shape.empty() ? 1 : shape.back()) : *elements;
  if (packed % type.block_elements != 0) return std::nullopt;
  return checked_multiply(*elements / type.block_elements, type.block_bytes);
}

}  // namespace fp4moe::tensor
