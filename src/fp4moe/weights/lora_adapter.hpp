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
#include "fp4moe/weights/adapter.hpp"
#include "fp4moe/weights/slice.hpp"

namespace fp4moe::weights {

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

class LoraAdapter {
 public:
  // `layer` is a position in adapter.targets(). Errors: adapter.not_finite, adapter.sharding (a
  // rank or hidden size that cannot be shared out), slice.empty, and those of slices.
  static Result<LoraAdapter> load(const Adapter& adapter, std::size_t layer, const LoraCut& cut);

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

}  // namespace fp4moe::weights
