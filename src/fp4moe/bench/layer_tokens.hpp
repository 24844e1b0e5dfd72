// Tokens for calls of a layer: one set of activations and many sets of router logits, so that every
// call takes other experts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/moe/exchange.hpp"
#include "fp4moe/moe/routing/router.hpp"

namespace fp4moe::bench {

struct TokenSetOptions {
  std::uint64_t tokens = 1, hidden = 0;
  std::size_t routings = 1;
  std::string routing = "uniform";  // skewed: half of the tokens go to an eighth of the experts
  std::uint64_t seed = 1;
};

struct Routes {
  std::vector<std::int32_t> ids{};  // [tokens, assignments]
  std::vector<float> weights{};
};

struct TokenSet {
  std::uint64_t tokens = 0, hidden = 0, experts = 0;
  std::vector<std::uint16_t> x{};            // bf16, about normal
  std::vector<std::vector<float>> logits{};  // of each routing, [tokens, experts]
  double active_experts = 0;                 // of a call, on average

  moe::Tokens call(std::size_t routing) const;
  Result<Routes> route(const moe::routing::Router& router, std::size_t routing,
                       ThreadPool& pool) const;
};

// Errors: bench.routing (no such kind), those of the router.
Result<TokenSet> make_tokens(const moe::routing::RouterOptions& router,
                             const TokenSetOptions& options, ThreadPool& pool);

}  // namespace fp4moe::bench
