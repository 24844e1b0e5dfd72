// OpenAI's Triton kernels: fused for gpt-oss, unfused for other activations.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::triton {
namespace {

constexpr EnumSet<PlatformKind> kGpus{PlatformKind::cuda, PlatformKind::rocm};
constexpr CapabilityRange kHopperToBlackwell[] = {{{9, 0}, {11, 0}}};
// Before August 2026 the reference does not check that the package is installed; strict mode does.
constexpr DeviceNeed kBeforeAugust2026Devices[] = {
    {.kinds = kGpus, .capabilities = kHopperToBlackwell}};
constexpr DeviceNeed kBeforeAugust2026Strict[] = {
    {.kinds = kGpus, .capabilities = kHopperToBlackwell, .libraries = {Library::triton_kernels}}};
constexpr std::string_view kAmd[] = {"gfx90a", "gfx942", "gfx950", "gfx11", "gfx120"};
constexpr DeviceNeed kAugust2026Devices[] = {
    {.kinds = kCuda, .capabilities = kHopperToBlackwell, .libraries = {Library::triton_kernels}},
    {.kinds = kRocm, .gfx = kAmd, .libraries = {Library::triton_kernels}},
};
constexpr CapabilityRange kSinceHopper[] = {{{9, 0}, {13, 0}}};
constexpr std::string_view kAmd033[] = {"gfx90a", "gfx942", "gfx950", "gfx11", "gfx12"};
constexpr std::string_view kNotAmd033[] = {"gfx1250"};
constexpr DeviceNeed k033Devices[] = {
    {.kinds = kCuda, .capabilities = kSinceHopper, .libraries = {Library::triton_kernels}},
    {.kinds = kRocm, .gfx = kAmd033, .not_gfx = kNotAmd033, .libraries = {Library::triton_kernels}},
};
constexpr Scheme kSchemes[] = {{WeightFormat::mxfp4, kSixteenBit}};

constexpr ExpertsClass kBeforeAugust2026Modular{
    .name = "OAITritonExperts",
    .devices = kBeforeAugust2026Devices,
    .strict_devices = kBeforeAugust2026Strict,
    .activations = {swigluoai},
    .schemes = kSchemes,
    .takes_unquantized = true,
    .expert_map = true,
};
constexpr ExpertsClass monolithic(ExpertsClass experts) {
  experts.name = "OAITritonMxfp4ExpertsMonolithic";
  experts.kind = Kind::monolithic;
  experts.limits = kMonolithicLimits;
  experts.routings = kRenormalizing;
  return experts;
}
constexpr ExpertsClass unfused(ExpertsClass experts, Activations activations, bool lora) {
  experts.name = "UnfusedOAITritonExperts";
  experts.activations = activations;
  experts.lora = lora;
  return experts;
}
constexpr ExpertsClass kAugust2026Modular = [] {
  ExpertsClass result = kBeforeAugust2026Modular;
  result.devices = kAugust2026Devices;
  result.strict_devices = {};
  return result;
}();
constexpr ExpertsClass k033Modular = [] {
  ExpertsClass result = kAugust2026Modular;
  result.devices = k033Devices;
  return result;
}();
constexpr ExpertsClass kBeforeAugust2026Monolithic = monolithic(kBeforeAugust2026Modular);
constexpr ExpertsClass kAugust2026Monolithic = monolithic(kAugust2026Modular);
constexpr ExpertsClass kBeforeAugust2026Unfused =
    unfused(kBeforeAugust2026Modular, {silu, gelu, swigluoai, swiglustep}, false);
constexpr ExpertsClass kAugust2026Unfused =
    unfused(kAugust2026Modular, {silu, gelu, swigluoai, swiglustep, swigluoai_uninterleave}, true);

constexpr ExpertsClass k033Monolithic = monolithic(k033Modular);
constexpr ExpertsClass k033Unfused =
    unfused(k033Modular, {silu, gelu, swigluoai, swiglustep, swigluoai_uninterleave}, true);

constexpr const ExpertsClass* kBeforeAugust2026List[] = {&kBeforeAugust2026Monolithic,
                                                         &kBeforeAugust2026Modular};
constexpr const ExpertsClass* kAugust2026List[] = {&kAugust2026Monolithic, &kAugust2026Modular};
constexpr const ExpertsClass* kBeforeAugust2026UnfusedList[] = {&kBeforeAugust2026Unfused};
constexpr const ExpertsClass* kAugust2026UnfusedList[] = {&kAugust2026Unfused};

constexpr const ExpertsClass* k033List[] = {&k033Monolithic, &k033Modular};
constexpr const ExpertsClass* k033UnfusedList[] = {&k033Unfused};

// On CDNA 4 the unfused kernels keep the larger tiles.
constexpr Rounding k033UnfusedRounding[] = {
    {.kinds = kRocm,
     .activations = {situ, silu},
     .not_gfx = "gfx950",
     .intermediate = 128,
     .hidden = 128},
    {.kinds = kRocm, .intermediate = 256, .hidden = 256},
    {.intermediate = 64},
};

constexpr Backend row(std::string_view name, PolicyDates policy_dates,
                      std::span<const ExpertsClass* const> experts,
                      std::span<const Rounding> rounding = kOtherRounding) {
  return {.name = name,
          .family = "triton",
          .format = WeightFormat::mxfp4,
          .policy_dates = policy_dates,
          .experts = experts,
          .rounding = rounding,
          .scheme = QuantScheme::mxfp4_w4a16,
          .layout = "triton.mxfp4",
          .numerics = name == "TRITON" ? "triton_fused" : "unfused",
          .biases_required = true,
          .conversion = {.bias13 = "f32", .bias2 = "f32", .precision_configs = true}};
}

constexpr Backend kBackends[] = {
    row("TRITON", {march_20}, kBeforeAugust2026List, kOtherRoundingMarch20),
    row("TRITON", {march_27, april_24}, kBeforeAugust2026List),
    row("TRITON", kAugust2026, kAugust2026List),
    row("TRITON_UNFUSED", {march_20}, kBeforeAugust2026UnfusedList, kOtherRoundingMarch20),
    row("TRITON_UNFUSED", {march_27, april_24}, kBeforeAugust2026UnfusedList),
    row("TRITON_UNFUSED", kAugust2026, kAugust2026UnfusedList),
    row("TRITON", kVllm033, k033List),
    row("TRITON_UNFUSED", kVllm033, k033UnfusedList, k033UnfusedRounding),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::triton
