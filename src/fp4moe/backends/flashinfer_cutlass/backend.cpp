// FlashInfer's CUTLASS kernels: Hopper with 16-bit activations, Blackwell with quantized ones.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::flashinfer_cutlass {
namespace {

constexpr CapabilityRange kJanuaryRange[] = {exactly(9, 0), family(10)};
constexpr CapabilityRange kSpringRange[] = {exactly(9, 0), family(10), family(11), family(12)};
constexpr CapabilityRange kAugustRange[] = {exactly(9, 0), family(10), family(12)};
constexpr DeviceNeed need(std::span<const CapabilityRange> ranges) {
  return {.kinds = kCuda, .capabilities = ranges, .libraries = {Library::flashinfer}};
}
constexpr DeviceNeed kJanuaryDevices[] = {need(kJanuaryRange)};
constexpr DeviceNeed kSpringDevices[] = {need(kSpringRange)};
constexpr DeviceNeed kAugustDevices[] = {need(kAugustRange)};

constexpr Scheme kJanuarySchemes[] = {{WeightFormat::nvfp4, {ActivationKey::nvfp4}, family(10)}};
constexpr Scheme kSchemes[] = {
    {WeightFormat::mxfp4, kSixteenBit, exactly(9, 0)},
    {WeightFormat::mxfp4, {ActivationKey::mxfp8}, at_least(10, 0)},
    {WeightFormat::nvfp4, {ActivationKey::nvfp4}, at_least(10, 0)},
};

constexpr Experts kSpringExperts{
    .name = "FlashInferExperts",
    .devices = kSpringDevices,
    .not_gated = true,
    .activations = {silu, relu2_no_mul, swigluoai},
    .schemes = kSchemes,
};
constexpr Experts kJanuaryExperts = [] {
  Experts made = kSpringExperts;
  made.devices = kJanuaryDevices;
  made.activations = {silu, relu2_no_mul};
  made.schemes = kJanuarySchemes;
  made.limits = {ParallelLimit::no_sequence_parallel};
  return made;
}();
constexpr Experts kAugustExperts = [] {
  Experts made = kSpringExperts;
  made.devices = kAugustDevices;
  made.activations = {silu, gelu_tanh, relu2_no_mul, swigluoai, swigluoai_uninterleave};
  return made;
}();
constexpr const Experts* kJanuaryList[] = {&kJanuaryExperts};
constexpr const Experts* kSpringList[] = {&kSpringExperts};
constexpr const Experts* kAugustList[] = {&kAugustExperts};

constexpr Rounding kRounding[] = {{.intermediate = 128, .hidden = 128}};

constexpr Backend mxfp4(std::string_view name, Eras eras, ActivationKey activation) {
  const bool quantizes = activation != ActivationKey::none;
  return {
      .name = name,
      .family = "flashinfer_cutlass",
      .format = WeightFormat::mxfp4,
      .eras = eras,
      .activation = activation,
      .experts = eras == kSinceAugust ? std::span<const Experts* const>(kAugustList) : kSpringList,
      .rounding = kRounding,
      .scheme = quantizes ? QuantScheme::mxfp4_mxfp8 : QuantScheme::mxfp4_w4a16,
      .layout = quantizes ? "flashinfer_cutlass_sm100.mxfp4" : "flashinfer_cutlass_sm90.mxfp4",
      .numerics = quantizes ? "grouped" : "grouped_bf16",
      .biases_required = true,
      .conversion = {.bias13 = "bf16",
                     .gemm1_constants = true,
                     .activation_scales = quantizes ? ScaleLayout::swizzled : ScaleLayout::none}};
}
constexpr Backend nvfp4(Eras eras, std::span<const Experts* const> experts) {
  return {.name = "FLASHINFER_CUTLASS",
          .family = "flashinfer_cutlass",
          .format = WeightFormat::nvfp4,
          .eras = eras,
          .experts = experts,
          .scheme = QuantScheme::nvfp4,
          .layout = "flashinfer_cutlass.nvfp4",
          .numerics = "grouped",
          .global_activation_scales = true,
          .conversion = {.activation_scales = ScaleLayout::swizzled, .padding = kSwizzlePadding}};
}

constexpr Backend kBackends[] = {
    mxfp4("FLASHINFER_CUTLASS_MXFP4_MXFP8", kSpring, ActivationKey::mxfp8),
    mxfp4("FLASHINFER_CUTLASS_MXFP4_BF16", kSpring, ActivationKey::none),
    mxfp4("FLASHINFER_CUTLASS_MXFP4_MXFP8", kSinceAugust, ActivationKey::mxfp8),
    mxfp4("FLASHINFER_CUTLASS_MXFP4_BF16", kSinceAugust, ActivationKey::none),
    nvfp4(kJanuary, kJanuaryList),
    nvfp4(kApril, kSpringList),
    nvfp4(kSinceAugust, kAugustList),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::flashinfer_cutlass
