// Humming: one of three kernels, the one whose kind of product is preferred. In August nothing
// preferred the batched one's kind; since release 0.33.0 its variable can.
#include <algorithm>
#include <cctype>
#include <string>

#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::humming {
namespace {

using oracle::Asked;
using oracle::Reason;
using oracle::Rule;

constexpr CapabilityRange kSince[] = {at_least(7, 5)};
constexpr DeviceNeed kDevices[] = {
    {.kinds = kCuda, .capabilities = kSince, .libraries = {Library::humming}}};
constexpr Scheme kSchemes[] = {
    {WeightFormat::mxfp4,
     {ActivationKey::none, ActivationKey::mxfp4, ActivationKey::mxfp8, ActivationKey::fp8_token}},
    {WeightFormat::nvfp4, {ActivationKey::none, ActivationKey::fp8_token, ActivationKey::nvfp4}},
};

constexpr Scheme kMoreSchemes[] = {
    {WeightFormat::mxfp4,
     {ActivationKey::none, ActivationKey::mxfp4, ActivationKey::mxfp8, ActivationKey::fp8_token,
      ActivationKey::fp8_block128}},
    {WeightFormat::nvfp4,
     {ActivationKey::none, ActivationKey::fp8_token, ActivationKey::nvfp4,
      ActivationKey::nvfp4_token}},
};

// The variable's value in small letters; empty: not set.
std::string gemm_kind(const Asked& asked) {
  std::string text = asked.request.environment.text(Variable::humming_gemm_type).value_or("auto");
  std::ranges::transform(text, text.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return text == "grouped" ? "grouped_contiguous" : text;
}
std::string preferred_in_august(const Asked& asked) {
  return gemm_kind(asked) == "grouped_contiguous" ? "grouped_contiguous" : "indexed";
}
std::string preferred(const Asked& asked) {
  const std::string word = gemm_kind(asked);
  if (word != "auto") return word;
  return asked.request.layer.parallel.use_ep ? "grouped_contiguous" : "indexed";
}
std::string own(const Asked& asked) {
  return asked.experts.format == TokenFormat::batched              ? "grouped_masked"
         : asked.experts.name.find("Grouped") != std::string::npos ? "grouped_contiguous"
                                                                   : "indexed";
}
// The rule of one date, by what is preferred then.
template <std::string (*Preferred)(const Asked&)>
constexpr Rule kProduct{
    .reason = Reason::kernel_variant,
    .after = true,
    .holds = [](const Asked& asked) { return Preferred(asked) == own(asked); },
    .reference =
        [](const Asked& asked) {
          return "preferred gemm type " + Preferred(asked) + " != supported gemm type " +
                 own(asked);
        },
    .requirement = [](const Asked& asked) { return "computes products of kind " + own(asked); },
    .fact = [](const Asked& asked) { return "preferred are " + Preferred(asked); }};
constexpr Rule kAugust2026Rules[] = {kProduct<preferred_in_august>};
constexpr Rule kRules[] = {kProduct<preferred>};

template <std::string (*Preferred)(const Asked&)>
std::string announcement(const Asked& asked) {
  return "Using " + Preferred(asked) + " gemm for humming moe";
}

constexpr ExpertsClass august(std::string_view name, TokenFormat format) {
  return {.name = name,
          .format = format,
          .devices = kDevices,
          .not_gated = true,
          .activations = kGenericActivationsSinceAugust2026,
          .schemes = kSchemes,
          .batch_invariant = true,
          .rules = kAugust2026Rules,
          .reads = {Variable::humming_gemm_type},
          .announces = announcement<preferred_in_august>,
          .takes_unquantized = true,
          .expert_map = true};
}
constexpr ExpertsClass since_033(ExpertsClass experts) {
  experts.schemes = kMoreSchemes;
  experts.rules = kRules;
  experts.reads = {Variable::humming_gemm_type, Variable::humming_input_quant_config};
  experts.announces = announcement<preferred>;
  return experts;
}
constexpr ExpertsClass kAugust2026Batched =
    august("BatchedHummingGroupedExperts", TokenFormat::batched);
constexpr ExpertsClass kAugust2026Grouped = august("HummingGroupedExperts", TokenFormat::standard);
constexpr ExpertsClass kAugust2026Indexed = august("HummingIndexedExperts", TokenFormat::standard);
constexpr ExpertsClass kBatched = since_033(kAugust2026Batched);
constexpr ExpertsClass kGrouped = since_033(kAugust2026Grouped);
constexpr ExpertsClass kIndexed = since_033(kAugust2026Indexed);
constexpr const ExpertsClass* kAugust2026List[] = {&kAugust2026Batched, &kAugust2026Grouped,
                                                   &kAugust2026Indexed};
constexpr const ExpertsClass* kList[] = {&kBatched, &kGrouped, &kIndexed};

constexpr Backend row(WeightFormat format, PolicyDates policy_dates,
                      std::span<const Rounding> rounding, std::string_view layout) {
  const bool is_august = policy_dates == kAugust2026;
  return {.name = "HUMMING",
          .family = "humming",
          .format = format,
          .policy_dates = policy_dates,
          .experts = is_august ? kAugust2026List : kList,
          .rounding = rounding,
          .scheme = QuantScheme::from_layer,
          .layout = layout,
          .numerics = "unfused",
          .takes_override = !is_august};
}
constexpr Backend kBackends[] = {
    row(WeightFormat::mxfp4, kAugust2026, kOtherRounding, "humming.mxfp4"),
    row(WeightFormat::nvfp4, kAugust2026, {}, "humming.nvfp4"),
    row(WeightFormat::mxfp4, kVllm033, kOtherRounding, "humming.mxfp4"),
    row(WeightFormat::nvfp4, kVllm033, {}, "humming.nvfp4"),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::humming
