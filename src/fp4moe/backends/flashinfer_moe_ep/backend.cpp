// FlashInfer's experts that exchange tokens between ranks themselves. Reached only by name.
#include <string>

#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::flashinfer_moe_ep {
namespace {

using oracle::Asked;
using oracle::Reason;
using oracle::Rule;
using oracle::ScalarType;

constexpr std::string_view kCutedsl = "flashinfer_moe_ep_cutedsl";
constexpr std::string_view kMegaDeepGemm = "flashinfer_moe_ep_mega_deep_gemm";
constexpr std::string_view kNames[] = {kCutedsl, kMegaDeepGemm};
constexpr std::string_view kDeepGemmBackend = "FLASHINFER_MOE_EP_DEEP_GEMM";

constexpr CapabilityRange kBlackwell[] = {exactly(10, 0), exactly(10, 3)};
// The reference asks for no platform and no package: a Radeon of generation 10.3 would do.
constexpr DeviceNeed kDevices[] = {{.capabilities = kBlackwell}};
constexpr DeviceNeed kStrictDevices[] = {
    {.kinds = kCuda, .capabilities = kBlackwell, .libraries = {Library::flashinfer}}};
constexpr Scheme kSchemes[] = {{WeightFormat::mxfp4, kAnyKey}, {WeightFormat::nvfp4, kAnyKey}};

// The configured name says which kernel it is; a survey of all backends configures none.
bool is_mega(const Asked& asked) {
  const std::string_view name = asked.request.layer.backend;
  if (name == kCutedsl || name == kMegaDeepGemm) return name == kMegaDeepGemm;
  return asked.backend.name == kDeepGemmBackend;
}
const oracle::Layer& layer_of(const Asked& asked) { return asked.request.layer; }

using Words = std::string (*)(const Asked&);
template <std::size_t Size>
struct Text {
  char letters[Size];
  constexpr Text(const char (&text)[Size]) {  // NOLINT(google-explicit-constructor)
    for (std::size_t i = 0; i < Size; ++i) letters[i] = text[i];
  }
};
template <Text Fixed>
std::string words(const Asked&) {
  return Fixed.letters;
}

constexpr Rule rule(Reason reason, bool (*holds)(const Asked&), Words reference, Words requirement,
                    Words fact) {
  return {.reason = reason,
          .after = true,
          .holds = holds,
          .reference = reference,
          .requirement = requirement,
          .fact = fact};
}

// All that are broken make one sentence of the reference, in this order.
constexpr Rule kRules[] = {
    rule(
        Reason::scheme,
        [](const Asked& asked) { return !is_mega(asked) || asked.weights == WeightFormat::mxfp4; },
        words<"NVFP4 weights">, words<"computes only mxfp4 weights">, words<"they are nvfp4">),
    rule(
        Reason::scheme,
        [](const Asked& asked) {
          return asked.weights != WeightFormat::nvfp4 || asked.activation != ActivationKey::none;
        },
        words<"A16 activations with NVFP4 weights">,
        words<"quantizes activations of nvfp4 weights">, words<"the checkpoint keeps 16 bits">),
    rule(
        Reason::expert_parallel,
        [](const Asked& asked) { return !layer_of(asked).skip_final_all_reduce; },
        words<"skip_final_all_reduce">, words<"sums over ranks itself">,
        words<"the model does that">),
    rule(
        Reason::input_dtype,
        [](const Asked& asked) { return layer_of(asked).in_dtype == ScalarType::bfloat16; },
        [](const Asked& asked) {
          return "activation dtype torch." + std::string(name(layer_of(asked).in_dtype));
        },
        words<"takes bfloat16 input">,
        [](const Asked& asked) {
          return "the input is " + std::string(name(layer_of(asked).in_dtype));
        }),
    rule(
        Reason::bias, [](const Asked& asked) { return !layer_of(asked).has_bias; },
        words<"expert bias">, words<"computes no biases">, words<"the layer has them">),
    rule(
        Reason::activation_parameters,
        [](const Asked& asked) {
          return !layer_of(asked).swiglu_alpha && !layer_of(asked).swiglu_beta;
        },
        words<"custom SwiGLU alpha or beta">, words<"computes SwiGLU with its usual constants">,
        words<"the model sets others">),
    rule(
        Reason::routing,
        [](const Asked& asked) {
          return !is_mega(asked) || layer_of(asked).routing == Routing::deepseek_v4;
        },
        [](const Asked& asked) {
          return "routing method " + std::string(name(layer_of(asked).routing));
        },
        words<"takes routes of DeepseekV4">,
        [](const Asked& asked) {
          return "the layer routes with " + std::string(name(layer_of(asked).routing));
        }),
    rule(
        Reason::kernel_variant, [](const Asked& asked) { return !layer_of(asked).weight_transfer; },
        words<"runtime weight transfer">, words<"keeps weights in its own form">,
        words<"they are replaced while the model runs">),
    rule(
        Reason::kernel_variant,
        [](const Asked& asked) { return !layer_of(asked).dual_batch_overlap; },
        words<"dual batch overlap">, words<"exchanges one batch at a time">,
        words<"two batches overlap">),
    rule(
        Reason::eplb,
        [](const Asked& asked) { return !is_mega(asked) || !layer_of(asked).parallel.enable_eplb; },
        words<"EPLB">, words<"needs no expert load balancing">, words<"it is on">),
};

constexpr ExpertsClass kExperts{
    .name = "FlashInferMoeEpExperts",
    .devices = kDevices,
    .strict_devices = kStrictDevices,
    .activations = {silu},
    .schemes = kSchemes,
    .limits = {ParallelLimit::only_expert_parallel, ParallelLimit::no_batched_tokens},
    .rules = kRules,
    .one_sentence = true,
    .configured_names = kNames,
    .takes_unquantized = true,
};
constexpr const ExpertsClass* kList[] = {&kExperts};
constexpr Rounding kUnchanged[] = {{}};

constexpr Backend mxfp4(std::string_view name) {
  return {.name = name,
          .family = "flashinfer_moe_ep",
          .format = WeightFormat::mxfp4,
          .policy_dates = kVllm033,
          .experts = kList,
          .rounding = kUnchanged,
          .scheme = QuantScheme::mxfp4_nvfp4,
          .layout = "flashinfer_moe_ep.mxfp4",
          .numerics = "grouped"};
}
constexpr Backend kBackends[] = {
    mxfp4("FLASHINFER_MOE_EP_CUTEDSL"),
    mxfp4(kDeepGemmBackend),
    {.name = "FLASHINFER_MOE_EP_CUTEDSL",
     .family = "flashinfer_moe_ep",
     .format = WeightFormat::nvfp4,
     .policy_dates = kVllm033,
     .experts = kList,
     .scheme = QuantScheme::nvfp4,
     .layout = "flashinfer_moe_ep.nvfp4",
     .numerics = "grouped",
     .conversion = {.plain_alphas = true}},
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::flashinfer_moe_ep
