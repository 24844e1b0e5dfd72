// vLLM's own CUTLASS kernels, for NVFP4 and, since release 0.33.0 in the oracle, for MXFP4.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::vllm_cutlass {
namespace {

constexpr CapabilityRange kBlackwells[] = {family(10), family(11), family(12)};
constexpr CapabilityRange kSince10[] = {at_least(10, 0)};
constexpr DeviceNeed kDevices[] = {{.kinds = kCuda, .capabilities = kBlackwells}};
// January asks for no platform: Radeons of generation 11 and 12 would do.
constexpr DeviceNeed kJanuary2026Devices[] = {{.capabilities = kSince10}};
constexpr DeviceNeed kJanuary2026Strict[] = {{.kinds = kCuda, .capabilities = kSince10}};
constexpr Scheme kSchemes[] = {{WeightFormat::nvfp4, {ActivationKey::nvfp4}}};
// Builds for CUDA 12.9 and later have it.
constexpr CapabilityRange kMxfp4Range[] = {family(10), family(11)};
constexpr DeviceNeed kMxfp4Devices[] = {{.kinds = kCuda, .capabilities = kMxfp4Range}};
constexpr Scheme kMxfp4Schemes[] = {{WeightFormat::mxfp4, {ActivationKey::mxfp4}}};

constexpr ExpertsClass kApril2026Experts{
    .name = "CutlassExpertsFp4",
    .devices = kDevices,
    .not_gated = true,
    .activations = kGenericActivationsBeforeAugust2026,
    .schemes = kSchemes,
    .limits = {ParallelLimit::one_expert_rank},
};
constexpr ExpertsClass kJanuary2026Experts = [] {
  ExpertsClass result = kApril2026Experts;
  result.devices = kJanuary2026Devices;
  result.strict_devices = kJanuary2026Strict;
  result.not_gated = false;
  result.activations = {silu, gelu, swigluoai};
  return result;
}();
constexpr ExpertsClass kAugust2026Experts = [] {
  ExpertsClass result = kApril2026Experts;
  result.activations = kGenericActivationsSinceAugust2026;
  result.batch_invariant = true;
  result.takes_unquantized = true;
  return result;
}();
constexpr ExpertsClass kSplitExperts = [] {
  ExpertsClass result = kAugust2026Experts;
  result.limits = kNoFlashinferNoDeepepHt;
  result.expert_map = true;
  return result;
}();
constexpr ExpertsClass kMxfp4Experts = [] {
  ExpertsClass result = kSplitExperts;
  result.name = "CutlassExpertsMxfp4";
  result.devices = kMxfp4Devices;
  result.schemes = kMxfp4Schemes;
  result.batch_invariant = false;
  return result;
}();
constexpr const ExpertsClass* kJanuary2026List[] = {&kJanuary2026Experts};
constexpr const ExpertsClass* kApril2026List[] = {&kApril2026Experts};
constexpr const ExpertsClass* kAugust2026List[] = {&kAugust2026Experts};
constexpr const ExpertsClass* kSplitList[] = {&kSplitExperts};
constexpr const ExpertsClass* kMxfp4List[] = {&kMxfp4Experts};
constexpr Rounding kMxfp4Rounding[] = {{.intermediate = 128, .hidden = 128}};

constexpr Backend row(PolicyDates policy_dates, std::span<const ExpertsClass* const> experts) {
  return {.name = "VLLM_CUTLASS",
          .family = "vllm_cutlass",
          .format = WeightFormat::nvfp4,
          .policy_dates = policy_dates,
          .experts = experts,
          .scheme = QuantScheme::nvfp4,
          .layout = "vllm_cutlass.nvfp4",
          .numerics = "grouped",
          .conversion = {.activation_scales = ScaleLayout::swizzled, .padding = kSwizzlePadding}};
}

constexpr Backend kBackends[] = {
    row(kJanuary2026, kJanuary2026List),
    row(kApril2026, kApril2026List),
    row(kAugust2026, kAugust2026List),
    row(kVllm033, kSplitList),
    {.name = "CUTLASS_MXFP4_MXFP4",
     .family = "vllm_cutlass",
     .format = WeightFormat::mxfp4,
     .policy_dates = kVllm033,
     .activation = ActivationKey::mxfp4,
     .experts = kMxfp4List,
     .rounding = kMxfp4Rounding,
     .scheme = QuantScheme::ocp_mx_mxfp4,
     .layout = "vllm_cutlass.mxfp4",
     .numerics = "grouped",
     .conversion = {.activation_scales = ScaleLayout::swizzled}},
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::vllm_cutlass
