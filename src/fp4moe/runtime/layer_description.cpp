#include "fp4moe/runtime/layer_description.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/moe/activation.hpp"

namespace fp4moe::runtime {
namespace {

using moe::routing::Method;
using moe::routing::RouterOptions;

struct Constant {
  std::string_view name;
  const std::optional<double>& value;
  bool (*is_fine)(double);
  std::string_view expected;
};

Result<Done> check_constants(const LayerDescription& given) {
  const auto finite = [](double value) { return std::isfinite(value); };
  const Constant all[] = {
      {"alpha", given.alpha, finite, "a finite number"},
      {"beta", given.beta, finite, "a finite number"},
      {"limit", given.limit, [](double value) { return value > 0; }, "a number above 0"},
      {"situ_beta", given.situ_beta,
       [](double value) { return std::isfinite(value) && value != 0; }, "a finite number, not 0"},
      {"situ_linear_beta", given.situ_linear_beta, finite, "a finite number"}};
  for (const Constant& constant : all)
    if (constant.value && !constant.is_fine(*constant.value))
      return usage("description.constant", "the activation cannot be computed with this constant")
          .at(constant.name)
          .expects(constant.expected, fmt::format("{}", *constant.value));
  return Done{};
}

// The whole layer, of which the weights are all or a part.
Result<checkpoint::MoeShape> whole_of(const LayerDescription& given,
                                      const checkpoint::MoeShape& part) {
  checkpoint::MoeShape whole = part;
  if (given.experts != 0) whole.experts = given.experts;
  if (given.intermediate != 0) whole.intermediate = given.intermediate;
  const std::array<std::uint64_t, 4> factors{2, whole.experts, whole.hidden, whole.intermediate};
  const bool is_larger = whole.experts >= part.experts && whole.intermediate >= part.intermediate;
  if (is_larger && checked_product(factors) &&
      (given.experts == 0 || given.experts <= moe::routing::kMaxExperts))
    return whole;
  return usage("description.whole", "the weights cannot be part of such a layer")
      .expects(fmt::format("{} to {} experts, an intermediate size of at least {}", part.experts,
                           std::max(part.experts, moe::routing::kMaxExperts), part.intermediate),
               fmt::format("{} experts, {}", whole.experts, whole.intermediate));
}

// 0 means what the layer has.
Result<RouterOptions> router_of(const LayerDescription& given, std::uint64_t experts) {
  RouterOptions router = given.router.value_or(RouterOptions{.method = Method::unspecified});
  if (router.experts != 0 && router.experts != experts)
    return usage("description.experts", "the router chooses among other experts")
        .expects(fmt::format("{}", experts), fmt::format("{}", router.experts));
  router.experts = experts;
  if (router.top_k == 0) router.top_k = given.top_k;
  const bool differs = given.top_k != 0 && given.top_k != router.top_k;
  if (router.top_k == 0 || router.top_k > experts || differs)
    return usage("description.top_k", "invalid top_k")
        .expects(differs ? fmt::format("{}, as the router", router.top_k)
                         : fmt::format("1 to {}", experts),
                 fmt::format("{}", differs ? given.top_k : router.top_k));
  return router;
}

}  // namespace

Result<LayerFacts> layer_facts(const LayerDescription& description,
                               const checkpoint::MoeShape& weights) {
  if (!description.activation)
    return usage("description.activation", "the layer's activation is not given")
        .expects("one of moe/activation.hpp, such as silu or swigluoai", "none");
  const auto computed = moe::activation_from_name(oracle::name(*description.activation));
  if (computed && moe::is_gated(*computed) != weights.gated())
    return usage("description.activation", "the activation does not fit the weights")
        .expects(weights.gated() ? "one with a gate" : "one without a gate",
                 oracle::name(*description.activation));
  if (const auto fine = check_constants(description); !fine) return fine.why();
  const Result<checkpoint::MoeShape> whole = whole_of(description, weights);
  if (!whole) return whole.why();
  Result<RouterOptions> router = router_of(description, whole->experts);
  if (!router) return router.why();

  LayerFacts facts{.model = plan::model_of_shape(*whole, description.split, router->top_k)};
  oracle::Layer& layer = facts.model.layer;
  layer.activation = *description.activation;
  layer.routing = oracle::routing_from_name(moe::routing::name(router->method))
                      .value_or(oracle::Routing::unspecified);
  layer.swiglu_limit = description.limit;
  layer.situ_beta = description.situ_beta;
  layer.situ_linear_beta = description.situ_linear_beta;
  if (description.activation_key) layer.activation_key = *description.activation_key;
  facts.alpha = description.alpha;
  facts.beta = description.beta;
  facts.weight_on_input = description.weight_on_input || router->method == Method::llama4;
  facts.router = *std::move(router);
  return facts;
}

}  // namespace fp4moe::runtime
