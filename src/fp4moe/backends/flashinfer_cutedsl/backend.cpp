// FlashInfer's CuteDSL kernels for data-centre Blackwell. January knew only the batched one, under
// the name that later means the standard one.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::flashinfer_cutedsl {
namespace {

constexpr CapabilityRange kBlackwell[] = {family(10)};
// January asks for no platform and no package: a Radeon of generation 10 would do.
constexpr DeviceNeed kJanuaryDevices[] = {{.capabilities = kBlackwell}};
constexpr DeviceNeed kDevices[] = {
    {.kinds = kCuda, .capabilities = kBlackwell, .libraries = {Library::flashinfer}}};
constexpr Scheme kSchemes[] = {{WeightFormat::nvfp4, {ActivationKey::nvfp4}}};
constexpr Scheme kTokenSchemes[] = {
    {WeightFormat::nvfp4, {ActivationKey::nvfp4, ActivationKey::nvfp4_token}}};

constexpr Experts kStandard{
    .name = "FlashInferCuteDSLExperts",
    .devices = kDevices,
    .activations = {silu},
    .schemes = kSchemes,
};
constexpr Experts kBatched = [] {
  Experts made = kStandard;
  made.name = "FlashInferCuteDSLBatchedExperts";
  made.format = TokenFormat::batched;
  return made;
}();
constexpr Experts kJanuaryBatched = [] {
  Experts made = kStandard;
  made.format = TokenFormat::batched;
  made.devices = kJanuaryDevices;
  made.strict_devices = kDevices;
  return made;
}();
constexpr Experts kAugustStandard = [] {
  Experts made = kStandard;
  made.not_gated = true;
  made.activations = {silu, swigluoai, swigluoai_uninterleave, relu2_no_mul};
  return made;
}();
constexpr Experts kSituStandard = [] {
  Experts made = kAugustStandard;
  made.activations = {silu, swigluoai, swigluoai_uninterleave, relu2_no_mul, situ};
  made.schemes = kTokenSchemes;
  return made;
}();
constexpr const Experts* kJanuaryList[] = {&kJanuaryBatched};
constexpr const Experts* kStandardList[] = {&kStandard};
constexpr const Experts* kAugustList[] = {&kAugustStandard};
constexpr const Experts* kSituList[] = {&kSituStandard};
constexpr const Experts* kBatchedList[] = {&kBatched};

// The standard kernel wants gate and up in whole tiles. Until August nothing was padded.
constexpr oracle::ConversionPadding kStandardPadding[] = {{.gated_needs = 64}};
constexpr oracle::ConversionPadding kWholeTiles[] = {
    {.hidden = 256, .gated = 64, .not_gated = 128}};
constexpr std::span<const oracle::ConversionPadding> padding(Eras eras, bool is_batched) {
  if (is_batched) return kSwizzlePadding;
  if (eras == kVllm033) return kWholeTiles;
  return kStandardPadding;
}

constexpr Backend row(std::string_view name, Eras eras, std::span<const Experts* const> experts) {
  const bool is_batched = experts.front()->format == TokenFormat::batched;
  return {
      .name = name,
      .family = "flashinfer_cutedsl",
      .format = WeightFormat::nvfp4,
      .eras = eras,
      .experts = experts,
      .batched = is_batched ? "" : "FLASHINFER_CUTEDSL_BATCHED",
      .scheme = QuantScheme::nvfp4,
      .layout = is_batched ? "flashinfer_cutedsl_batched.nvfp4" : "flashinfer_cutedsl.nvfp4",
      .numerics = "grouped",
      .applies_clamp = !is_batched,
      .global_activation_scales = true,
      .conversion = {.activation_scales = is_batched ? ScaleLayout::swizzled : ScaleLayout::linear,
                     .padding = padding(eras, is_batched)}};
}

constexpr Backend kBackends[] = {
    row("FLASHINFER_CUTEDSL", kJanuary, kJanuaryList),
    row("FLASHINFER_CUTEDSL", kApril, kStandardList),
    row("FLASHINFER_CUTEDSL", kAugust, kAugustList),
    row("FLASHINFER_CUTEDSL", kVllm033, kSituList),
    row("FLASHINFER_CUTEDSL_BATCHED", kReferenceSinceApril, kBatchedList),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::flashinfer_cutedsl
