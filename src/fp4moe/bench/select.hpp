// How long does one selection take, under every policy? It measures the longest path: a layer that
// only the last candidates compute, on every well-known device.
#pragma once
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/bench/measure.hpp"

namespace fp4moe::bench {

struct SelectOptions {
  double seconds = 5;  // for everything together
};

// `select` chooses; `record` also evaluates all other kernels and says all that follows, as JSON.
struct SelectResult {
  std::string policy{}, format{};
  double select_us = 0, record_us = 0;  // of one, the median over devices' rounds
  std::size_t candidates = 0;           // kernels that one record evaluates
};

Result<std::vector<SelectResult>> bench_select(const SelectOptions& options);

Json to_json(const SelectResult& result);

}  // namespace fp4moe::bench
