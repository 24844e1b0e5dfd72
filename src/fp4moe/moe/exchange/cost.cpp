#include "fp4moe/moe/exchange/cost.hpp"

#include <algorithm>

#include "fp4moe/moe/exchange/wire.hpp"

namespace fp4moe::moe::exchange {
namespace {

constexpr std::uint64_t kWord = sizeof(std::uint64_t);

std::uint64_t chosen(const CostRequest& request) {
  return std::min(request.top_k, request.experts);
}

// The probability that none of the chosen experts is among the `held` ones.
double chance_of_none(const CostRequest& request, std::uint64_t held) {
  double chance = 1;
  for (std::uint64_t i = 0; i < chosen(request); ++i) {
    if (request.experts - held <= i) return 0;
    chance *=
        static_cast<double>(request.experts - held - i) / static_cast<double>(request.experts - i);
  }
  return chance;
}

}  // namespace

double expected_ranks(const CostRequest& request) {
  const std::uint64_t n = request.ranks, rest = request.experts % n, base = request.experts / n;
  const double hit = static_cast<double>(rest) * (1 - chance_of_none(request, base + 1)) +
                     static_cast<double>(n - rest) * (1 - chance_of_none(request, base));
  return hit * static_cast<double>(n - 1) / static_cast<double>(n);  // not counting its own
}

double expected_experts(const CostRequest& request) {
  return static_cast<double>(chosen(request)) * static_cast<double>(request.ranks - 1) /
         static_cast<double>(request.ranks);
}

Cost cost_of(std::string_view exchange, const CostRequest& request) {
  Cost cost{.exchange = exchange, .activations = request.activations};
  if (request.ranks <= 1) return cost;
  const std::uint64_t others = request.ranks - 1;
  const std::uint64_t sums = request.hidden * element_bytes(request.type);
  const std::uint64_t row = request.activations == ActivationKey::none
                                ? sums
                                : encoded_bytes(request.activations, request.hidden);
  TokenShape shape{.row = row,
                   .ids = request.top_k,
                   .weights = request.top_k,
                   .adapters = request.adapters ? 1u : 0u};
  const auto travel = [&](double journeys, double journeys_at_worst) {
    cost.dispatch = journeys * static_cast<double>(shape.bytes());
    cost.combine = journeys * static_cast<double>(sums);
    cost.dispatch_at_worst = journeys_at_worst * static_cast<double>(shape.bytes());
    cost.combine_at_worst = journeys_at_worst * static_cast<double>(sums);
  };
  if (exchange == "gather") {
    travel(static_cast<double>(others), static_cast<double>(others));
    cost.call = others * 3 * kWord;  // a hash, tokens, adapters
  } else if (exchange == "all_to_all") {
    travel(expected_ranks(request), static_cast<double>(std::min(chosen(request), others)));
    cost.call = others * (2 + request.ranks) * kWord;  // a hash, adapters, tokens for each rank
  } else if (exchange == "all_to_all_batched") {
    shape.ids = 1;
    shape.weights = 0;
    travel(expected_experts(request), static_cast<double>(chosen(request)));
    cost.call = others * (2 + request.ranks) * kWord;
  } else if (exchange == "all_reduce") {
    // Each rank sums a part of the rows: parts go there, and the sums go everywhere.
    const double share = static_cast<double>(others) / static_cast<double>(request.ranks);
    cost.activations = ActivationKey::none;
    cost.combine = cost.combine_at_worst = 2 * share * static_cast<double>(sums);
  }
  return cost;
}

}  // namespace fp4moe::moe::exchange
