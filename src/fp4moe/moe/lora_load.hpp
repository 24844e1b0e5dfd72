// Adapters from files or memory as the engine's view of them: one layer, one rank, any number of adapters of
// any ranks.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/lora/lora_adapter.hpp"
#include "fp4moe/moe/lora.hpp"

namespace fp4moe::moe {

class LoraSet {
 public:
  // The adapters in the order of their numbers; each opened for the same layers. `layer` is a
  // position among those. Errors: those of LoraAdapter::load, lora.experts (the adapters were
  // opened for layers of different sizes).
  static Result<LoraSet> load(std::span<const checkpoint::Adapter* const> adapters,
                              std::size_t layer, const checkpoint::LoraCut& cut);

  // From memory of the caller, which is copied. Errors: those of LoraAdapter::of.
  static Result<LoraSet> of(std::span<const checkpoint::LoraWeights> adapters,
                            const checkpoint::LoraLayer& layer, const checkpoint::LoraCut& cut);

  // Valid while the set lives; moving it keeps the view's memory.
  LoraView view() const { return {.pairs = pairs_, .experts = experts_}; }
  std::span<const checkpoint::LoraAdapter> adapters() const { return adapters_; }

 private:
  void add(checkpoint::LoraAdapter adapter);

  std::vector<checkpoint::LoraAdapter> adapters_{};
  std::vector<LoraExpert> pairs_{};  // [adapters, experts]
  std::size_t experts_ = 0;
};

}  // namespace fp4moe::moe
