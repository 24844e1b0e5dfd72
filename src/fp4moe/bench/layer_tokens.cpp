#include "fp4moe/bench/layer_tokens.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/bench/layer_random.hpp"
#include "fp4moe/formats/bf16.hpp"

namespace fp4moe::bench {
namespace {

using moe::routing::Router;

// Added to logits of favored experts; small enough that a sigmoid still tells them apart.
constexpr float kLift = 6.0f;
constexpr std::uint64_t kFavored = 8;  // one expert in so many

}  // namespace

moe::Tokens TokenSet::call(std::size_t routing) const {
  return {.x = moe::dense_rows(std::span(x), moe::DType::bf16, tokens, hidden),
          .logits = moe::dense_rows(std::span(logits[routing]), moe::DType::f32, tokens, experts)};
}

Result<Routes> TokenSet::route(const Router& router, std::size_t routing, ThreadPool& pool) const {
  Routes result;
  result.ids.resize(tokens * router.assignments_per_token());
  result.weights.resize(result.ids.size());
  const auto done =
      router.route({.logits = {logits[routing].data(), moe::DType::f32, tokens, experts, 0}},
                   {.ids = result.ids, .weights = result.weights}, pool);
  if (!done) return done.why();
  return result;
}

Result<TokenSet> make_tokens(const moe::routing::RouterOptions& options,
                             const TokenSetOptions& wanted, ThreadPool& pool) {
  const bool skewed = wanted.routing == "skewed";
  if (!skewed && wanted.routing != "uniform")
    return usage("bench.routing", "there is no such routing to measure")
        .expects("uniform or skewed", fmt::format("'{}'", printable(wanted.routing)));
  const Result<Router> router = Router::make(options);
  if (!router) return router.why();
  TokenSet result{.tokens = wanted.tokens, .hidden = wanted.hidden, .experts = router->columns()};
  SplitMix64 random(wanted.seed);
  result.x.resize(result.tokens * result.hidden);
  for (std::uint16_t& value : result.x) value = formats::Bf16::encode(nearly_normal(random));

  const std::uint64_t favored = std::max(options.top_k, result.experts / kFavored);
  std::uint64_t active = 0;
  for (std::size_t routing = 0; routing < wanted.routings; ++routing) {
    std::vector<float>& logits = result.logits.emplace_back(result.tokens * result.experts);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const bool lifted = skewed && (i / result.experts + routing) % 2 == 0;
      logits[i] = nearly_normal(random) + (lifted && i % result.experts < favored ? kLift : 0.0f);
    }
    const Result<Routes> routes = result.route(*router, routing, pool);
    if (!routes) return routes.why();
    std::vector<bool> seen(router->columns() + options.shared_experts);
    for (const std::int32_t id : routes->ids)
      if (id >= 0) seen[static_cast<std::size_t>(id)] = true;
    active += static_cast<std::uint64_t>(std::ranges::count(seen, true));
  }
  result.active_experts = static_cast<double>(active) / static_cast<double>(wanted.routings);
  return result;
}

}  // namespace fp4moe::bench
