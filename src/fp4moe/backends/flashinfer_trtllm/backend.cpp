// FlashInfer's TensorRT-LLM kernels for data-center Blackwell.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::flashinfer_trtllm {
namespace {

constexpr CapabilityRange kBlackwell[] = {family(10)};
constexpr DeviceNeed kDevices[] = {
    {.kinds = kCuda, .capabilities = kBlackwell, .libraries = {Library::flashinfer}}};
// January's function does not ask whether FlashInfer is there.
constexpr DeviceNeed kJanuary2026Devices[] = {{.kinds = kCuda, .capabilities = kBlackwell}};

constexpr Scheme kMxfp4[] = {{WeightFormat::mxfp4, {ActivationKey::none, ActivationKey::mxfp8}}};
constexpr Scheme kMxfp4SixteenBit[] = {{WeightFormat::mxfp4, kSixteenBit}};
constexpr Scheme kNvfp4[] = {{WeightFormat::nvfp4, {ActivationKey::nvfp4}}};
constexpr Scheme kNvfp4Token[] = {
    {WeightFormat::nvfp4, {ActivationKey::nvfp4, ActivationKey::nvfp4_token}}};

constexpr ExpertsClass kMxfp4Modular{
    .name = "TrtLlmMxfp4ExpertsModular",
    .devices = kDevices,
    .activations = {swigluoai},
    .schemes = kMxfp4,
    .takes_unquantized = true,
    .expert_map = true,
};
constexpr ExpertsClass monolithic(ExpertsClass experts, Routings routings) {
  experts.name = "TrtLlmMxfp4ExpertsMonolithic";
  experts.kind = Kind::monolithic;
  experts.limits = kMonolithicLimits;
  experts.routings = routings;
  experts.expert_map = false;
  return experts;
}
constexpr ExpertsClass kMxfp4AugustModular = [] {
  ExpertsClass result = kMxfp4Modular;
  result.activations = {swigluoai, silu, situ};
  result.takes_unquantized = false;
  return result;
}();
constexpr ExpertsClass kMxfp4Monolithic = monolithic(kMxfp4Modular, kRenormalizing);
constexpr ExpertsClass kMxfp4AugustMonolithic = monolithic(
    kMxfp4AugustModular, {Routing::deepseek_v3, Routing::renormalize, Routing::renormalize_naive});

// Release 0.33.0: by name only.
constexpr ExpertsClass kMxfp4Lora{
    .name = "TrtLlmMxfp4LoRAExperts",
    .devices = kDevices,
    .activations = {swigluoai, silu},
    .schemes = kMxfp4SixteenBit,
    .limits = kMonolithicLimits,
    .lora = true,
    .takes_unquantized = true,
};

constexpr ExpertsClass kNvfp4Modular{
    .name = "TrtLlmNvFp4ExpertsModular",
    .devices = kDevices,
    .not_gated = true,
    .activations = {silu, relu2_no_mul},
    .schemes = kNvfp4,
    .expert_map = true,
};
constexpr ExpertsClass kNvfp4Monolithic = [] {
  ExpertsClass result = kNvfp4Modular;
  result.name = "TrtLlmNvFp4ExpertsMonolithic";
  result.kind = Kind::monolithic;
  result.limits = {ParallelLimit::no_all2all, ParallelLimit::no_eplb};
  result.routings = {Routing::deepseek_v3, Routing::renormalize, Routing::renormalize_naive,
                     Routing::llama4, Routing::simulated};
  result.logits = LogitsRule::float32_for_some_routings;
  result.expert_map = false;
  return result;
}();
constexpr Activations kAugust2026Activations{silu,      relu2_no_mul,           gelu,
                                             gelu_tanh, swigluoai_uninterleave, situ};
constexpr ExpertsClass kNvfp4AugustModular = [] {
  ExpertsClass result = kNvfp4Modular;
  result.activations = kAugust2026Activations;
  return result;
}();
constexpr ExpertsClass kNvfp4AugustMonolithic = [] {
  ExpertsClass result = kNvfp4Monolithic;
  result.activations = kAugust2026Activations;
  result.routings = {Routing::deepseek_v3, Routing::renormalize,    Routing::renormalize_naive,
                     Routing::llama4,      Routing::sigmoid_renorm, Routing::sigmoid,
                     Routing::minimax2,    Routing::simulated};
  result.logits = LogitsRule::bfloat16_or_float32;
  return result;
}();
constexpr ExpertsClass kNvfp4TokenModular = [] {
  ExpertsClass result = kNvfp4AugustModular;
  result.schemes = kNvfp4Token;
  return result;
}();
constexpr ExpertsClass kNvfp4TokenMonolithic = [] {
  ExpertsClass result = kNvfp4AugustMonolithic;
  result.schemes = kNvfp4Token;
  result.routings = {Routing::deepseek_v3, Routing::renormalize,    Routing::renormalize_naive,
                     Routing::llama4,      Routing::sigmoid_renorm, Routing::sigmoid,
                     Routing::minimax2};
  return result;
}();
// A function with predicates of its own, no class.
constexpr ExpertsClass kJanuary2026Function{
    .name = {},
    .kind = Kind::monolithic,
    .devices = kJanuary2026Devices,
    .strict_devices = kDevices,
    .activations = {silu},
    .schemes = kNvfp4,
    .routings = {Routing::deepseek_v3, Routing::renormalize, Routing::renormalize_naive,
                 Routing::llama4},
};

constexpr const ExpertsClass* kMxfp4List[] = {&kMxfp4Monolithic, &kMxfp4Modular};
constexpr const ExpertsClass* kMxfp4AugustList[] = {&kMxfp4AugustMonolithic, &kMxfp4AugustModular};
constexpr const ExpertsClass* kJanuary2026List[] = {&kJanuary2026Function};
constexpr const ExpertsClass* kNvfp4List[] = {&kNvfp4Monolithic, &kNvfp4Modular};
constexpr const ExpertsClass* kMxfp4LoraList[] = {&kMxfp4Lora, &kMxfp4AugustMonolithic,
                                                  &kMxfp4AugustModular};
constexpr const ExpertsClass* kNvfp4AugustList[] = {&kNvfp4AugustMonolithic, &kNvfp4AugustModular};
constexpr const ExpertsClass* kNvfp4TokenList[] = {&kNvfp4TokenMonolithic, &kNvfp4TokenModular};

constexpr Rounding kRounding[] = {{.intermediate = 256, .hidden = 256}};
constexpr Rounding kAugust2026Rounding[] = {{.intermediate = 128, .hidden = 256}};

constexpr Backend mxfp4(std::string_view name, PolicyDates policy_dates, ActivationKey activation) {
  const bool august = kSinceAugust2026.contains_all(policy_dates);
  const bool quantizes = activation != ActivationKey::none;
  return {.name = name,
          .family = "flashinfer_trtllm",
          .format = WeightFormat::mxfp4,
          .policy_dates = policy_dates,
          .activation = activation,
          .experts = august ? std::span<const ExpertsClass* const>(kMxfp4AugustList) : kMxfp4List,
          .rounding = august ? std::span<const Rounding>(kAugust2026Rounding) : kRounding,
          .scheme = activation == ActivationKey::none ? QuantScheme::mxfp4_w4a16
                                                      : QuantScheme::mxfp4_mxfp8,
          .layout = "flashinfer_trtllm.mxfp4",
          .numerics = "trtllm",
          .biases_required = true,
          .conversion = {.bias13 = "f32",
                         .bias2 = "f32",
                         .gemm1_constants = true,
                         .pads_input = quantizes,
                         .activation_scales = quantizes ? ScaleLayout::linear : ScaleLayout::none,
                         .activation_alignment = quantizes ? 256u : 0u}};
}
constexpr Backend with_lora(Backend backend) {
  if (backend.activation == ActivationKey::none)
    backend.lora_experts = kMxfp4LoraList;
  else
    backend.lora_refusal =
        "expert LoRA is not supported with MXFP8 activations; use moe_backend='flashinfer_trtllm'";
  return backend;
}
// The shuffle takes 128 rows of gate and up at a time.
constexpr oracle::ConversionPadding kJanuary2026Padding[] = {{.hidden_is = 128, .gated_needs = 64}};
constexpr oracle::ConversionPadding kApril2026Padding[] = {
    {.hidden = 256, .gated = 16, .not_gated = 128, .gated_needs = 64}};
constexpr oracle::ConversionPadding kAugust2026Padding[] = {
    {.hidden = 256, .gated = 64, .not_gated = 128}};
constexpr std::span<const oracle::ConversionPadding> nvfp4_padding(PolicyDates policy_dates) {
  if (kSinceAugust2026.contains_all(policy_dates)) return kAugust2026Padding;
  if (policy_dates == kApril2026) return kApril2026Padding;
  return kJanuary2026Padding;
}
constexpr Backend nvfp4(PolicyDates policy_dates, std::span<const ExpertsClass* const> experts,
                        QuantScheme scheme) {
  return {.name = "FLASHINFER_TRTLLM",
          .family = "flashinfer_trtllm",
          .format = WeightFormat::nvfp4,
          .policy_dates = policy_dates,
          .experts = experts,
          .scheme = scheme,
          .layout = "flashinfer_trtllm.nvfp4",
          .numerics = "trtllm",
          .global_activation_scales = true,
          .conversion = {.activation_scales = ScaleLayout::linear,
                         .padding = nvfp4_padding(policy_dates)}};
}

constexpr Backend kBackends[] = {
    mxfp4("FLASHINFER_TRTLLM_MXFP4_MXFP8", kBeforeAugust2026, ActivationKey::mxfp8),
    mxfp4("FLASHINFER_TRTLLM_MXFP4_BF16", kBeforeAugust2026, ActivationKey::none),
    mxfp4("FLASHINFER_TRTLLM_MXFP4_MXFP8", kAugust2026, ActivationKey::mxfp8),
    mxfp4("FLASHINFER_TRTLLM_MXFP4_BF16", kAugust2026, ActivationKey::none),
    with_lora(mxfp4("FLASHINFER_TRTLLM_MXFP4_MXFP8", kVllm033, ActivationKey::mxfp8)),
    with_lora(mxfp4("FLASHINFER_TRTLLM_MXFP4_BF16", kVllm033, ActivationKey::none)),
    nvfp4(kJanuary2026, kJanuary2026List, QuantScheme::none),
    nvfp4(kApril2026, kNvfp4List, QuantScheme::nvfp4),
    nvfp4(kAugust2026, kNvfp4AugustList, QuantScheme::nvfp4),
    nvfp4(kVllm033, kNvfp4TokenList, QuantScheme::nvfp4),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::flashinfer_trtllm
