// A whole layer of a golden case, through the packer that conversions use.
#pragma once
#include "fp4moe/convert/pack/layer_packer.hpp"
#include "fp4moe/layout/layout.hpp"
#include "golden/layout_data.hpp"
#include "golden/report.hpp"

namespace fp4moe::golden {

constexpr std::uint64_t kMaxLayerSize = std::uint64_t{1} << 24;  // hidden, intermediate
constexpr std::uint64_t kMaxExperts = std::uint64_t{1} << 16;

struct LayerCase {
  const LayoutCase& given;
  layout::Layout layout{};
  bool names_layouts = false;  // outputs carry the names of Triton's classes
  convert::Problem problem{};
};

// Fills in the problem, except the padded sizes, and finds every tensor of the shape it must have.
// Errors: golden.malformed.
Result<Done> read_layer(LayerCase& layer);

Outcome check_layer(const LayerCase& layer);

}  // namespace fp4moe::golden
