// FlashInfer's CUTLASS kernels: Hopper with 16-bit activations, Blackwell with quantized ones.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::flashinfer_cutlass {
namespace {

constexpr CapabilityRange kJanuary2026Range[] = {exactly(9, 0), family(10)};
constexpr CapabilityRange kBeforeAugust2026Range[] = {exactly(9, 0), family(10), family(11),
                                                      family(12)};
constexpr CapabilityRange kAugust2026Range[] = {exactly(9, 0), family(10), family(12)};
constexpr DeviceNeed need(std::span<const CapabilityRange> ranges) {
  return {.kinds = kCuda, .capabilities = ranges, .libraries = {Library::flashinfer}};
}
constexpr DeviceNeed kJanuary2026Devices[] = {need(kJanuary2026Range)};
constexpr DeviceNeed kBeforeAugust2026Devices[] = {need(kBeforeAugust2026Range)};
constexpr DeviceNeed kAugust2026Devices[] = {need(kAugust2026Range)};

constexpr Scheme kJanuary2026Schemes[] = {
    {WeightFormat::nvfp4, {ActivationKey::nvfp4}, family(10)}};
constexpr Scheme kSchemes[] = {
    {WeightFormat::mxfp4, kSixteenBit, exactly(9, 0)},
    {WeightFormat::mxfp4, {ActivationKey::mxfp8}, at_least(10, 0)},
    {WeightFormat::nvfp4, {ActivationKey::nvfp4}, at_least(10, 0)},
};

constexpr ExpertsClass kBeforeAugust2026Experts{
    .name = "FlashInferExperts",
    .devices = kBeforeAugust2026Devices,
    .not_gated = true,
    .activations = {silu, relu2_no_mul, swigluoai},
    .schemes = kSchemes,
};
constexpr ExpertsClass kJanuary2026Experts = [] {
  ExpertsClass result = kBeforeAugust2026Experts;
  result.devices = kJanuary2026Devices;
  result.activations = {silu, relu2_no_mul};
  result.schemes = kJanuary2026Schemes;
  result.limits = {ParallelLimit::no_sequence_parallel};
  return result;
}();
constexpr ExpertsClass kAugust2026Experts = [] {
  ExpertsClass result = kBeforeAugust2026Experts;
  result.devices = kAugust2026Devices;
  result.activations = {silu, gelu_tanh, relu2_no_mul, swigluoai, swigluoai_uninterleave};
  return result;
}();
constexpr const ExpertsClass* kJanuary2026List[] = {&kJanuary2026Experts};
constexpr const ExpertsClass* kBeforeAugust2026List[] = {&kBeforeAugust2026Experts};
constexpr const ExpertsClass* kAugust2026List[] = {&kAugust2026Experts};

constexpr Rounding kRounding[] = {{.intermediate = 128, .hidden = 128}};

constexpr Backend mxfp4(std::string_view name, PolicyDates policy_dates, ActivationKey activation) {
  const bool quantizes = activation != ActivationKey::none;
  return {
      .name = name,
      .family = "flashinfer_cutlass",
      .format = WeightFormat::mxfp4,
      .policy_dates = policy_dates,
      .activation = activation,
      .experts = policy_dates == kSinceAugust2026
                     ? std::span<const ExpertsClass* const>(kAugust2026List)
                     : kBeforeAugust2026List,
      .rounding = kRounding,
      .scheme = quantizes ? QuantScheme::mxfp4_mxfp8 : QuantScheme::mxfp4_w4a16,
      .layout = quantizes ? "flashinfer_cutlass_sm100.mxfp4" : "flashinfer_cutlass_sm90.mxfp4",
      .numerics = quantizes ? "grouped" : "grouped_bf16",
      .biases_required = true,
      .conversion = {.bias13 = "bf16",
                     .gemm1_constants = true,
                     .activation_scales = quantizes ? ScaleLayout::swizzled : ScaleLayout::none}};
}
constexpr Backend nvfp4(PolicyDates policy_dates, std::span<const ExpertsClass* const> experts) {
  return {.name = "FLASHINFER_CUTLASS",
          .family = "flashinfer_cutlass",
          .format = WeightFormat::nvfp4,
          .policy_dates = policy_dates,
          .experts = experts,
          .scheme = QuantScheme::nvfp4,
          .layout = "flashinfer_cutlass.nvfp4",
          .numerics = "grouped",
          .global_activation_scales = true,
          .conversion = {.activation_scales = ScaleLayout::swizzled, .padding = kSwizzlePadding}};
}

constexpr Backend kBackends[] = {
    mxfp4("FLASHINFER_CUTLASS_MXFP4_MXFP8", kBeforeAugust2026, ActivationKey::mxfp8),
    mxfp4("FLASHINFER_CUTLASS_MXFP4_BF16", kBeforeAugust2026, ActivationKey::none),
    mxfp4("FLASHINFER_CUTLASS_MXFP4_MXFP8", kSinceAugust2026, ActivationKey::mxfp8),
    mxfp4("FLASHINFER_CUTLASS_MXFP4_BF16", kSinceAugust2026, ActivationKey::none),
    nvfp4(kJanuary2026, kJanuary2026List),
    nvfp4(kApril2026, kBeforeAugust2026List),
    nvfp4(kSinceAugust2026, kAugust2026List),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::flashinfer_cutlass
