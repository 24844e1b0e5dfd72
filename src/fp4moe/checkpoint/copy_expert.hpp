// One expert in memory, canonical: codes two to a byte, block scales as bytes, biases float32.
#pragma once
#include <cstddef>
#include <span>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/expert.hpp"

namespace fp4moe::checkpoint {

// Memory of one expert. A span may be empty: that part is not wanted. Others have exactly the size
// of the view's shape.
struct CopyTarget {
  std::span<std::byte> w13_codes{};   // [w13 rows, hidden / 2]
  std::span<std::byte> w13_scales{};  // [w13 rows, hidden / block]
  std::span<std::byte> w2_codes{};    // [hidden, intermediate / 2]
  std::span<std::byte> w2_scales{};   // [hidden, intermediate / block]
  std::span<float> w13_bias{};        // [w13 rows]
  std::span<float> w2_bias{};         // [hidden]
};

// Copies a view, w13's rows in `order`. Biases that the view lacks become zero. Depends on the view
// alone. Errors: moe_weights.order (a gate where there is none, or none where there is one),
// moe_weights.size.
Result<Done> copy_expert(const ExpertView& view, RowOrder order, const CopyTarget& to);

}  // namespace fp4moe::checkpoint
