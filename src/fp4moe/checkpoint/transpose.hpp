// Matrices whose bytes lie by columns: ModelOpt's fused experts are [experts, k / 2, rows]. A byte
// holds the codes of two neighbors of one row, or a block's scale, so that whole bytes move.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/checkpoint/matrix_place.hpp"

namespace fp4moe::checkpoint {

// Columns of bytes: byte `column` of row `row` is data[column * stride + row * step].
struct ColumnsView {
  const std::byte* data = nullptr;
  std::uint64_t rows = 0, columns = 0;
  std::uint64_t stride = 0, step = 1;
};

// The first byte of `expert`'s matrix in such a tensor: its first row in the first column.
inline std::uint64_t first_column_byte(const MatrixPlace& place, std::uint64_t expert,
                                       std::uint64_t columns) {
  const std::uint64_t before = expert * place.tensor_rows;
  return before * columns + (place.first - before);
}

// Rows out of columns, in tiles that stay in the cache.
inline void gather_rows(const ColumnsView& from, const RowsBuffer& to) {
  constexpr std::uint64_t kTile = 64;
  for (std::uint64_t column = 0; column < from.columns; column += kTile)
    for (std::uint64_t row = 0; row < from.rows; row += kTile)
      for (std::uint64_t r = row; r < std::min(row + kTile, from.rows); ++r)
        for (std::uint64_t c = column; c < std::min(column + kTile, from.columns); ++c)
          to.data[r * to.stride + c] = from.data[c * from.stride + r * from.step];
}

}  // namespace fp4moe::checkpoint
