// vLLM's own CUTLASS kernels, for NVFP4 and, since release 0.33.0 in the oracle, for MXFP4.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::vllm_cutlass {
namespace {

constexpr CapabilityRange kBlackwells[] = {family(10), family(11), family(12)};
constexpr CapabilityRange kSince10[] = {at_least(10, 0)};
constexpr DeviceNeed kDevices[] = {{.kinds = kCuda, .capabilities = kBlackwells}};
// January asks for no platform: Radeons of generation 11 and 12 would do.
constexpr DeviceNeed kJanuaryDevices[] = {{.capabilities = kSince10}};
constexpr DeviceNeed kJanuaryStrict[] = {{.kinds = kCuda, .capabilities = kSince10}};
constexpr Scheme kSchemes[] = {{WeightFormat::nvfp4, {ActivationKey::nvfp4}}};
// Builds for CUDA 12.9 and later have it.
constexpr CapabilityRange kMxfp4Range[] = {family(10), family(11)};
constexpr DeviceNeed kMxfp4Devices[] = {{.kinds = kCuda, .capabilities = kMxfp4Range}};
constexpr Scheme kMxfp4Schemes[] = {{WeightFormat::mxfp4, {ActivationKey::mxfp4}}};

constexpr Experts kAprilExperts{
    .name = "CutlassExpertsFp4",
    .devices = kDevices,
    .not_gated = true,
    .activations = kGenericSeven,
    .schemes = kSchemes,
    .limits = {ParallelLimit::one_expert_rank},
};
constexpr Experts kJanuaryExperts = [] {
  Experts made = kAprilExperts;
  made.devices = kJanuaryDevices;
  made.strict_devices = kJanuaryStrict;
  made.not_gated = false;
  made.activations = {silu, gelu, swigluoai};
  return made;
}();
constexpr Experts kAugustExperts = [] {
  Experts made = kAprilExperts;
  made.activations = kGenericEleven;
  made.batch_invariant = true;
  made.takes_unquantized = true;
  return made;
}();
constexpr Experts kSplitExperts = [] {
  Experts made = kAugustExperts;
  made.limits = kNoFlashinferNoDeepepHt;
  made.expert_map = true;
  return made;
}();
constexpr Experts kMxfp4Experts = [] {
  Experts made = kSplitExperts;
  made.name = "CutlassExpertsMxfp4";
  made.devices = kMxfp4Devices;
  made.schemes = kMxfp4Schemes;
  made.batch_invariant = false;
  return made;
}();
constexpr const Experts* kJanuaryList[] = {&kJanuaryExperts};
constexpr const Experts* kAprilList[] = {&kAprilExperts};
constexpr const Experts* kAugustList[] = {&kAugustExperts};
constexpr const Experts* kSplitList[] = {&kSplitExperts};
constexpr const Experts* kMxfp4List[] = {&kMxfp4Experts};
constexpr Rounding kMxfp4Rounding[] = {{.intermediate = 128, .hidden = 128}};

constexpr Backend row(Eras eras, std::span<const Experts* const> experts) {
  return {.name = "VLLM_CUTLASS",
          .family = "vllm_cutlass",
          .format = WeightFormat::nvfp4,
          .eras = eras,
          .experts = experts,
          .scheme = QuantScheme::nvfp4,
          .layout = "vllm_cutlass.nvfp4",
          .numerics = "grouped",
          .conversion = {.activation_scales = ScaleLayout::swizzled, .padding = kSwizzlePadding}};
}

constexpr Backend kBackends[] = {
    row(kJanuary, kJanuaryList),
    row(kApril, kAprilList),
    row(kAugust, kAugustList),
    row(kVllm033, kSplitList),
    {.name = "CUTLASS_MXFP4_MXFP4",
     .family = "vllm_cutlass",
     .format = WeightFormat::mxfp4,
     .eras = kVllm033,
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
