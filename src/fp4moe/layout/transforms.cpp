#include "fp4moe/layout/transforms.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"

namespace fp4moe::layout {
namespace {

using tensor::DType;

Result<float> largest(const std::vector<float>& scales, std::string_view which) {
  float max = 0;
  for (const float scale : scales) {
    if (!std::isfinite(scale) || scale <= 0)
      return invalid("scale.input",
                     fmt::format("an input scale of {} is missing or unusable", which))
          .expects("a finite number above zero for every expert",
                   std::isnan(scale) ? std::string("none") : fmt::format("{}", scale))
          .try_this("see `fp4moe lint`, or choose a backend with 16-bit activations");
    max = std::max(max, scale);
  }
  return max;
}

constexpr float kAbsent = std::numeric_limits<float>::quiet_NaN();

InputScales inputs_of(ExpertList experts) {
  InputScales all;
  for (const ExpertScalars& expert : experts) {
    all.gate.push_back(expert.gate_input.value_or(kAbsent));
    all.up.push_back(expert.up_input.value_or(kAbsent));
    all.down.push_back(expert.down_input.value_or(kAbsent));
  }
  return all;
}

struct InputMaxima {
  std::vector<float> a13{}, a2{};
};

Result<InputMaxima> input_maxima(const ScalarProblem& problem, ExpertList experts, bool is_shared) {
  const InputScales own = inputs_of(experts);
  const InputScales& all = is_shared && problem.all_inputs != nullptr ? *problem.all_inputs : own;
  const auto pick = [&](const std::vector<float>& from, std::size_t i) {
    return is_shared ? from : std::vector<float>{from[i]};
  };
  InputMaxima found;
  for (std::size_t i = 0; i < experts.size(); ++i) {
    if (is_shared && i > 0) {
      found.a13.push_back(found.a13[0]);
      found.a2.push_back(found.a2[0]);
      continue;
    }
    std::vector<float> w13 = pick(all.up, i);
    if (problem.gated) {
      const std::vector<float> gates = pick(all.gate, i);
      w13.insert(w13.end(), gates.begin(), gates.end());
    }
    const Result<float> a13 = largest(w13, "w13"), a2 = largest(pick(all.down, i), "w2");
    if (!a13) return a13.why();
    if (!a2) return a2.why();
    found.a13.push_back(*a13);
    found.a2.push_back(*a2);
  }
  return found;
}

Result<Done> fill_alphas(const ScalarProblem& problem, ExpertList experts, Scalars& tensors,
                         bool is_shared) {
  const Result<InputMaxima> inputs = input_maxima(problem, experts, is_shared);
  if (!inputs) return inputs.why();
  for (std::size_t i = 0; i < experts.size(); ++i) {
    const float a13 = inputs->a13[i], a2 = inputs->a2[i];
    const float values[] = {
        a13,        a2,       a13 * gate_or_up(problem, experts[i]), a2 * experts[i].down_global,
        1.0f / a13, 1.0f / a2};
    for (std::size_t t = 0; t < std::size(values); ++t) tensors[t].values.push_back(values[t]);
  }
  return Done{};
}

Scalars global_tensors(const ScalarProblem& problem, std::uint64_t experts) {
  return {scalar_pairs("w13_scale_2", problem.gated, experts), scalar_row("w2_scale_2", experts)};
}

Result<Done> fill_globals(const ScalarProblem& problem, ExpertList experts, Scalars& tensors) {
  for (const ExpertScalars& expert : experts) {
    if (problem.gated) tensors[0].values.push_back(expert.gate_global);
    tensors[0].values.push_back(expert.up_global);
    tensors[1].values.push_back(expert.down_global);
  }
  return Done{};
}

Result<Done> fill_own_alphas(const ScalarProblem& problem, ExpertList experts, Scalars& tensors) {
  return fill_alphas(problem, experts, tensors, false);
}

}  // namespace

constinit const ScalarTransform kGlobalScales{
    .says = "w13_scale_2 (gate's and up's), w2_scale_2: as they are",
    .has_gate_and_up = true,
    .tensors = global_tensors,
    .fill = fill_globals};
constinit const ScalarTransform kAlphasPerExpert{
    .says =
        "a13_scale (the larger of gate's and up's), a2_scale, g1_alphas = a13 * w13_scale_2, "
        "g2_alphas, a1_gscale = 1 / a13, a2_gscale",
    .inputs = InputUse::per_expert,
    .tensors = alpha_tensors,
    .fill = fill_own_alphas};
constinit const ScalarTransform kAlphasShared{
    .says =
        "a13_scale and a2_scale (one maximum over all experts), g1_alphas = a13 * "
        "w13_scale_2, g2_alphas, a1_gscale = 1 / a13, a2_gscale",
    .inputs = InputUse::shared,
    .tensors = alpha_tensors,
    .fill = fill_shared_alphas};

ScalarTensor scalar_row(std::string_view name, std::uint64_t experts, DType type) {
  return {.name = std::string(name), .dtype = type, .shape = {experts}};
}

ScalarTensor scalar_pairs(std::string_view name, bool gated, std::uint64_t experts) {
  ScalarTensor result = scalar_row(name, experts);
  if (gated) result.shape.push_back(2);
  return result;
}

float gate_or_up(const ScalarProblem& problem, const ExpertScalars& expert) {
  return problem.gated ? expert.gate_global : expert.up_global;
}

float rounded(DType type, float x) {
  if (type == DType::bf16) return formats::Bf16::decode(formats::Bf16::encode(x));
  if (type == DType::f16) return formats::F16::decode(formats::F16::encode(x));
  return x;
}

Scalars alpha_tensors(const ScalarProblem& /*problem*/, std::uint64_t experts) {
  Scalars result;
  for (const char* name :
       {"a13_scale", "a2_scale", "g1_alphas", "g2_alphas", "a1_gscale", "a2_gscale"})
    result.push_back(scalar_row(name, experts));
  return result;
}

Result<Done> fill_shared_alphas(const ScalarProblem& problem, ExpertList experts,
                                Scalars& tensors) {
  return fill_alphas(problem, experts, tensors, true);
}

}  // namespace fp4moe::layout
