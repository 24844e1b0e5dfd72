// FlashInfer's TensorRT-LLM kernels for data-centre Blackwell.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::flashinfer_trtllm {
namespace {

constexpr CapabilityRange kBlackwell[] = {family(10)};
constexpr DeviceNeed kDevices[] = {
    {.kinds = kCuda, .capabilities = kBlackwell, .libraries = {Library::flashinfer}}};
// January's function does not ask whether FlashInfer is there.
constexpr DeviceNeed kJanuaryDevices[] = {{.kinds = kCuda, .capabilities = kBlackwell}};

constexpr Scheme kMxfp4[] = {{WeightFormat::mxfp4, {ActivationKey::none, ActivationKey::mxfp8}}};
constexpr Scheme kMxfp4SixteenBit[] = {{WeightFormat::mxfp4, kSixteenBit}};
constexpr Scheme kNvfp4[] = {{WeightFormat::nvfp4, {ActivationKey::nvfp4}}};
constexpr Scheme kNvfp4Token[] = {
    {WeightFormat::nvfp4, {ActivationKey::nvfp4, ActivationKey::nvfp4_token}}};

constexpr Experts kMxfp4Modular{
    .name = "TrtLlmMxfp4ExpertsModular",
    .devices = kDevices,
    .activations = {swigluoai},
    .schemes = kMxfp4,
    .takes_unquantized = true,
    .expert_map = true,
};
constexpr Experts monolithic(Experts experts, Routings routings) {
  experts.name = "TrtLlmMxfp4ExpertsMonolithic";
  experts.kind = Kind::monolithic;
  experts.limits = kMonolithicLimits;
  experts.routings = routings;
  experts.expert_map = false;
  return experts;
}
constexpr Experts kMxfp4AugustModular = [] {
  Experts made = kMxfp4Modular;
  made.activations = {swigluoai, silu, situ};
  made.takes_unquantized = false;
  return made;
}();
constexpr Experts kMxfp4Monolithic = monolithic(kMxfp4Modular, kRenormalizing);
constexpr Experts kMxfp4AugustMonolithic = monolithic(
    kMxfp4AugustModular, {Routing::deepseek_v3, Routing::renormalize, Routing::renormalize_naive});

// Release 0.33.0: by name only.
constexpr Experts kMxfp4Lora{
    .name = "TrtLlmMxfp4LoRAExperts",
    .devices = kDevices,
    .activations = {swigluoai, silu},
    .schemes = kMxfp4SixteenBit,
    .limits = kMonolithicLimits,
    .lora = true,
    .takes_unquantized = true,
};

constexpr Experts kNvfp4Modular{
    .name = "TrtLlmNvFp4ExpertsModular",
    .devices = kDevices,
    .not_gated = true,
    .activations = {silu, relu2_no_mul},
    .schemes = kNvfp4,
    .expert_map = true,
};
constexpr Experts kNvfp4Monolithic = [] {
  Experts made = kNvfp4Modular;
  made.name = "TrtLlmNvFp4ExpertsMonolithic";
  made.kind = Kind::monolithic;
  made.limits = {ParallelLimit::no_all2all, ParallelLimit::no_eplb};
  made.routings = {Routing::deepseek_v3, Routing::renormalize, Routing::renormalize_naive,
                   Routing::llama4, Routing::simulated};
  made.logits = LogitsRule::float32_for_some_routings;
  made.expert_map = false;
  return made;
}();
constexpr Activations kAugustActivations{silu,      relu2_no_mul,           gelu,
                                         gelu_tanh, swigluoai_uninterleave, situ};
constexpr Experts kNvfp4AugustModular = [] {
  Experts made = kNvfp4Modular;
  made.activations = kAugustActivations;
  return made;
}();
constexpr Experts kNvfp4AugustMonolithic = [] {
  Experts made = kNvfp4Monolithic;
  made.activations = kAugustActivations;
  made.routings = {Routing::deepseek_v3, Routing::renormalize,    Routing::renormalize_naive,
                   Routing::llama4,      Routing::sigmoid_renorm, Routing::sigmoid,
                   Routing::minimax2,    Routing::simulated};
  made.logits = LogitsRule::bfloat16_or_float32;
  return made;
}();
constexpr Experts kNvfp4TokenModular = [] {
  Experts made = kNvfp4AugustModular;
  made.schemes = kNvfp4Token;
  return made;
}();
constexpr Experts kNvfp4TokenMonolithic = [] {
  Experts made = kNvfp4AugustMonolithic;
  made.schemes = kNvfp4Token;
  made.routings = {Routing::deepseek_v3, Routing::renormalize,    Routing::renormalize_naive,
                   Routing::llama4,      Routing::sigmoid_renorm, Routing::sigmoid,
                   Routing::minimax2};
  return made;
}();
// A function with predicates of its own, no class.
constexpr Experts kJanuaryFunction{
    .name = {},
    .kind = Kind::monolithic,
    .devices = kJanuaryDevices,
    .strict_devices = kDevices,
    .activations = {silu},
    .schemes = kNvfp4,
    .routings = {Routing::deepseek_v3, Routing::renormalize, Routing::renormalize_naive,
                 Routing::llama4},
};

constexpr const Experts* kMxfp4List[] = {&kMxfp4Monolithic, &kMxfp4Modular};
constexpr const Experts* kMxfp4AugustList[] = {&kMxfp4AugustMonolithic, &kMxfp4AugustModular};
constexpr const Experts* kJanuaryList[] = {&kJanuaryFunction};
constexpr const Experts* kNvfp4List[] = {&kNvfp4Monolithic, &kNvfp4Modular};
constexpr const Experts* kMxfp4LoraList[] = {&kMxfp4Lora, &kMxfp4AugustMonolithic,
                                             &kMxfp4AugustModular};
constexpr const Experts* kNvfp4AugustList[] = {&kNvfp4AugustMonolithic, &kNvfp4AugustModular};
constexpr const Experts* kNvfp4TokenList[] = {&kNvfp4TokenMonolithic, &kNvfp4TokenModular};

constexpr Rounding kRounding[] = {{.intermediate = 256, .hidden = 256}};
constexpr Rounding kAugustRounding[] = {{.intermediate = 128, .hidden = 256}};

constexpr Backend mxfp4(std::string_view name, Eras eras, ActivationKey activation) {
  const bool august = kSinceAugust.contains_all(eras);
  const bool quantizes = activation != ActivationKey::none;
  return {.name = name,
          .family = "flashinfer_trtllm",
          .format = WeightFormat::mxfp4,
          .eras = eras,
          .activation = activation,
          .experts = august ? std::span<const Experts* const>(kMxfp4AugustList) : kMxfp4List,
          .rounding = august ? std::span<const Rounding>(kAugustRounding) : kRounding,
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
constexpr oracle::ConversionPadding kJanuaryPadding[] = {{.hidden_is = 128, .gated_needs = 64}};
constexpr oracle::ConversionPadding kAprilPadding[] = {
    {.hidden = 256, .gated = 16, .not_gated = 128, .gated_needs = 64}};
constexpr oracle::ConversionPadding kAugustPadding[] = {
    {.hidden = 256, .gated = 64, .not_gated = 128}};
constexpr std::span<const oracle::ConversionPadding> nvfp4_padding(Eras eras) {
  if (kSinceAugust.contains_all(eras)) return kAugustPadding;
  if (eras == kApril) return kAprilPadding;
  return kJanuaryPadding;
}
constexpr Backend nvfp4(Eras eras, std::span<const Experts* const> experts, QuantScheme scheme) {
  return {.name = "FLASHINFER_TRTLLM",
          .family = "flashinfer_trtllm",
          .format = WeightFormat::nvfp4,
          .eras = eras,
          .experts = experts,
          .scheme = scheme,
          .layout = "flashinfer_trtllm.nvfp4",
          .numerics = "trtllm",
          .global_activation_scales = true,
          .conversion = {.activation_scales = ScaleLayout::linear, .padding = nvfp4_padding(eras)}};
}

constexpr Backend kBackends[] = {
    mxfp4("FLASHINFER_TRTLLM_MXFP4_MXFP8", kSpring, ActivationKey::mxfp8),
    mxfp4("FLASHINFER_TRTLLM_MXFP4_BF16", kSpring, ActivationKey::none),
    mxfp4("FLASHINFER_TRTLLM_MXFP4_MXFP8", kAugust, ActivationKey::mxfp8),
    mxfp4("FLASHINFER_TRTLLM_MXFP4_BF16", kAugust, ActivationKey::none),
    with_lora(mxfp4("FLASHINFER_TRTLLM_MXFP4_MXFP8", kVllm033, ActivationKey::mxfp8)),
    with_lora(mxfp4("FLASHINFER_TRTLLM_MXFP4_BF16", kVllm033, ActivationKey::none)),
    nvfp4(kJanuary, kJanuaryList, QuantScheme::none),
    nvfp4(kApril, kNvfp4List, QuantScheme::nvfp4),
    nvfp4(kAugust, kNvfp4AugustList, QuantScheme::nvfp4),
    nvfp4(kVllm033, kNvfp4TokenList, QuantScheme::nvfp4),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::flashinfer_trtllm
