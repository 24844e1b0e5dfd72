#include "fp4moe/bench/layer_exact.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "fp4moe/moe/reference/engine.hpp"

namespace fp4moe::bench {
namespace {

constexpr std::uint64_t kCheckedTokens = 3;

}  // namespace

using moe::DType;

Result<std::vector<double>> exact_outputs(const LayerModel& model, moe::ExpertsProblem problem,
                                          const TokenSet& tokens,
                                          std::shared_ptr<ThreadPool> pool) {
  const auto router = moe::routing::Router::make(model.router());
  if (!router) return router.why();
  const Result<Routes> routes = tokens.route(*router, 0, *pool);
  if (!routes) return routes.why();
  const std::uint64_t count = std::min(kCheckedTokens, tokens.tokens);
  const std::size_t assignments = count * router->assignments_per_token();
  std::vector<std::int32_t> map(tokens.experts, -1);
  std::vector<std::size_t> used;
  for (std::size_t i = 0; i < assignments; ++i) {
    if (routes->ids[i] < 0) continue;  // unassigned
    const auto id = static_cast<std::size_t>(routes->ids[i]);
    if (map[id] >= 0) continue;
    map[id] = static_cast<std::int32_t>(used.size());
    used.push_back(id);
  }
  const moe::ExpertSource all = model.source(0);
  moe::ExpertSource some{.shape = all.shape};
  some.shape.experts = used.size();
  some.visit = [&](std::size_t position, const moe::UseExpert& use) {
    return all.visit(used[position], [&](const checkpoint::ExpertView& given) {
      checkpoint::ExpertView view = given;
      view.shape.experts = used.size();
      return use(view);
    });
  };
  problem.shape.experts = used.size();
  const moe::reference::ReferenceEngine engine(std::move(pool));
  const auto experts = engine.make(problem, some);
  if (!experts) return experts.why();
  const bool on_input = model.router().method == moe::routing::Method::llama4;
  std::vector<double> x(count * tokens.hidden), out(count * tokens.hidden);
  for (std::uint64_t t = 0; t < count; ++t) {
    const auto row = std::span(x).subspan(t * tokens.hidden, tokens.hidden);
    moe::read_row(tokens.call(0).x, t, row);
    if (on_input)
      for (double& value : row)
        value = moe::rounded_to_bf16(value * moe::rounded_to_bf16(double{routes->weights[t]}));
  }
  const moe::Prepared in{
      {.x = moe::dense_rows(std::span<const double>(x), DType::f64, count, tokens.hidden),
       .top_k = router->assignments_per_token(),
       .ids = std::span(routes->ids).first(assignments),
       .weights = std::span(routes->weights).first(assignments)}};
  const auto done = (*experts)->compute(
      {.in = in, .expert_map = map, .weight_on_input = on_input}, moe::OutputForm::summed,
      moe::dense_rows(std::span(out), DType::f64, count, tokens.hidden));
  if (!done) return done.why();
  return out;
}

double relative_error(std::span<const double> exact, std::span<const float> found) {
  double wrong = 0, all = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    wrong += (double{found[i]} - exact[i]) * (double{found[i]} - exact[i]);
    all += exact[i] * exact[i];
  }
  return all == 0 ? std::sqrt(wrong) : std::sqrt(wrong / all);
}

}  // namespace fp4moe::bench
