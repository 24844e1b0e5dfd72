// An adapter's numbers for one layer and rank, in memory as float32. B holds the scale already.
//
// Tensor parallelism cuts B of gate and up by rows and A of down by columns, at the borders where
// the weights are cut; fully sharded ranks also share out A of gate and up by its rank and B of
// down by its rows.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/lora/adapter.hpp"
#include "fp4moe/checkpoint/slice.hpp"

namespace fp4moe::checkpoint {

struct LoraMatrix {
  const float* data = nullptr;  // dense rows
  std::uint64_t rows = 0, columns = 0;
};

struct LoraPair {
  LoraMatrix a{};  // [rank, inputs]
  LoraMatrix b{};  // [outputs, rank]
  bool empty() const { return a.data == nullptr; }
};

struct LoraCut {
  Slice slice{};
  bool fully_sharded = false;
};

// A factor of all experts in memory that belongs to the caller, [experts, rows, columns] of bf16,
// f16 or f32 without gaps, or [1, rows, columns] where experts have it in common.
struct StackedFactor {
  std::span<const std::byte> bytes{};
  tensor::DType dtype = tensor::DType::bf16;
};
struct StackedPair {
  StackedFactor a{};  // [rank, inputs] of an expert
  StackedFactor b{};  // [outputs, rank]
};

// An adapter of one layer in memory. What it does not change is left empty.
struct LoraWeights {
  std::uint64_t rank = 0;
  float scale = 1;    // of B: alpha / rank, as a rule
  StackedPair w13{};  // gate and up with one A; rows of B in the order of the layer's w13
  StackedPair gate{}, up{}, down{};
};

// The layer that it changes.
struct LoraLayer {
  MoeShape shape{};
  SplitRule rule = SplitRule::equal;
};

class LoraAdapter {
 public:
  // `layer` is a position in adapter.targets(). Errors: adapter.not_finite, adapter.sharding (a
  // rank or hidden size that cannot be shared out), slice.empty, and those of slices.
  static Result<LoraAdapter> load(const Adapter& adapter, std::size_t layer, const LoraCut& cut);

  // From memory, which is copied. Errors: adapter.rank (0, or more than a matrix has), adapter.pair
  // (one factor alone), adapter.shape (memory of another size), adapter.dtype, adapter.no_gate,
  // adapter.duplicate (w13 and its parts), and as above.
  static Result<LoraAdapter> of(const LoraWeights& given, const LoraLayer& layer,
                                const LoraCut& cut);

  // The global numbers of the experts held, ascending; positions below count in it.
  std::span<const std::uint64_t> experts() const { return experts_; }
  // Empty where the adapter changes nothing.
  const LoraPair& at(Projection which, std::size_t position) const {
    return pairs_[position][static_cast<std::size_t>(which)];
  }
  std::uint64_t bytes() const;  // of memory

 private:
  std::vector<std::uint64_t> experts_{};
  std::vector<std::array<LoraPair, 3>> pairs_{};
  std::vector<std::vector<float>> numbers_{};  // what the pairs point into
};

}  // namespace fp4moe::checkpoint
