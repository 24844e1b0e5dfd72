// How long do tokens take from router logits to rows in the order of their experts, and is twice as
// many twice as long? The ceiling is reading the logits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/bench/measure.hpp"

namespace fp4moe::bench {

struct RouteOptions {
  std::size_t threads = 1;
  double seconds = 10;                      // for everything together
  std::vector<std::uint64_t> tokens{8192};  // each is measured, and twice as many
};

// Times are of routing and grouping (expert_first_token_offset and both index lists) together.
struct RouteResult {
  std::string model{}, method{}, logits{};
  std::uint64_t experts = 0, top_k = 0, tokens = 0;
  Timing once{}, twice{};  // `twice`: of 2 * tokens; work is bytes of logits
  double read_gb_per_s = 0;

  double ns_per_token() const { return 1e3 * once.us_median / static_cast<double>(tokens); }
  double tokens_per_s() const { return 1e9 / ns_per_token(); }
  double share_of_read() const { return once.rate() / read_gb_per_s; }
  // 1: twice the tokens take twice the time.
  double growth() const { return twice.us_median / once.us_median / 2; }
};

// Errors: bench.tokens, no memory.
Result<std::vector<RouteResult>> bench_route(const RouteOptions& options);

Json to_json(const RouteResult& result, std::size_t threads);

}  // namespace fp4moe::bench
