// Marlin: 16-bit activations on every CUDA device since Turing.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::marlin {
namespace {

constexpr CapabilityRange kSince[] = {at_least(7, 5)};
constexpr DeviceNeed kDevices[] = {{.kinds = kCuda, .capabilities = kSince}};
// Weights count, the form of activations does not.
constexpr Scheme kSchemes[] = {{WeightFormat::mxfp4, kAnyKey}, {WeightFormat::nvfp4, kAnyKey}};

constexpr ExpertsClass kBeforeAugust2026Experts{
    .name = "MarlinExperts",
    .devices = kDevices,
    .not_gated = true,
    .activations = kGenericActivationsBeforeAugust2026,
    .schemes = kSchemes,
    .limits = kNoFlashinferExchange,
    .expert_map = true,
};
constexpr ExpertsClass kAugust2026Experts = [] {
  ExpertsClass result = kBeforeAugust2026Experts;
  result.activations = kGenericActivationsSinceAugust2026;
  result.limits = {ParallelLimit::no_flashinfer_two_sided};
  result.lora = true;
  return result;
}();
constexpr ExpertsClass kJanuary2026Experts = [] {
  ExpertsClass result = kBeforeAugust2026Experts;
  result.not_gated = false;  // although it lists activations without a gate
  result.activations = {silu, gelu, swigluoai, silu_no_mul, gelu_no_mul, relu2_no_mul};
  result.limits = {ParallelLimit::no_flashinfer_two_sided};
  return result;
}();
constexpr ExpertsClass batched(ExpertsClass experts) {
  experts.name = "BatchedMarlinExperts";
  experts.format = TokenFormat::batched;
  experts.lora = false;
  return experts;
}
constexpr ExpertsClass kBeforeAugust2026Batched = batched(kBeforeAugust2026Experts);
constexpr ExpertsClass kAugust2026Batched = batched(kAugust2026Experts);

constexpr const ExpertsClass* kJanuary2026List[] = {&kJanuary2026Experts};
constexpr const ExpertsClass* kBeforeAugust2026List[] = {&kBeforeAugust2026Experts};
constexpr const ExpertsClass* kAugust2026List[] = {&kAugust2026Experts};
constexpr const ExpertsClass* kBeforeAugust2026BatchedList[] = {&kBeforeAugust2026Batched};
constexpr const ExpertsClass* kAugust2026BatchedList[] = {&kAugust2026Batched};

constexpr Rounding kRounding[] = {
    {.kinds = kXpu, .intermediate = 128, .hidden = 128},
    {.intermediate = 128, .hidden = 256},
};

constexpr Backend mxfp4(std::string_view name, PolicyDates policy_dates,
                        std::span<const ExpertsClass* const> experts,
                        std::string_view variant = {}) {
  return {.name = name,
          .family = "marlin",
          .format = WeightFormat::mxfp4,
          .policy_dates = policy_dates,
          .experts = experts,
          .batched = variant,
          .rounding = kRounding,
          .scheme = QuantScheme::mxfp4_w4a16,
          .layout = "marlin.mxfp4",
          .numerics = "marlin",
          .conversion = {.bias13 = "permuted rows", .bias2 = "permuted rows"}};
}
// Since August 2026 each half is padded to whole tiles; before, nothing was.
constexpr oracle::ConversionPadding kNvfp4Padding[] = {
    {.hidden_is = 128, .gated = 64, .not_gated = 64},
    {.hidden_is = 64, .gated = 128, .not_gated = 128},
};
constexpr Backend nvfp4(PolicyDates policy_dates, std::span<const ExpertsClass* const> experts) {
  return {.name = "MARLIN",
          .family = "marlin",
          .format = WeightFormat::nvfp4,
          .policy_dates = policy_dates,
          .experts = experts,
          .scheme = QuantScheme::nvfp4_w4a16,
          .layout = "marlin.nvfp4",
          .numerics = "marlin",
          .conversion = {.rescales_global = true,
                         .padding = policy_dates == kSinceAugust2026
                                        ? std::span<const oracle::ConversionPadding>(kNvfp4Padding)
                                        : std::span<const oracle::ConversionPadding>()}};
}

constexpr Backend kBackends[] = {
    mxfp4("MARLIN", kBeforeAugust2026, kBeforeAugust2026List, "BATCHED_MARLIN"),
    mxfp4("MARLIN", kSinceAugust2026, kAugust2026List, "BATCHED_MARLIN"),
    mxfp4("BATCHED_MARLIN", kBeforeAugust2026, kBeforeAugust2026BatchedList),
    mxfp4("BATCHED_MARLIN", kSinceAugust2026, kAugust2026BatchedList),
    nvfp4(kJanuary2026, kJanuary2026List),
    nvfp4(kApril2026, kBeforeAugust2026List),
    nvfp4(kSinceAugust2026, kAugust2026List),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::marlin
