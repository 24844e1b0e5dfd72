#include "fp4moe/formats/block.hpp"

#include <string>

#include "fp4moe/base/checked.hpp"

namespace fp4moe::formats {
namespace {

Error wrong_size(std::string_view what, std::uint64_t expected, std::uint64_t found) {
  return invalid("formats.rows.size", "wrong number of " + std::string(what))
      .expects(std::to_string(expected), std::to_string(found));
}

}  // namespace

Result<Done> check_rows(BlockShape shape, Rows<const float> rows,
                        std::span<const std::uint8_t> scales, std::span<const std::uint8_t> codes) {
  if (!rows.values.empty() && (rows.columns == 0 || rows.values.size() % rows.columns != 0))
    return invalid("formats.rows.columns", "the values do not fill whole rows")
        .expects("a multiple of the row length", std::to_string(rows.values.size()) +
                                                     " values in rows of " +
                                                     std::to_string(rows.columns));
  // At least one value stands behind every block, so the products below cannot overflow by more
  // than a block's code bytes.
  const std::uint64_t blocks = rows.count() * shape.blocks_in(rows.columns);
  if (scales.size() != blocks) return wrong_size("scales", blocks, scales.size());
  const auto code_bytes = checked_multiply(blocks, shape.code_bytes);
  if (!code_bytes || codes.size() != *code_bytes)
    return wrong_size("code bytes", code_bytes.value_or(~std::uint64_t{0}), codes.size());
  return Done{};
}

}  // namespace fp4moe::formats
