// Intel GPUs.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::xpu {
namespace {

constexpr DeviceNeed kDevices[] = {{.kinds = kXpu}};
constexpr Scheme kSchemes[] = {{WeightFormat::mxfp4, kSixteenBit}};
constexpr Scheme kAugustSchemes[] = {
    {WeightFormat::mxfp4, {ActivationKey::none, ActivationKey::mxfp4}}};

constexpr Experts kExperts{
    .name = "XPUExpertsMXFp4",
    .devices = kDevices,
    .activations = {silu, gelu, swigluoai},
    .schemes = kSchemes,
    .takes_unquantized = true,
    .expert_map = true,
};
constexpr Experts kAugustExperts = [] {
  Experts made = kExperts;
  made.name = "XPUExpertsMxFp4";
  made.not_gated = true;
  made.activations = {silu, gelu, gelu_tanh, swigluoai, relu2_no_mul};
  made.schemes = kAugustSchemes;
  return made;
}();
constexpr const Experts* kList[] = {&kExperts};
constexpr const Experts* kAugustList[] = {&kAugustExperts};

constexpr Backend row(Eras eras, std::span<const Experts* const> experts,
                      std::span<const Rounding> rounding = kOtherRounding) {
  return {.name = "XPU",
          .family = "xpu",
          .format = WeightFormat::mxfp4,
          .eras = eras,
          .experts = experts,
          .rounding = rounding,
          .scheme = QuantScheme::ocp_mx_mxfp4,
          .layout = "xpu.mxfp4",
          .numerics = "unfused"};
}

constexpr Backend kBackends[] = {
    row({march_20}, {}, kOtherRoundingMarch20),  // a code path of its own, no class
    row({march_27, april_24}, kList),
    row(kSinceAugust, kAugustList),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::xpu
