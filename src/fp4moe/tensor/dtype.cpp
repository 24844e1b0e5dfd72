#include "fp4moe/tensor/dtype.hpp"

namespace fp4moe::tensor {
namespace {

constexpr bool rows_are_in_enum_order() {
  for (std::size_t i = 0; i < kDTypes.size(); ++i)
    if (static_cast<std::size_t>(kDTypes[i].dtype) != i) return false;
  return true;
}
static_assert(rows_are_in_enum_order());

}  // namespace

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const DTypeRow& row : kDTypes)
    if (row.in_safetensors && row.name == name) return row.dtype;
  return std::nullopt;
}

std::optional<DType> dtype_from_ggml(std::uint32_t type) {
  for (const DTypeRow& row : kDTypes)
    if (row.ggml_type >= 0 && static_cast<std::uint32_t>(row.ggml_type) == type) return row.dtype;
  return std::nullopt;
}

}  // namespace fp4moe::tensor
