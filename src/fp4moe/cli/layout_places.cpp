#include "fp4moe/cli/layout_places.hpp"

#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/formats/nvfp4.hpp"
#include "fp4moe/layout/index_map.hpp"

namespace fp4moe::cli {
namespace {

using layout::IndexMap;
using layout::Layout;

constexpr std::uint64_t kMaxRows = 4096;  // and columns: it is for looking at

bool read_size(std::string_view text, std::uint64_t& size) {
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, size);
  return !text.empty() && code == std::errc() && stop == end && size >= 1 && size <= kMaxRows;
}

// The row of the tensor where a row of the matrix goes.
std::uint64_t tensor_row(const Layout& layout, const Matrix& matrix, std::uint64_t row) {
  if (matrix.is_gated) {
    const std::uint64_t half = matrix.rows / 2;
    const layout::Sizes sizes{.hidden = matrix.cols, .intermediate = half};
    row = layout::w13_row(layout, sizes, sizes, false, row < half ? 0 : 1, row % half);
  }
  return layout.has_shuffled_rows ? layout::shuffled_row(row) : row;
}

Json word_json(const layout::WordCode* code) {
  if (code == nullptr) return nullptr;
  Json places = Json::array();
  for (unsigned offset = 0; offset < 8; ++offset) {
    std::vector<unsigned> bits;
    for (unsigned b = 0; b < 4; ++b) bits.push_back(code->bit_position(offset, b));
    places.push_back(bits);
  }
  return {{"name", code->name}, {"place", std::move(places)}};
}

Result<Json> part_json(const Layout& layout, const Matrix& matrix, const layout::Map& map,
                       std::uint64_t cols) {
  const Result<IndexMap> bound = IndexMap::bind(map, {matrix.rows, cols});
  if (!bound) return bound.why();
  std::vector<std::uint64_t> rows, columns;
  for (std::uint64_t row = 0; row < matrix.rows; ++row)
    rows.push_back(bound->row_part(tensor_row(layout, matrix, row)));
  for (std::uint64_t col = 0; col < cols; ++col) columns.push_back(bound->col_part(col));
  return Json{{"map", map.name},
              {"element", map.element == layout::Element::nibble ? "nibble" : "byte"},
              {"rows", matrix.rows},
              {"columns", cols},
              {"bytes", bound->bytes()},
              {"begin", map.begin},
              {"row_offsets", rows},
              {"column_offsets", columns},
              {"word", word_json(map.code)}};
}

}  // namespace

Result<Matrix> read_matrix(const std::string& text) {
  Matrix matrix;
  std::string_view rest = text;
  if (rest.starts_with("w13:")) matrix.is_gated = true;
  if (const std::size_t colon = rest.find(':'); matrix.is_gated || rest.starts_with("w2:"))
    rest.remove_prefix(colon + 1);
  const std::size_t cross = rest.find('x');
  if (cross == rest.npos || !read_size(rest.substr(0, cross), matrix.rows) ||
      !read_size(rest.substr(cross + 1), matrix.cols) || (matrix.is_gated && matrix.rows % 2 != 0))
    return usage("layout.matrix", "unknown matrix")
        .expects(
            fmt::format("w2:ROWSxCOLUMNS or w13:ROWSxCOLUMNS with up to {} of each, w13 with an "
                        "even number of rows",
                        kMaxRows),
            "'" + printable(text) + "'");
  return matrix;
}

Result<Json> places_json(const Layout& layout, const Matrix& matrix) {
  const std::uint64_t block =
      layout.format == layout::WeightFormat::mxfp4 ? formats::kMxfp4Block : formats::kNvfp4Block;
  Result<Json> codes = part_json(layout, matrix, layout.codes, matrix.cols);
  if (!codes) return codes.why();
  Result<Json> scales = part_json(layout, matrix, layout.scales, (matrix.cols + block - 1) / block);
  if (!scales) return scales.why();
  return Json{{"matrix", matrix.is_gated ? "w13" : "w2"},
              {"rows", matrix.rows},
              {"columns", matrix.cols},
              {"block", block},
              {"codes", *std::move(codes)},
              {"scales", *std::move(scales)}};
}

}  // namespace fp4moe::cli
