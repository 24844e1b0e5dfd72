// Blocks and rows, as the block formats share them. A row is cut into blocks from its start; the
// last block may be short. The values it lacks do not count for its maximum, and their codes are 0:
// every block stores its full number of codes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "fp4moe/base/result.hpp"
#include "fp4moe/formats/small_float.hpp"

namespace fp4moe::formats {

// max |x| in float32, 0 for no values; NaN when any value is NaN.
constexpr float block_amax(std::span<const float> x) {
  std::uint32_t largest = 0;  // magnitudes order as their bits do, and NaN above infinity
  for (const float value : x)
    largest = magnitude_bits(value) > largest ? magnitude_bits(value) : largest;
  return float_from_bits(largest > kFloatInfinityBits ? kFloatNanBits : largest);
}

// A row-major matrix without gaps.
template <class T>
struct Rows {
  std::span<T> values{};    // [rows, columns]
  std::size_t columns = 0;  // > 0 unless there are no values

  constexpr std::size_t count() const { return columns == 0 ? 0 : values.size() / columns; }
  constexpr std::span<T> row(std::size_t index) const {
    return values.subspan(index * columns, columns);
  }
};

// How many elements a block has and how many bytes its codes take.
struct BlockShape {
  std::size_t elements = 0;
  std::size_t code_bytes = 0;

  constexpr std::size_t blocks_in(std::size_t columns) const {
    return columns / elements + (columns % elements != 0 ? 1 : 0);
  }
};

// Checks that `scales` and `codes` hold exactly the blocks of `values` values in rows of
// `columns`.
Result<Done> check_rows(BlockShape shape, Rows<const float> rows,
                        std::span<const std::uint8_t> scales, std::span<const std::uint8_t> codes);

// Calls visit(values of a block, its index among all blocks).
template <class T, class Visit>
void for_each_block(BlockShape shape, Rows<T> rows, Visit visit) {
  std::size_t block = 0;
  for (std::size_t r = 0; r < rows.count(); ++r) {
    std::span<T> rest = rows.row(r);
    while (!rest.empty()) {
      const std::size_t take = rest.size() < shape.elements ? rest.size() : shape.elements;
      visit(rest.first(take), block++);
      rest = rest.subspan(take);
    }
  }
}

}  // namespace fp4moe::formats
