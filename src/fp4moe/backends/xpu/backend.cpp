// Intel GPUs.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::xpu {
namespace {

constexpr DeviceNeed kDevices[] = {{.kinds = kXpu}};
constexpr Scheme kSchemes[] = {{WeightFormat::mxfp4, kSixteenBit}};
constexpr Scheme kAugust2026Schemes[] = {
    {WeightFormat::mxfp4, {ActivationKey::none, ActivationKey::mxfp4}}};

constexpr ExpertsClass kExperts{
    .name = "XPUExpertsMXFp4",
    .devices = kDevices,
    .activations = {silu, gelu, swigluoai},
    .schemes = kSchemes,
    .takes_unquantized = true,
    .expert_map = true,
};
constexpr ExpertsClass kAugust2026Experts = [] {
  ExpertsClass result = kExperts;
  result.name = "XPUExpertsMxFp4";
  result.not_gated = true;
  result.activations = {silu, gelu, gelu_tanh, swigluoai, relu2_no_mul};
  result.schemes = kAugust2026Schemes;
  return result;
}();
constexpr const ExpertsClass* kList[] = {&kExperts};
constexpr const ExpertsClass* kAugust2026List[] = {&kAugust2026Experts};

constexpr Backend row(PolicyDates policy_dates, std::span<const ExpertsClass* const> experts,
                      std::span<const Rounding> rounding = kOtherRounding) {
  return {.name = "XPU",
          .family = "xpu",
          .format = WeightFormat::mxfp4,
          .policy_dates = policy_dates,
          .experts = experts,
          .rounding = rounding,
          .scheme = QuantScheme::ocp_mx_mxfp4,
          .layout = "xpu.mxfp4",
          .numerics = "unfused"};
}

constexpr Backend kBackends[] = {
    row({march_20}, {}, kOtherRoundingMarch20),  // a code path of its own, no class
    row({march_27, april_24}, kList),
    row(kSinceAugust2026, kAugust2026List),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::xpu
