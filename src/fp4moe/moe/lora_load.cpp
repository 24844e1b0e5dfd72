#include "fp4moe/moe/lora_load.hpp"

#include <string>
#include <utility>

namespace fp4moe::moe {
namespace {

FloatMatrix matrix_of(const checkpoint::LoraMatrix& from) {
  return {.data = from.data, .rows = from.rows, .columns = from.columns, .stride = from.columns};
}

LowRank low_rank_of(const checkpoint::LoraPair& from) {
  if (from.empty()) return {};
  return {.a = matrix_of(from.a), .b = matrix_of(from.b)};
}

}  // namespace

Result<LoraSet> LoraSet::load(std::span<const checkpoint::Adapter* const> adapters,
                              std::size_t layer, const checkpoint::LoraCut& cut) {
  LoraSet set;
  for (const checkpoint::Adapter* adapter : adapters) {
    const checkpoint::MoeShape& shape = adapter->targets()[layer].shape;
    const checkpoint::MoeShape& first = adapters[0]->targets()[layer].shape;
    if (shape != first)
      return usage("lora.experts", "adapters of one batch must be opened for the same layers")
          .in(adapter->folder())
          .expects(std::to_string(first.experts) + " experts of the first one's sizes",
                   std::to_string(shape.experts) + " experts, or other sizes");
    Result<checkpoint::LoraAdapter> loaded = checkpoint::LoraAdapter::load(*adapter, layer, cut);
    if (!loaded) return loaded.why();
    set.add(*std::move(loaded));
  }
  return set;
}

Result<LoraSet> LoraSet::of(std::span<const checkpoint::LoraWeights> adapters,
                            const checkpoint::LoraLayer& layer, const checkpoint::LoraCut& cut) {
  LoraSet set;
  for (const checkpoint::LoraWeights& adapter : adapters) {
    Result<checkpoint::LoraAdapter> loaded = checkpoint::LoraAdapter::of(adapter, layer, cut);
    if (!loaded) return loaded.why();
    set.add(*std::move(loaded));
  }
  return set;
}

// Adds an adapter of the same layer as those before it.
void LoraSet::add(checkpoint::LoraAdapter adapter) {
  using checkpoint::Projection;
  experts_ = adapter.experts().size();
  for (std::size_t e = 0; e < experts_; ++e)
    pairs_.push_back({.gate = low_rank_of(adapter.at(Projection::gate, e)),
                      .up = low_rank_of(adapter.at(Projection::up, e)),
                      .down = low_rank_of(adapter.at(Projection::down, e))});
  adapters_.push_back(std::move(adapter));
}

}  // namespace fp4moe::moe
