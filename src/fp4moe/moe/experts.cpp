#include "fp4moe/moe/experts.hpp"

#include <cmath>

#include <fmt/format.h>

namespace fp4moe::moe {
namespace {

bool needs_scales(ActivationKey key) {
  return key == ActivationKey::nvfp4 || key == ActivationKey::fp8_static_tensor;
}

Result<Done> check_scales(const char* what, const std::vector<float>& scales,
                          std::uint64_t experts) {
  if (scales.size() != 1 && scales.size() != experts)
    return usage("experts.scales", fmt::format("{} scales of activations do not fit", what))
        .expects(fmt::format("1 or {}", experts), fmt::format("{}", scales.size()));
  for (const float scale : scales)
    if (!std::isfinite(scale) || scale <= 0)
      return usage("experts.scales", fmt::format("a scale of the {} cannot be used", what))
          .expects("a positive finite number", fmt::format("{}", scale));
  return Done{};
}

Result<Done> check_ids(const ExpertsCall& call) {
  const Prepared& in = call.in;
  const std::uint64_t assignments = in.x.rows * in.top_k;
  if (in.ids.size() != assignments || in.weights.size() != assignments)
    return usage("experts.ids", "ids and weights do not fit the rows")
        .expects(fmt::format("{} of each ({} rows, {} per row)", assignments, in.x.rows, in.top_k),
                 fmt::format("{} ids, {} weights", in.ids.size(), in.weights.size()));
  if (call.weight_on_input && in.top_k != 1)
    return usage("experts.on_input", "the router's weight on the input needs one expert per token")
        .expects("top_k 1", fmt::format("{}", in.top_k));
  return Done{};
}

Result<Done> check_counts(const ExpertsProblem& problem, const Prepared& in) {
  const std::uint64_t experts = problem.shape.experts;
  if (in.counts.size() != experts || in.x.rows != experts * in.capacity)
    return usage("experts.counts", "batches do not fit the experts")
        .expects(fmt::format("{} counts and {} rows", experts, experts * in.capacity),
                 fmt::format("{} counts and {} rows", in.counts.size(), in.x.rows));
  for (std::size_t e = 0; e < experts; ++e)
    if (in.counts[e] < 0 || static_cast<std::uint64_t>(in.counts[e]) > in.capacity)
      return usage("experts.counts", fmt::format("the count of expert {} is out of range", e))
          .expects(fmt::format("0 to {}", in.capacity), fmt::format("{}", in.counts[e]));
  return Done{};
}

Result<Done> check_adapters(const ExpertsProblem& problem, const ExpertsCall& call) {
  if (call.in.adapters.empty() || call.lora.empty()) return Done{};
  if (call.in.adapters.size() != call.in.x.rows || call.lora.experts != problem.shape.experts)
    return usage("experts.adapters", "adapters do not fit the rows or the experts")
        .expects(fmt::format("{} rows, {} experts", call.in.x.rows, problem.shape.experts),
                 fmt::format("{} rows, {} experts", call.in.adapters.size(), call.lora.experts));
  for (const std::int32_t adapter : call.in.adapters)
    if (adapter >= 0 && static_cast<std::size_t>(adapter) >= call.lora.adapters())
      return usage("experts.adapters", "a token asks for an adapter that is not loaded")
          .expects(fmt::format("-1 to {}", call.lora.adapters() - 1), fmt::format("{}", adapter));
  return Done{};
}

}  // namespace

Result<Done> check(const ExpertsProblem& problem) {
  const checkpoint::MoeShape& shape = problem.shape;
  if (is_gated(problem.activation) != shape.gated())
    return usage("experts.activation", "the activation does not fit the weights")
        .expects(shape.gated() ? "one with a gate" : "one without a gate",
                 name(problem.activation));
  const std::uint64_t block = checkpoint::block_size(shape.format);
  if (shape.hidden == 0 || shape.hidden % block != 0 || shape.intermediate % block != 0)
    return usage("experts.blocks", "sizes are not whole blocks of the weights")
        .expects(fmt::format("multiples of {}", block),
                 fmt::format("hidden {}, intermediate {}", shape.hidden, shape.intermediate));
  if (!needs_scales(problem.quantizes)) return Done{};
  if (const auto fine = check_scales("input", problem.input_scales, shape.experts); !fine)
    return fine.why();
  return check_scales("hidden", problem.hidden_scales, shape.experts);
}

Result<Done> check(const ExpertsProblem& problem, const ExpertsCall& call, OutputForm form,
                   const MutableRows& out) {
  const Prepared& in = call.in;
  const bool is_batched = in.format == TokenFormat::batched;
  if (is_batched != (form == OutputForm::batches))
    return usage("experts.format", "the form of the output does not fit that of the tokens")
        .expects(is_batched ? "batches" : "summed rows or assignments",
                 form == OutputForm::batches ? "batches" : "rows");
  const std::uint64_t rows = form == OutputForm::assignments ? in.x.rows * in.top_k : in.x.rows;
  if (out.rows != rows)
    return usage("experts.output", "the output has the wrong number of rows")
        .expects(fmt::format("{}", rows), fmt::format("{}", out.rows));
  if (const auto fine = check_rows(in.x, "tokens", problem.shape.hidden); !fine) return fine.why();
  if (const auto fine = check_rows(out, "outputs", problem.shape.hidden); !fine) return fine.why();
  const auto counts = is_batched ? check_counts(problem, in) : check_ids(call);
  if (!counts) return counts.why();
  return check_adapters(problem, call);
}

}  // namespace fp4moe::moe
