// A layer in its caller's words, for weights in memory: what a checkpoint's config.json and its
// tensors' names would say.
//
//   LayerDescription gpt_oss{.activation = oracle::Activation::swigluoai, .top_k = 4};
//   gpt_oss.router = moe::routing::RouterOptions{.method = moe::routing::Method::renormalize};
#pragma once
#include <cstdint>
#include <optional>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/moe_shape.hpp"
#include "fp4moe/checkpoint/slice.hpp"
#include "fp4moe/moe/routing/router.hpp"
#include "fp4moe/oracle/words.hpp"
#include "fp4moe/runtime/facts.hpp"

namespace fp4moe::runtime {

struct LayerDescription {
  std::optional<oracle::Activation> activation{};  // must be given
  // Its constants; absent: its own (moe/activation.hpp).
  std::optional<double> alpha{}, beta{}, limit{}, situ_beta{}, situ_linear_beta{};
  std::uint64_t top_k = 0;  // experts of a token; 0: the router's
  // How tokens choose their experts; `experts` and `top_k` may be left at 0. Absent: every call
  // brings ids and weights.
  std::optional<moe::routing::RouterOptions> router{};
  bool weight_on_input = false;  // router weights multiply x instead of the output; Llama4's do
  // Sizes of the whole layer if the weights are a slice of it; 0: as the weights have them.
  std::uint64_t experts = 0, intermediate = 0;
  checkpoint::SplitRule split = checkpoint::SplitRule::equal;  // gpt-oss: ceil_blocks
  // How activations are meant to be quantized; absent: NVFP4 where the weights bring input scales.
  std::optional<oracle::ActivationKey> activation_key{};
};

// `weights` is the shape of the weights in memory; the facts' shape is the whole layer's. Errors:
// description.activation (none, or with a gate where the weights have none), description.constant (one that nothing can be computed with),
// description.top_k, description.experts (a router of another number),
// description.whole (a whole that is less than its part, or more than can be).
Result<LayerFacts> layer_facts(const LayerDescription& description,
                               const checkpoint::MoeShape& weights);

}  // namespace fp4moe::runtime
