// The traffic of a split between ranks: bytes that a rank sends per token and layer, for each way
// in which tokens may travel.
#pragma once
#include <vector>

#include "fp4moe/moe/exchange/cost.hpp"
#include "fp4moe/oracle/words.hpp"
#include "fp4moe/plan/split.hpp"

namespace fp4moe::plan {

struct WireRow {
  moe::exchange::Cost cost{};
  bool used = false;  // what the deployment's exchange amounts to
};

// Ranks that have the same tokens sum their results (all_reduce). Where whole experts are split,
// tokens can travel instead: as they are, and in the types that go with the weights. Nothing for
// one rank.
std::vector<WireRow> plan_wire(const Model& model, const Split& split,
                               oracle::PolicyDate policy_date);

}  // namespace fp4moe::plan
