// The engines that compute on this machine, for tests that go through all of them.
#pragma once
#include <vector>

#include "fp4moe/runtime/engines.hpp"

namespace fp4moe::runtime::testing {

inline std::vector<EngineRow> usable_engines() {
  std::vector<EngineRow> result;
  for (const EngineRow& row : engines())
    if (row.check()) result.push_back(row);
  return result;
}

}  // namespace fp4moe::runtime::testing
