// The exact outputs of a measured layer.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/bench/layer_model.hpp"
#include "fp4moe/bench/layer_tokens.hpp"

namespace fp4moe::bench {

// The first few tokens' outputs of the first layer and routing by the reference engine, from their
// experts alone: [tokens, hidden], as many as were computed.
Result<std::vector<double>> exact_outputs(const LayerModel& model, moe::ExpertsProblem problem,
                                          const TokenSet& tokens, std::shared_ptr<ThreadPool> pool);

// Root mean square of the difference, as a share of that of the exact values; `found` may be
// longer.
double relative_error(std::span<const double> exact, std::span<const float> found);

}  // namespace fp4moe::bench
