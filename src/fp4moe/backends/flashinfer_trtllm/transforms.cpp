#include "fp4moe/backends/flashinfer_trtllm/transforms.hpp"

namespace fp4moe::backends::flashinfer_trtllm {
namespace {

using namespace layout;  // NOLINT: the words of a row

Scalars tensors_of(const ScalarProblem& problem, std::uint64_t experts) {
  Scalars result = alpha_tensors(problem, experts);
  result.push_back(scalar_row("g1_scale_c", experts));
  return result;
}

// For an expert: g1_alphas and a2, as fill_shared_alphas has set them.
using ScaleC = float (*)(const ScalarProblem& problem, float g1, float a2);

Result<Done> fill(const ScalarProblem& problem, ExpertList experts, Scalars& tensors,
                  ScaleC scale) {
  if (const auto done = fill_shared_alphas(problem, experts, tensors); !done) return done.why();
  for (std::size_t i = 0; i < experts.size(); ++i)
    tensors[6].values.push_back(scale(problem, tensors[2].values[i], tensors[1].values[i]));
  return Done{};
}

}  // namespace

constinit const ScalarTransform kAlphas{
    .says =
        "as alphas of one maximum over all experts, and g1_scale_c = g1_alphas * a2_gscale "
        "(without a gate: a2_gscale)",
    .inputs = InputUse::shared,
    .tensors = tensors_of,
    .fill = [](const ScalarProblem& problem, ExpertList experts, Scalars& tensors) {
      return fill(problem, experts, tensors, [](const ScalarProblem& p, float g1, float a2) {
        return p.gated ? g1 * (1.0f / a2) : 1.0f / a2;
      });
    }};
constinit const ScalarTransform kAlphas202601{
    .says = "as alphas of one maximum over all experts, and g1_scale_c = g1_alphas / a2",
    .inputs = InputUse::shared,
    .tensors = tensors_of,
    .fill = [](const ScalarProblem& problem, ExpertList experts, Scalars& tensors) {
      return fill(problem, experts, tensors,
                  [](const ScalarProblem&, float g1, float a2) { return g1 / a2; });
    }};

}  // namespace fp4moe::backends::flashinfer_trtllm
