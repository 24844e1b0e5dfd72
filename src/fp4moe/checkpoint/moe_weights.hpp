// A layer's experts in memory, canonical: codes two to a byte, block scales as bytes, everything
// else float32. What backends' layouts are made from.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/tensor/buffer.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/checkpoint/slice.hpp"

namespace fp4moe::checkpoint {

// Memory of one expert. A span may be empty: that part is not wanted. Others have exactly the size
// of the view's shape.
struct ExpertTarget {
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
Result<Done> copy_expert(const ExpertView& view, RowOrder order, const ExpertTarget& to);

struct MoeWeights {
  MoeShape shape{};                      // of the slice; `order` is w13's
  std::vector<std::uint64_t> experts{};  // the global numbers of the experts held, ascending
  tensor::Buffer w13_codes{};            // [experts, w13 rows, hidden / 2]
  tensor::Buffer w13_scales{};           // [experts, w13 rows, hidden / block]
  tensor::Buffer w2_codes{};             // [experts, hidden, intermediate / 2]
  tensor::Buffer w2_scales{};            // [experts, hidden, intermediate / block]
  // NVFP4: gate's and up's of each expert (up's alone without a gate), and down's. Empty for MXFP4.
  std::vector<float> w13_global_scales{}, w2_global_scales{};
  // As above, NaN where the checkpoint has none for a projection; empty when it has none at all.
  std::vector<float> w13_input_scales{}, w2_input_scales{};
  std::uint64_t bad_input_scales = 0;  // missing, zero, negative or non-finite ones
  std::vector<float> w13_bias{};       // [experts, w13 rows]; empty without biases
  std::vector<float> w2_bias{};        // [experts, hidden]; zero on tensor-parallel ranks above 0

  ExpertTarget expert(std::size_t position);  // where one expert lies
};

// Loads a rank's share of a layer on up to `threads` threads; the result does not depend on them.
// Pages of the files are let go behind the readers.
Result<MoeWeights> load_layer(const Checkpoint& checkpoint, std::size_t layer, const Slice& slice,
                              RowOrder order, std::size_t threads);

}  // namespace fp4moe::checkpoint
