// AITER on AMD's Instinct parts. Until March 2026 the backend was called CK, after its kernels.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::aiter {
namespace {

constexpr std::string_view kInstinct3[] = {"gfx942", "gfx950"};
constexpr std::string_view kInstinct3AndLater[] = {"gfx942", "gfx950", "gfx1250"};
constexpr std::string_view kInstinct4AndLater[] = {"gfx950", "gfx1250"};
constexpr std::string_view kInstinct5[] = {"gfx1250"};
constexpr EnumSet<Variable> kMoeOn{Variable::rocm_use_aiter, Variable::rocm_use_aiter_moe};

constexpr DeviceNeed need(std::span<const std::string_view> gfx, EnumSet<Variable> switches) {
  return {.kinds = kRocm, .gfx = gfx, .libraries = {Library::aiter}, .switches = switches};
}
constexpr DeviceNeed kDevices[] = {need(kInstinct3, kMoeOn)};
constexpr DeviceNeed kAugust2026Devices[] = {need(kInstinct3AndLater, kMoeOn)};
constexpr DeviceNeed kMonolithicDevices[] = {need(kInstinct4AndLater, {Variable::rocm_use_aiter})};
constexpr DeviceNeed kW4A16Devices[] = {need(kInstinct3AndLater, {Variable::rocm_use_aiter})};
constexpr DeviceNeed kW4A4Devices[] = {need(kInstinct5, {Variable::rocm_use_aiter})};

constexpr Scheme kAnyInstinct[] = {{WeightFormat::mxfp4, kSixteenBit}};
constexpr Scheme kGfx950[] = {
    {.weights = WeightFormat::mxfp4, .activations = kSixteenBit, .gfx = "gfx950"}};
constexpr Scheme kGfx950Both[] = {{.weights = WeightFormat::mxfp4,
                                   .activations = {ActivationKey::none, ActivationKey::mxfp4},
                                   .gfx = "gfx950"}};
constexpr Scheme kFp8[] = {{WeightFormat::mxfp4, {ActivationKey::fp8_static_tensor}}};
constexpr Scheme kMxfp4[] = {{WeightFormat::mxfp4, {ActivationKey::mxfp4}}};

constexpr ExpertsClass kApril2026Experts{
    .name = "AiterExperts",
    .devices = kDevices,
    .activations = {silu, gelu, swigluoai},
    .schemes = kGfx950,
    .limits = kNoFlashinferExchange,
    .takes_unquantized = true,  // except with mori
    .expert_map = true,
};
constexpr ExpertsClass kMarch20Experts = [] {
  ExpertsClass result = kApril2026Experts;
  result.schemes = kAnyInstinct;
  return result;
}();
constexpr ExpertsClass kAugust2026Experts = [] {
  ExpertsClass result = kApril2026Experts;
  result.devices = kAugust2026Devices;
  result.activations = {silu, gelu, situ, swigluoai, swigluoai_uninterleave};
  result.schemes = kGfx950Both;
  result.refusal_note =
      ". AITER MoE is not enabled — set VLLM_ROCM_USE_AITER=1 and VLLM_ROCM_USE_AITER_MOE=1 to "
      "enable it";
  return result;
}();
constexpr ExpertsClass kW4A16{
    .name = "AiterW4A16ExpertsMonolithic",
    .kind = Kind::monolithic,
    .devices = kMonolithicDevices,
    .activations = {swigluoai, silu},
    .schemes = kAnyInstinct,
    .limits = kMonolithicLimits,
    .routings = {Routing::renormalize, Routing::renormalize_naive, Routing::deepseek_v4},
    .takes_unquantized = true,
};
constexpr ExpertsClass kW4A8 = [] {
  ExpertsClass result = kW4A16;
  result.name = "AiterW4A8ExpertsMonolithic";
  result.activations = {swigluoai};
  result.schemes = kFp8;
  result.routings = kRenormalizing;
  return result;
}();

// Release 0.33.0.
constexpr ExpertsClass kMxfp4Experts = [] {
  ExpertsClass result = kAugust2026Experts;
  result.name = "AiterMxfp4Experts";
  result.int4_groups_on = "gfx942";
  result.reads = {Variable::rocm_aiter_situv2, Variable::rocm_aiter_a4w4_dsv4};
  return result;
}();
constexpr ExpertsClass kW4A16Wider = [] {
  ExpertsClass result = kW4A16;
  result.devices = kW4A16Devices;
  result.routings = {Routing::renormalize, Routing::renormalize_naive, Routing::deepseek_v4,
                     Routing::deepseek_v3};
  result.hash_routing = true;
  return result;
}();
constexpr ExpertsClass kW4A8WholeExperts = [] {
  ExpertsClass result = kW4A8;
  result.limits = {ParallelLimit::no_expert_parallel, ParallelLimit::no_eplb,
                   ParallelLimit::no_data_parallel};
  return result;
}();
constexpr ExpertsClass kW4A4 = [] {
  ExpertsClass result = kW4A16Wider;
  result.name = "AiterW4A4ExpertsMonolithic";
  result.devices = kW4A4Devices;
  result.activations = {swigluoai, swigluoai_uninterleave, silu};
  result.schemes = kMxfp4;
  result.routings = {Routing::renormalize, Routing::renormalize_naive, Routing::deepseek_v4,
                     Routing::deepseek_v3, Routing::minimax2};
  return result;
}();

constexpr const ExpertsClass* kMarch20List[] = {&kMarch20Experts};
constexpr const ExpertsClass* kApril2026List[] = {&kApril2026Experts};
constexpr const ExpertsClass* kBf16List[] = {&kAugust2026Experts, &kW4A16};
constexpr const ExpertsClass* kFp8List[] = {&kW4A8};
constexpr const ExpertsClass* kMxfp4List[] = {&kAugust2026Experts};
constexpr const ExpertsClass* kOneClassList[] = {&kMxfp4Experts};
constexpr const ExpertsClass* kW4A16List[] = {&kW4A16Wider};
constexpr const ExpertsClass* kW4A8List[] = {&kW4A8WholeExperts};
constexpr const ExpertsClass* kW4A4List[] = {&kW4A4};

constexpr Rounding kBf16Rounding[] = {
    {.kinds = kRocm, .activations = {situ, silu}, .intermediate = 128, .hidden = 128},
    {.kinds = kRocm, .intermediate = 256, .hidden = 256},
    {.intermediate = 64},
};

constexpr Rounding kMxfp4Rounding[] = {
    {.kinds = kRocm, .intermediate = 128, .hidden = 256},
    {.intermediate = 64},
};

constexpr Backend row(std::string_view name, PolicyDates policy_dates,
                      std::span<const ExpertsClass* const> experts,
                      std::span<const Rounding> rounding = kOtherRounding,
                      ActivationKey activation = ActivationKey::none,
                      QuantScheme scheme = QuantScheme::mxfp4_w4a16,
                      std::string_view layout = "aiter.mxfp4") {
  return {.name = name,
          .family = "aiter",
          .format = WeightFormat::mxfp4,
          .policy_dates = policy_dates,
          .activation = activation,
          .experts = experts,
          .rounding = rounding,
          .scheme = scheme,
          .layout = layout,
          .numerics = "fused",
          .conversion = {.bias13 = "f32", .bias2 = "f32"}};
}

constexpr Backend kBackends[] = {
    row("CK", {march_20}, kMarch20List, kOtherRoundingMarch20),
    row("CK", {march_27}, kApril2026List),
    row("AITER", kApril2026, kApril2026List),
    row("AITER_MXFP4_BF16", kAugust2026, kBf16List, kBf16Rounding),
    row("AITER_MXFP4_FP8", kAugust2026, kFp8List, kOtherRounding, ActivationKey::fp8_static_tensor,
        QuantScheme::mxfp4_w4a8, "triton.mxfp4"),
    row("AITER_MXFP4_MXFP4", kAugust2026, kMxfp4List, kOtherRounding, ActivationKey::mxfp4,
        QuantScheme::ocp_mx_mxfp4, "aiter_16x16.mxfp4"),
    row("AITER_MXFP4_BF16", kVllm033, kOneClassList, kBf16Rounding),
    row("AITER_TRITON_MXFP4_BF16", kVllm033, kW4A16List, kOtherRounding, ActivationKey::none,
        QuantScheme::mxfp4_w4a16, "aiter_triton.mxfp4"),
    row("AITER_MXFP4_FP8", kVllm033, kW4A8List, kOtherRounding, ActivationKey::fp8_static_tensor,
        QuantScheme::mxfp4_w4a8, "triton.mxfp4"),
    row("AITER_MXFP4_MXFP4", kVllm033, kOneClassList, kMxfp4Rounding, ActivationKey::mxfp4,
        QuantScheme::ocp_mx_mxfp4, "aiter_16x16.mxfp4"),
    row("AITER_TRITON_MXFP4_MXFP4", kVllm033, kW4A4List, kOtherRounding, ActivationKey::mxfp4,
        QuantScheme::ocp_mx_mxfp4, "aiter_triton_w4a4.mxfp4"),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::aiter
