#include "fp4moe/moe/lora_load.hpp"

#include <string>
#include <utility>

namespace fp4moe::moe {
namespace {

FloatMatrix matrix_of(const weights::LoraMatrix& from) {
  return {.data = from.data, .rows = from.rows, .columns = from.columns, .stride = from.columns};
}

LowRank low_rank_of(const weights::LoraPair& from) {
  if (from.empty()) return {};
  return {.a = matrix_of(from.a), .b = matrix_of(from.b)};
}

}  // namespace

Result<LoraSet> LoraSet::load(std::span<const weights::Adapter* const> adapters, std::size_t layer,
                              const weights::LoraCut& cut) {
  using weights::Projection;
  LoraSet set;
  for (const weights::Adapter* adapter : adapters) {
    const weights::MoeShape& shape = adapter->targets()[layer].shape;
    const weights::MoeShape& first = adapters[0]->targets()[layer].shape;
    if (shape != first)
      return usage("lora.experts", "adapters of one batch must be opened for the same layers")
          .in(adapter->folder())
          .expects(std::to_string(first.experts) + " experts of the first one's sizes",
                   std::to_string(shape.experts) + " experts, or other sizes");
    Result<weights::LoraAdapter> loaded = weights::LoraAdapter::load(*adapter, layer, cut);
    if (!loaded) return loaded.why();
    set.experts_ = loaded->experts().size();
    for (std::size_t e = 0; e < set.experts_; ++e)
      set.pairs_.push_back({.gate = low_rank_of(loaded->at(Projection::gate, e)),
                            .up = low_rank_of(loaded->at(Projection::up, e)),
                            .down = low_rank_of(loaded->at(Projection::down, e))});
    set.adapters_.push_back(*std::move(loaded));
  }
  return set;
}

}  // namespace fp4moe::moe
