// The offsets of one matrix's elements in a layout, as data.
#pragma once
#include <cstdint>
#include <string>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/layout/layout.hpp"

namespace fp4moe::cli {

struct Matrix {
  bool is_gated = false;             // w13: the gate's rows, then the up projection's. Else w2.
  std::uint64_t rows = 0, cols = 0;  // FP4 codes
};

// "w13:64x128", "w2:64x128" or "64x128", which is w2. Errors: layout.matrix.
Result<Matrix> read_matrix(const std::string& text);

// matrix, rows, columns, block (columns that share a scale) and for codes and scales
//   element (nibble or byte), bytes, rows, columns, and the offset of an element:
//   offset = begin + row_offsets[row] + column_offsets[column]
//   word: null, or where the bits of codes go: place[offset % 8][bit] of a 32-bit word
// Errors: layout.size.
Result<Json> places_json(const layout::Layout& layout, const Matrix& matrix);

}  // namespace fp4moe::cli
