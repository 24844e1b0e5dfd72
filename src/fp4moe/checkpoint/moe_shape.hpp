// The words for a Mixture-of-Experts layer's weights, shared by all modules above.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "fp4moe/formats/weight_format.hpp"

namespace fp4moe::checkpoint {

using formats::block_size;
using formats::name;
using formats::WeightFormat;

// How w13's rows lie in the checkpoint: gate0 up0 gate1 up1 ..., or all gates then all ups, or
// (models without a gate) ups alone.
enum class RowOrder : std::uint8_t { interleaved, halves, single };

constexpr std::string_view name(RowOrder order) {
  return order == RowOrder::interleaved ? "interleaved"
         : order == RowOrder::halves    ? "halves"
                                        : "single";
}

enum class Projection : std::uint8_t { gate, up, down };

struct MoeShape {
  WeightFormat format = WeightFormat::mxfp4;
  std::uint64_t experts = 0;
  std::uint64_t hidden = 0;
  std::uint64_t intermediate = 0;
  RowOrder order = RowOrder::interleaved;
  bool has_bias = false;
  bool has_input_scale = false;

  bool gated() const { return order != RowOrder::single; }
  std::uint64_t w13_rows() const { return gated() ? 2 * intermediate : intermediate; }
  friend bool operator==(const MoeShape&, const MoeShape&) = default;
};

}  // namespace fp4moe::checkpoint
