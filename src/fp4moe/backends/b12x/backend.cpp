// B12X: kernels for consumer Blackwell, from their own package or from FlashInfer's copy. Reached
// only by name.
#include <string>

#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::b12x {
namespace {

using oracle::Asked;
using oracle::Reason;
using oracle::Rule;
using oracle::ScalarType;

constexpr CapabilityRange kConsumerBlackwell[] = {family(12)};
constexpr DeviceNeed kDevices[] = {
    {.kinds = kCuda, .capabilities = kConsumerBlackwell, .libraries = {Library::b12x}}};
constexpr DeviceNeed kFlashinferDevices[] = {
    {.kinds = kCuda, .capabilities = kConsumerBlackwell, .libraries = {Library::flashinfer}}};
constexpr Scheme kSchemes[] = {
    {WeightFormat::mxfp4, {ActivationKey::none, ActivationKey::mxfp8}},
    {WeightFormat::nvfp4, {ActivationKey::none, ActivationKey::mxfp8, ActivationKey::nvfp4}},
};
constexpr Scheme kFlashinferSchemes[] = {
    {WeightFormat::nvfp4, {ActivationKey::none, ActivationKey::nvfp4}}};

bool is_mxfp4(const Asked& asked) { return asked.weights == WeightFormat::mxfp4; }
bool is_w4a8(const Asked& asked) {
  return is_mxfp4(asked) && asked.activation == ActivationKey::mxfp8;
}
std::string sizes(const Asked& asked) {
  const oracle::Layer& layer = asked.request.layer;
  return "they are " + std::to_string(layer.hidden) + " and " + std::to_string(layer.intermediate);
}
std::string activation(const Asked& asked) {
  return "the layer has " + std::string(name(asked.request.layer.activation));
}
std::string with_situ(const Asked& asked) {
  const auto shown = [](const std::optional<double>& beta) {
    return beta ? std::to_string(*beta) : std::string("not given");
  };
  const oracle::Layer& layer = asked.request.layer;
  return "they are " + shown(layer.situ_beta) + " and " + shown(layer.situ_linear_beta);
}

// Asked before anything else, each with a sentence of its own.
constexpr Rule kRules[] = {
    {.reason = Reason::bias,
     .holds = [](const Asked& asked) { return !asked.request.layer.has_bias; },
     .reference = [](const Asked&) { return std::string("kernel does not support expert biases"); },
     .requirement = [](const Asked&) { return std::string("computes no biases"); },
     .fact = [](const Asked&) { return std::string("the layer has them"); }},
    {.reason = Reason::input_dtype,
     .holds = [](const Asked& a) { return a.request.layer.in_dtype != ScalarType::float32; },
     .reference =
         [](const Asked& asked) {
           return "kernel does not support torch." +
                  std::string(name(asked.request.layer.in_dtype)) + " input/output dtype";
         },
     .requirement = [](const Asked&) { return std::string("takes bfloat16 or float16 input"); },
     .fact =
         [](const Asked& asked) {
           return "the input is " + std::string(name(asked.request.layer.in_dtype));
         }},
    {.reason = Reason::activation_parameters,
     .holds =
         [](const Asked& asked) {
           const oracle::Layer& layer = asked.request.layer;
           return layer.activation != situ ||
                  (layer.situ_beta == 4.0 && layer.situ_linear_beta == 25.0);
         },
     .reference =
         [](const Asked&) {
           return std::string("kernel supports only SiTU beta=4 and linear_beta=25");
         },
     .requirement = [](const Asked&) { return std::string("needs SiTU with betas 4 and 25"); },
     .fact = with_situ},
    {.reason = Reason::activation,
     .holds =
         [](const Asked& asked) {
           return asked.activation == ActivationKey::none ||
                  asked.request.layer.activation != swigluoai_uninterleave;
         },
     .reference =
         [](const Asked&) {
           return std::string("kernel does not support swigluoai_uninterleave with W4A8");
         },
     .requirement =
         [](const Asked&) {
           return std::string("computes swigluoai_uninterleave only with 16-bit activations");
         },
     .fact = activation},
    {.reason = Reason::alignment,
     .holds = [](const Asked& a) { return !is_mxfp4(a) || a.request.layer.intermediate % 32 == 0; },
     .reference =
         [](const Asked&) {
           return std::string(
               "MXFP4 requires the per-rank intermediate size to be divisible by 32");
         },
     .requirement =
         [](const Asked&) { return std::string("needs an intermediate size divisible by 32"); },
     .fact = sizes},
    {.reason = Reason::activation,
     .holds =
         [](const Asked& asked) {
           const oracle::Activation has = asked.request.layer.activation;
           return !is_w4a8(asked) || has == silu || has == situ;
         },
     .reference =
         [](const Asked&) { return std::string("MXFP4 W4A8 supports only SiLU and SiTU"); },
     .requirement =
         [](const Asked&) { return std::string("computes only silu and situ with MXFP8 input"); },
     .fact = activation},
    {.reason = Reason::alignment,
     .holds =
         [](const Asked& asked) {
           const oracle::Layer& layer = asked.request.layer;
           return !is_w4a8(asked) || (layer.hidden % 256 == 0 && layer.intermediate % 32 == 0);
         },
     .reference =
         [](const Asked&) {
           return std::string(
               "MXFP4 W4A8 requires hidden size divisible by 256 and per-rank intermediate size "
               "divisible by 32");
         },
     .requirement =
         [](const Asked&) {
           return std::string("needs a hidden size divisible by 256 and an intermediate by 32");
         },
     .fact = sizes},
};

constexpr ExpertsClass kExperts{
    .name = "B12xExperts",
    .devices = kDevices,
    .not_gated = true,
    .activations = {silu, situ, swigluoai_uninterleave, relu2_no_mul},
    .schemes = kSchemes,
    .limits = {ParallelLimit::no_expert_parallel, ParallelLimit::one_expert_rank,
               ParallelLimit::no_all2all, ParallelLimit::no_eplb},
    .rules = kRules,
    .takes_unquantized = true,
};
constexpr ExpertsClass kFlashinferExperts{
    .name = "FlashInferB12xExperts",
    .devices = kFlashinferDevices,
    .not_gated = true,
    .activations = {silu, gelu_tanh, relu2_no_mul},
    .schemes = kFlashinferSchemes,
    .limits = {ParallelLimit::no_expert_parallel},
    .takes_unquantized = true,
};
constexpr const ExpertsClass* kList[] = {&kExperts};
constexpr const ExpertsClass* kFlashinferList[] = {&kFlashinferExperts};

constexpr Rounding kUnchanged[] = {{}};

constexpr Backend mxfp4(std::string_view name, ActivationKey activation, QuantScheme scheme) {
  return {.name = name,
          .family = "b12x",
          .format = WeightFormat::mxfp4,
          .policy_dates = kSinceAugust2026,
          .activation = activation,
          .experts = kList,
          .rounding = kUnchanged,
          .scheme = scheme,
          .layout = "b12x.mxfp4",
          .numerics = activation == ActivationKey::none ? "fused" : "grouped",
          .conversion = {.activation_scales = activation == ActivationKey::none
                                                  ? ScaleLayout::none
                                                  : ScaleLayout::swizzled}};
}

constexpr Backend kBackends[] = {
    mxfp4("B12X_MXFP4_MXFP8", ActivationKey::mxfp8, QuantScheme::mxfp4_mxfp8),
    mxfp4("B12X_MXFP4_BF16", ActivationKey::none, QuantScheme::mxfp4_w4a16),
    {.name = "B12X",
     .family = "b12x",
     .format = WeightFormat::nvfp4,
     .policy_dates = kSinceAugust2026,
     .experts = kList,
     .scheme = QuantScheme::nvfp4,
     .layout = "b12x.nvfp4",
     .numerics = "grouped"},
    {.name = "FLASHINFER_B12X",
     .family = "b12x",
     .format = WeightFormat::nvfp4,
     .policy_dates = kSinceAugust2026,
     .experts = kFlashinferList,
     .scheme = QuantScheme::nvfp4,
     .layout = "flashinfer_b12x.nvfp4",
     .numerics = "grouped",
     .applies_clamp = false,
     .global_activation_scales = true,
     .conversion = {.activation_scales = ScaleLayout::swizzled, .padding = kSwizzlePadding}},
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::b12x
