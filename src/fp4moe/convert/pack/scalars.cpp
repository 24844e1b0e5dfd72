#include "fp4moe/convert/pack/scalars.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"
#include "fp4moe/formats/sm90_scale.hpp"

namespace fp4moe::convert {
namespace {

using layout::ScalarRule;
using layout::ScaleRule;
using tensor::DType;

float rounded(DType type, float x) {
  if (type == DType::bf16) return formats::Bf16::decode(formats::Bf16::encode(x));
  if (type == DType::f16) return formats::F16::decode(formats::F16::encode(x));
  return x;
}

bool has_alphas(ScalarRule rule) {
  return rule == ScalarRule::alphas_per_expert || rule == ScalarRule::alphas_shared ||
         rule == ScalarRule::alphas_trtllm || rule == ScalarRule::alphas_trtllm_2026_01;
}

bool has_scale_c(ScalarRule rule) {
  return rule == ScalarRule::alphas_trtllm || rule == ScalarRule::alphas_trtllm_2026_01;
}

// The kernel's FP4 and scales are off by powers of two; the global scale makes up for both.
float marlin_global(const ScalarProblem& problem, float global, int exponent) {
  const bool is_latest = problem.scale_rule == ScaleRule::marlin_2026_04;
  const DType type = is_latest ? DType::f32 : problem.params_type;
  const float bias = problem.params_type == DType::bf16 ? 0x1p119f : 0x1p7f;
  const float whole = rounded(type, rounded(type, global) * bias);
  return rounded(type, whole / std::ldexp(1.0f, exponent));
}

float gate_or_up(const ScalarProblem& problem, const ExpertScalars& expert) {
  return problem.gated ? expert.gate_global : expert.up_global;
}

Result<float> largest(const std::vector<float>& scales, std::string_view which) {
  float most = 0;
  for (const float scale : scales) {
    if (!std::isfinite(scale) || scale <= 0)
      return invalid("scale.input",
                     fmt::format("an input scale of {} is missing or unusable", which))
          .expects("a finite number above zero for every expert",
                   std::isnan(scale) ? std::string("none") : fmt::format("{}", scale))
          .try_this("see `fp4moe lint`, or choose a backend with 16-bit activations");
    most = std::max(most, scale);
  }
  return most;
}

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

InputScales inputs_of(const std::vector<ExpertScalars>& experts) {
  InputScales all;
  for (const ExpertScalars& expert : experts) {
    all.gate.push_back(expert.gate_input.value_or(kNone));
    all.up.push_back(expert.up_input.value_or(kNone));
    all.down.push_back(expert.down_input.value_or(kNone));
  }
  return all;
}

struct Alphas {
  std::vector<float> a13{}, a2{};
};

Result<Alphas> input_maxima(const ScalarProblem& problem,
                            const std::vector<ExpertScalars>& experts) {
  const bool is_shared = problem.rule != ScalarRule::alphas_per_expert;
  const InputScales own = inputs_of(experts);
  const InputScales& all = is_shared && problem.all_inputs != nullptr ? *problem.all_inputs : own;
  const auto pick = [&](const std::vector<float>& from, std::size_t i) {
    return is_shared ? from : std::vector<float>{from[i]};
  };
  Alphas found;
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

void fill_alphas(const ScalarProblem& problem, const std::vector<ExpertScalars>& experts,
                 const Alphas& inputs, std::vector<ScalarTensor>& tensors) {
  for (std::size_t i = 0; i < experts.size(); ++i) {
    const float a13 = inputs.a13[i], a2 = inputs.a2[i];
    const float g1 = a13 * gate_or_up(problem, experts[i]);
    const float g2 = a2 * experts[i].down_global;
    const float values[] = {a13, a2, g1, g2, 1.0f / a13, 1.0f / a2};
    for (std::size_t t = 0; t < std::size(values); ++t) tensors[t].values.push_back(values[t]);
    if (!has_scale_c(problem.rule)) continue;
    const bool is_january = problem.rule == ScalarRule::alphas_trtllm_2026_01;
    tensors[6].values.push_back(is_january      ? g1 / a2
                                : problem.gated ? g1 * (1.0f / a2)
                                                : 1.0f / a2);
  }
}

// What the accumulators of native_sm90 are to be multiplied by: the offset taken out of E8M0
// scales, or 2^20 (see docs/layouts/native_sm90.nvfp4.md) and the global scale.
void fill_factors(const ScalarProblem& problem, const std::vector<ExpertScalars>& experts,
                  std::vector<ScalarTensor>& tensors) {
  const bool is_mxfp4 = problem.scale_rule == ScaleRule::native_sm90_mxfp4;
  for (std::size_t i = 0; i < experts.size(); ++i) {
    const float w13 =
        is_mxfp4 ? std::ldexp(1.0f, problem.w13_offsets[i]) : formats::kSm90Nvfp4Factor;
    const float w2 = is_mxfp4 ? std::ldexp(1.0f, problem.w2_offsets[i]) : formats::kSm90Nvfp4Factor;
    if (problem.gated) tensors[0].values.push_back(w13 * experts[i].gate_global);
    tensors[0].values.push_back(w13 * experts[i].up_global);
    tensors[1].values.push_back(w2 * experts[i].down_global);
  }
}

}  // namespace

std::vector<ScalarTensor> scalar_tensors(const ScalarProblem& problem, std::uint64_t experts) {
  const auto row = [&](std::string_view name, DType type = DType::f32) {
    return ScalarTensor{.name = std::string(name), .dtype = type, .shape = {experts}};
  };
  const auto pairs = [&](std::string_view name) {
    ScalarTensor result = row(name);
    if (problem.gated) result.shape.push_back(2);
    return result;
  };
  switch (problem.rule) {
    case ScalarRule::none:
      return {};
    case ScalarRule::global_scales:
      return {pairs("w13_scale_2"), row("w2_scale_2")};
    case ScalarRule::native_sm90_offsets:
      return {pairs("w13_factor"), row("w2_factor")};
    case ScalarRule::marlin: {
      const DType type =
          problem.scale_rule == ScaleRule::marlin_2026_04 ? DType::f32 : problem.params_type;
      return {row("w13_scale_2", type), row("w2_scale_2", type)};
    }
    default:
      break;
  }
  std::vector<ScalarTensor> result{row("a13_scale"), row("a2_scale"),  row("g1_alphas"),
                                   row("g2_alphas"), row("a1_gscale"), row("a2_gscale")};
  if (has_scale_c(problem.rule)) result.push_back(row("g1_scale_c"));
  return result;
}

Result<std::vector<ScalarTensor>> make_scalars(const ScalarProblem& problem,
                                               const std::vector<ExpertScalars>& experts) {
  std::vector<ScalarTensor> tensors = scalar_tensors(problem, experts.size());
  if (has_alphas(problem.rule)) {
    const Result<Alphas> inputs = input_maxima(problem, experts);
    if (!inputs) return inputs.why();
    fill_alphas(problem, experts, *inputs, tensors);
  }
  if (problem.rule == ScalarRule::native_sm90_offsets) fill_factors(problem, experts, tensors);
  if (problem.rule == ScalarRule::global_scales)
    for (const ExpertScalars& expert : experts) {
      if (problem.gated) tensors[0].values.push_back(expert.gate_global);
      tensors[0].values.push_back(expert.up_global);
      tensors[1].values.push_back(expert.down_global);
    }
  if (problem.rule == ScalarRule::marlin)
    for (const ExpertScalars& expert : experts) {
      tensors[0].values.push_back(
          marlin_global(problem, gate_or_up(problem, expert), problem.w13_exponent));
      tensors[1].values.push_back(marlin_global(problem, expert.down_global, problem.w2_exponent));
    }
  for (const ScalarTensor& tensor : tensors)
    for (const float value : tensor.values)
      if (!std::isfinite(value))
        return invalid("scale.global", "a scale overflows in this layout")
            .at(tensor.name)
            .expects("a finite number", fmt::format("{}", value))
            .try_this("choose a backend with float32 global scales");
  return tensors;
}

}  // namespace fp4moe::convert
