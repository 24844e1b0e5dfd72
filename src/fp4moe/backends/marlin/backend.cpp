// Marlin: 16-bit activations on every CUDA device since Turing.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::marlin {
namespace {

constexpr CapabilityRange kSince[] = {at_least(7, 5)};
constexpr DeviceNeed kDevices[] = {{.kinds = kCuda, .capabilities = kSince}};
// Weights count, the form of activations does not.
constexpr Scheme kSchemes[] = {{WeightFormat::mxfp4, kAnyKey}, {WeightFormat::nvfp4, kAnyKey}};

constexpr Experts kSpringExperts{
    .name = "MarlinExperts",
    .devices = kDevices,
    .not_gated = true,
    .activations = kGenericSeven,
    .schemes = kSchemes,
    .limits = kNoFlashinferExchange,
    .expert_map = true,
};
constexpr Experts kAugustExperts = [] {
  Experts made = kSpringExperts;
  made.activations = kGenericEleven;
  made.limits = {ParallelLimit::no_flashinfer_two_sided};
  made.lora = true;
  return made;
}();
constexpr Experts kJanuaryExperts = [] {
  Experts made = kSpringExperts;
  made.not_gated = false;  // although it lists activations without a gate
  made.activations = {silu, gelu, swigluoai, silu_no_mul, gelu_no_mul, relu2_no_mul};
  made.limits = {ParallelLimit::no_flashinfer_two_sided};
  return made;
}();
constexpr Experts batched(Experts experts) {
  experts.name = "BatchedMarlinExperts";
  experts.format = TokenFormat::batched;
  experts.lora = false;
  return experts;
}
constexpr Experts kSpringBatched = batched(kSpringExperts);
constexpr Experts kAugustBatched = batched(kAugustExperts);

constexpr const Experts* kJanuaryList[] = {&kJanuaryExperts};
constexpr const Experts* kSpringList[] = {&kSpringExperts};
constexpr const Experts* kAugustList[] = {&kAugustExperts};
constexpr const Experts* kSpringBatchedList[] = {&kSpringBatched};
constexpr const Experts* kAugustBatchedList[] = {&kAugustBatched};

constexpr Rounding kRounding[] = {
    {.kinds = kXpu, .intermediate = 128, .hidden = 128},
    {.intermediate = 128, .hidden = 256},
};

constexpr Backend mxfp4(std::string_view name, Eras eras, std::span<const Experts* const> experts,
                        std::string_view variant = {}) {
  return {.name = name,
          .family = "marlin",
          .format = WeightFormat::mxfp4,
          .eras = eras,
          .experts = experts,
          .batched = variant,
          .rounding = kRounding,
          .scheme = QuantScheme::mxfp4_w4a16,
          .layout = "marlin.mxfp4",
          .numerics = "marlin",
          .conversion = {.bias13 = "permuted rows", .bias2 = "permuted rows"}};
}
// Since summer each half is padded to whole tiles; before, nothing was.
constexpr oracle::ConversionPadding kNvfp4Padding[] = {
    {.hidden_is = 128, .gated = 64, .not_gated = 64},
    {.hidden_is = 64, .gated = 128, .not_gated = 128},
};
constexpr Backend nvfp4(Eras eras, std::span<const Experts* const> experts) {
  return {.name = "MARLIN",
          .family = "marlin",
          .format = WeightFormat::nvfp4,
          .eras = eras,
          .experts = experts,
          .scheme = QuantScheme::nvfp4_w4a16,
          .layout = "marlin.nvfp4",
          .numerics = "marlin",
          .conversion = {.rescales_global = true,
                         .padding = eras == kSinceAugust
                                        ? std::span<const oracle::ConversionPadding>(kNvfp4Padding)
                                        : std::span<const oracle::ConversionPadding>()}};
}

constexpr Backend kBackends[] = {
    mxfp4("MARLIN", kSpring, kSpringList, "BATCHED_MARLIN"),
    mxfp4("MARLIN", kSinceAugust, kAugustList, "BATCHED_MARLIN"),
    mxfp4("BATCHED_MARLIN", kSpring, kSpringBatchedList),
    mxfp4("BATCHED_MARLIN", kSinceAugust, kAugustBatchedList),
    nvfp4(kJanuary, kJanuaryList),
    nvfp4(kApril, kSpringList),
    nvfp4(kSinceAugust, kAugustList),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::marlin
