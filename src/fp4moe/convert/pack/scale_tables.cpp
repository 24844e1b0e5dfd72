#include "fp4moe/convert/pack/scale_tables.hpp"

namespace fp4moe::convert {

Result<int> exponent_of(const ScaleTransform* transform, const ScaleExtremes& extremes,
                        tensor::DType params_type) {
  if (transform == nullptr || transform->exponent == nullptr) return 0;
  return transform->exponent(extremes, params_type);
}

std::optional<ByteTable> scale_table(const ScaleTransform* transform, int exponent) {
  if (transform == nullptr) return std::nullopt;
  ByteTable table{};
  for (int code = 0; code < 256; ++code)
    table[static_cast<std::size_t>(code)] = transform->byte(code, exponent);
  return table;
}

std::optional<ByteTable> inverse_scale_table(const ScaleTransform* transform, int exponent) {
  if (transform == nullptr) return std::nullopt;
  ByteTable table{};
  // Codes that share a byte: the smallest positive one stands for them; see losses().
  for (int code = 255; code >= 0; --code)
    table[transform->byte(code, exponent)] = static_cast<std::uint8_t>(code);
  return table;
}

}  // namespace fp4moe::convert
