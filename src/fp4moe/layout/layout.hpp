// A backend's weight format, as data: the order of w13's rows, the maps of codes and scales, what
// becomes of scale bytes, biases and scalars. One row per layout and generation; the rows stand in
// the families' folders (backends/<family>/layout.cpp).
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "fp4moe/formats/weight_format.hpp"
#include "fp4moe/layout/index_map.hpp"
#include "fp4moe/layout/transforms.hpp"
#include "fp4moe/tensor/dtype.hpp"

namespace fp4moe::layout {

using formats::WeightFormat;

// The rows of w13 for gate row i and up row i, before any shuffle (has_shuffled_rows):
//   row = (i / block) * 2 * block + (is second) * block + i % block
// Blocks of one row are interleaved; a block of 0 is the whole (padded) half. As loaded: in the
// checkpoint's own order, interleaved or halves. Layers without a gate keep their rows.
struct W13Order {
  bool as_loaded = false;
  std::uint32_t block = 0;
  bool up_first = false;
};

enum class BiasType : std::uint8_t { as_loaded, bf16, f32 };
enum class BiasOrder : std::uint8_t {
  as_rows,  // as w13's and w2's rows
  halves,   // all gates, then all ups
};

struct Layout {
  std::string_view id{};          // "family.mxfp4"
  std::string_view generation{};  // "" where the layout never changed
  WeightFormat format{};
  W13Order order{};
  bool has_shuffled_rows = false;  // both matrices: blocks of 32 rows, (a, b) of 8 x 4 -> (b, a)
  std::uint32_t gated_rows = 1;    // w13's rows must be a multiple of this where there is a gate
  bool is_padded_at_end = false;   // gated w13: padding rows after both halves instead of in each
  Map codes{}, scales{};           // of w13 and w2 alike
  tensor::DType codes_type = tensor::DType::u8, scales_type = tensor::DType::u8;
  bool one_record = false;                // codes and scales share the tensors w13 and w2
  bool has_no_negative_zero = false;      // FP4 code 8 becomes 0; cannot be undone
  std::optional<Map> one_group_scales{};  // instead of `scales`, where all of k is one block
  const ScaleTransform* scale_transform = nullptr;  // null: bytes as they are
  BiasType bias_type = BiasType::as_loaded;
  BiasOrder bias_order = BiasOrder::as_rows;
  const BiasTransform* bias_transform = nullptr;  // after the order; null: none
  const ScalarTransform* scalars = nullptr;       // null: no tensors beside weights and biases
  bool has_f16_params = true;                     // false: parameters are BF16 alone
  std::string_view reads{};                       // who reads it: libraries and versions
  std::string_view note{};                        // what a person should know
};

// Rows of `layouts` are ordered newest generation first, so the first of an id is its default.
const Layout* find_layout(const std::vector<Layout>& layouts, std::string_view id,
                          std::string_view generation);

// Sizes of a layer on one rank.
struct Sizes {
  std::uint64_t hidden = 0, intermediate = 0;
  friend bool operator==(const Sizes&, const Sizes&) = default;
};

// The row of w13 where gate row i (which = 0) or up row i (which = 1) goes. `is_interleaved`: how
// an order "as loaded" lies in the checkpoint.
std::uint64_t w13_row(const Layout& layout, Sizes real, Sizes padded, bool is_interleaved,
                      unsigned which, std::uint64_t i);
// The row that a row becomes in the shuffle, and the inverse.
constexpr std::uint64_t shuffled_row(std::uint64_t row) {
  return row / 32 * 32 + row % 32 / 4 + 8 * (row % 4);
}
constexpr std::uint64_t unshuffled_row(std::uint64_t row) {
  return row / 32 * 32 + 4 * (row % 8) + row % 32 / 8;
}
// The tensor's extents as the kernel sees them, and the strides of its storage, in elements.
struct Shape {
  std::vector<std::uint64_t> extents{}, strides{};
};
Shape kernel_shape(const IndexMap& map, std::uint64_t experts);
// The same storage, dense and row-major, as it is stored in a file.
std::vector<std::uint64_t> stored_shape(const IndexMap& map, std::uint64_t experts);

}  // namespace fp4moe::layout
