// The tensors of a golden case as a layer's experts.
#pragma once
#include <cstdint>
#include <string_view>

#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/convert/pack/layer_packer.hpp"
#include "golden/layout_layer.hpp"

namespace fp4moe::golden {

// One name for what the files call differently: "w13_weight" is "w13".
std::string_view our_name(std::string_view golden);

class LayoutExperts {
 public:
  explicit LayoutExperts(const LayerCase& layer) : layer_(layer) {}

  // By our name; null when there is none.
  const LayoutInput* find(std::string_view name) const;
  checkpoint::ExpertView view(std::uint64_t expert) const;
  // Of the experts of every rank.
  convert::InputScales input_scales() const;

  // Where rows of a projection lie: from `first` on, every `step`-th of `count`.
  struct RowPattern {
    std::string_view matrix{};
    std::uint64_t first = 0, step = 1, count = 0;
  };
  RowPattern place(checkpoint::Projection which) const;

 private:
  checkpoint::ProjectionView projection(checkpoint::Projection which, std::uint64_t expert) const;

  const LayerCase& layer_;
};

}  // namespace fp4moe::golden
