// FlashInfer's CuteDSL kernels for data-center Blackwell. January knew only the batched one, under
// the name that later means the standard one.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::flashinfer_cutedsl {
namespace {

constexpr CapabilityRange kBlackwell[] = {family(10)};
// January asks for no platform and no package: a Radeon of generation 10 would do.
constexpr DeviceNeed kJanuary2026Devices[] = {{.capabilities = kBlackwell}};
constexpr DeviceNeed kDevices[] = {
    {.kinds = kCuda, .capabilities = kBlackwell, .libraries = {Library::flashinfer}}};
constexpr Scheme kSchemes[] = {{WeightFormat::nvfp4, {ActivationKey::nvfp4}}};
constexpr Scheme kTokenSchemes[] = {
    {WeightFormat::nvfp4, {ActivationKey::nvfp4, ActivationKey::nvfp4_token}}};

constexpr ExpertsClass kStandard{
    .name = "FlashInferCuteDSLExperts",
    .devices = kDevices,
    .activations = {silu},
    .schemes = kSchemes,
};
constexpr ExpertsClass kBatched = [] {
  ExpertsClass result = kStandard;
  result.name = "FlashInferCuteDSLBatchedExperts";
  result.format = TokenFormat::batched;
  return result;
}();
constexpr ExpertsClass kJanuary2026Batched = [] {
  ExpertsClass result = kStandard;
  result.format = TokenFormat::batched;
  result.devices = kJanuary2026Devices;
  result.strict_devices = kDevices;
  return result;
}();
constexpr ExpertsClass kAugust2026Standard = [] {
  ExpertsClass result = kStandard;
  result.not_gated = true;
  result.activations = {silu, swigluoai, swigluoai_uninterleave, relu2_no_mul};
  return result;
}();
constexpr ExpertsClass kSituStandard = [] {
  ExpertsClass result = kAugust2026Standard;
  result.activations = {silu, swigluoai, swigluoai_uninterleave, relu2_no_mul, situ};
  result.schemes = kTokenSchemes;
  return result;
}();
constexpr const ExpertsClass* kJanuary2026List[] = {&kJanuary2026Batched};
constexpr const ExpertsClass* kStandardList[] = {&kStandard};
constexpr const ExpertsClass* kAugust2026List[] = {&kAugust2026Standard};
constexpr const ExpertsClass* kSituList[] = {&kSituStandard};
constexpr const ExpertsClass* kBatchedList[] = {&kBatched};

// The standard kernel wants gate and up in whole tiles. Until August nothing was padded.
constexpr oracle::ConversionPadding kStandardPadding[] = {{.gated_needs = 64}};
constexpr oracle::ConversionPadding kWholeTiles[] = {
    {.hidden = 256, .gated = 64, .not_gated = 128}};
constexpr std::span<const oracle::ConversionPadding> padding(PolicyDates policy_dates,
                                                             bool is_batched) {
  if (is_batched) return kSwizzlePadding;
  if (policy_dates == kVllm033) return kWholeTiles;
  return kStandardPadding;
}

constexpr Backend row(std::string_view name, PolicyDates policy_dates,
                      std::span<const ExpertsClass* const> experts) {
  const bool is_batched = experts.front()->format == TokenFormat::batched;
  return {
      .name = name,
      .family = "flashinfer_cutedsl",
      .format = WeightFormat::nvfp4,
      .policy_dates = policy_dates,
      .experts = experts,
      .batched = is_batched ? "" : "FLASHINFER_CUTEDSL_BATCHED",
      .scheme = QuantScheme::nvfp4,
      .layout = is_batched ? "flashinfer_cutedsl_batched.nvfp4" : "flashinfer_cutedsl.nvfp4",
      .numerics = "grouped",
      .applies_clamp = !is_batched,
      .global_activation_scales = true,
      .conversion = {.activation_scales = is_batched ? ScaleLayout::swizzled : ScaleLayout::linear,
                     .padding = padding(policy_dates, is_batched)}};
}

constexpr Backend kBackends[] = {
    row("FLASHINFER_CUTEDSL", kJanuary2026, kJanuary2026List),
    row("FLASHINFER_CUTEDSL", kApril2026, kStandardList),
    row("FLASHINFER_CUTEDSL", kAugust2026, kAugust2026List),
    row("FLASHINFER_CUTEDSL", kVllm033, kSituList),
    row("FLASHINFER_CUTEDSL_BATCHED", kReferenceSinceApril2026, kBatchedList),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::flashinfer_cutedsl
