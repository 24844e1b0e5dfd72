#include "fp4moe/vllm/moe_quant_config.hpp"

#include <utility>

#include <fmt/format.h>

#include "fp4moe/vllm/kernel_maker.hpp"

namespace fp4moe::vllm {
namespace {

using oracle::QuantScheme;
using oracle::ScaleLayout;

// The quant config that backend, date and layer decide, before the scales themselves.
Result<FusedMoeQuantConfig> described(const oracle::Backend& backend, const MoeConfig& config) {
  const auto policy = policy_of(config.context, backend.format);
  if (!policy) return policy.why();
  const oracle::Request request = request_of(config, **policy);
  const oracle::QuantConfig found = oracle::quant_config(
      backend, (*policy)->policy_date, config.context.mode, request.layer,
      oracle::BufferNames::modelopt, oracle::form_from_layer(**policy, request).activations);
  return FusedMoeQuantConfig{
      .scheme = found.scheme,
      .quant_dtype = found.activations,
      .weight_quant_dtype = found.weight_type,
      .has_precision_configs = backend.conversion.precision_configs,
      .gemm1_alpha = config.swiglu_alpha ? config.swiglu_alpha : found.gate.alpha,
      .gemm1_beta = config.swiglu_beta ? config.swiglu_beta : found.gate.beta,
      .gemm1_clamp_limit = config.swiglu_limit ? config.swiglu_limit : found.gate.clamp,
      .is_scale_swizzled = found.activation_scales == ScaleLayout::swizzled,
      .mx_alignment = found.activation_alignment,
      .notes = found.notes};
}

void put(std::optional<double>& to, const std::optional<double>& given) {
  if (given) to = given;
}

Result<Done> check_count(std::string_view name, const std::vector<float>& scales,
                         std::size_t experts, bool may_be_one) {
  if (scales.size() == experts || (may_be_one && scales.size() == 1)) return Done{};
  return usage("vllm.scales", "another number of scales is given")
      .at(name)
      .expects(fmt::format("{}{}", experts, may_be_one ? " or 1" : ""),
               fmt::format("{}", scales.size()));
}

// Every operation is float32 and rounded once, in the order written: as the kernels' loaders do.
struct Alphas {
  const std::vector<float>& globals;
  const std::vector<float>& inputs;

  float input(std::size_t e) const { return inputs[inputs.size() == 1 ? 0 : e]; }
  std::vector<float> products() const {
    std::vector<float> result(globals.size());
    for (std::size_t e = 0; e < result.size(); ++e) result[e] = input(e) * globals[e];
    return result;
  }
  std::vector<float> reciprocals() const {
    std::vector<float> result(globals.size());
    for (std::size_t e = 0; e < result.size(); ++e) result[e] = 1.0f / input(e);
    return result;
  }
};

void add_alphas(const oracle::Backend& backend, const NvFp4Scales& scales, const MoeConfig& config,
                FusedMoeQuantConfig& result) {
  const Alphas first{scales.w13_scale_2, scales.a13_scale};
  const Alphas second{scales.w2_scale_2, scales.a2_scale};
  result.g1_alphas = first.products();
  result.g2_alphas = second.products();
  result.a1_gscale = first.reciprocals();
  result.a2_gscale = second.reciprocals();
  if (backend.family != "flashinfer_trtllm") return;
  // In January, when it was a function, the kernel's other scale was a quotient.
  const bool is_function = result.scheme == QuantScheme::none;
  for (std::size_t e = 0; e < result.g1_alphas.size(); ++e)
    result.g1_scale_c.push_back(is_function             ? result.g1_alphas[e] / second.input(e)
                                : config.is_act_and_mul ? result.g1_alphas[e] * result.a2_gscale[e]
                                                        : result.a2_gscale[e]);
}

}  // namespace

NvFp4Scales scales_of(const NvFp4KernelWeights& weights) {
  return {.w13_scale = weights.packed.tensor("w13_scale"),
          .w2_scale = weights.packed.tensor("w2_scale"),
          .w13_scale_2 = weights.w13_scale_2,
          .w2_scale_2 = weights.w2_scale_2,
          .a13_scale = weights.a13_scale,
          .a2_scale = weights.a2_scale};
}

Result<FusedMoeQuantConfig> quant_config_of(const oracle::Backend& backend,
                                            const Mxfp4Scales& scales, const MoeConfig& config) {
  Result<FusedMoeQuantConfig> result = described(backend, config);
  if (!result) return result.why();
  result->w1_scale = scales.w1_scale;
  result->w2_scale = scales.w2_scale;
  result->w1_bias = scales.w1_bias;
  result->w2_bias = scales.w2_bias;
  result->a1_scale = scales.a1_scale;
  result->a2_scale = scales.a2_scale;
  put(result->gemm1_alpha, scales.gemm1_alpha);
  put(result->gemm1_beta, scales.gemm1_beta);
  put(result->gemm1_clamp_limit, scales.swiglu_limit);
  return result;
}

Result<FusedMoeQuantConfig> quant_config_of(const oracle::Backend& backend,
                                            const NvFp4Scales& scales, const MoeConfig& config) {
  Result<FusedMoeQuantConfig> result = described(backend, config);
  if (!result) return result.why();
  const std::size_t experts = scales.w13_scale_2.size();
  if (const auto fine = check_count("w2_scale_2", scales.w2_scale_2, experts, false); !fine)
    return fine.why();
  result->w1_scale = scales.w13_scale;
  result->w2_scale = scales.w2_scale;
  put(result->gemm1_alpha, scales.swiglu_alpha);
  put(result->gemm1_beta, scales.swiglu_beta);
  put(result->gemm1_clamp_limit, scales.swiglu_limit);
  const bool quantizes =
      result->scheme == QuantScheme::nvfp4 || result->scheme == QuantScheme::none;
  if (quantizes) {
    for (const Result<Done>& fine : {check_count("a13_scale", scales.a13_scale, experts, true),
                                     check_count("a2_scale", scales.a2_scale, experts, true)})
      if (!fine) return fine.why();
  }
  if (quantizes && backend.family != "emulation") {
    add_alphas(backend, scales, config, *result);
    return result;
  }
  // Weight-only kernels and emulation: the global scales alone.
  result->g1_alphas = scales.w13_scale_2;
  result->g2_alphas = scales.w2_scale_2;
  if (quantizes) {
    result->a1_gscale = scales.a13_scale;
    result->a2_gscale = scales.a2_scale;
  }
  return result;
}

}  // namespace fp4moe::vllm
