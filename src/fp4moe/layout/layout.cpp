#include "fp4moe/layout/layout.hpp"

#include <utility>

namespace fp4moe::layout {

const Layout* find_layout(const std::vector<Layout>& layouts, std::string_view id,
                          std::string_view generation) {
  for (const Layout& layout : layouts)
    if (layout.id == id && (generation.empty() || layout.generation == generation)) return &layout;
  return nullptr;
}

std::uint64_t w13_row(const Layout& layout, Sizes real, Sizes padded, bool is_interleaved,
                      unsigned which, std::uint64_t i) {
  const W13Order& order = layout.order;
  const bool second = (which == 1) != order.up_first;
  std::uint64_t block = order.as_loaded && is_interleaved ? 1 : order.block;
  if (block == 0) block = padded.intermediate;
  if (layout.is_padded_at_end && padded.intermediate != real.intermediate) {
    // The halves lie together, then the padding; if halves are interleaved, the second begins at
    // the middle of all rows, wherever that falls.
    const std::uint64_t row = (second ? real.intermediate : 0) + i;
    return block == 1 ? row % padded.intermediate * 2 + row / padded.intermediate : row;
  }
  return i / block * 2 * block + (second ? block : 0) + i % block;
}

std::vector<std::uint64_t> stored_shape(const IndexMap& map, std::uint64_t experts) {
  const Extent padded = map.padded();
  if (map.map().dims.count == 0) return {experts, padded.rows, padded.cols};
  std::vector<std::uint64_t> shape;
  for (const Dim& dim : map.map().dims)
    shape.push_back((dim.experts ? experts : 1) * (dim.rows ? padded.rows : 1) *
                    (dim.cols ? padded.cols : 1) * dim.times / dim.divide);
  return shape;
}

Shape kernel_shape(const IndexMap& map, std::uint64_t experts) {
  Shape shape{.extents = stored_shape(map, experts)};
  const std::size_t rank = shape.extents.size();
  shape.strides.assign(rank, 1);
  for (std::size_t i = rank; i-- > 1;) shape.strides[i - 1] = shape.strides[i] * shape.extents[i];
  if (map.map().is_column_major) {
    std::swap(shape.extents[rank - 1], shape.extents[rank - 2]);
    std::swap(shape.strides[rank - 1], shape.strides[rank - 2]);
  }
  if (map.map().reports_logical_rows) shape.extents[rank - 2] = map.logical().rows;
  return shape;
}

}  // namespace fp4moe::layout
