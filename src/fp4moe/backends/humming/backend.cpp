// Humming: one of three kernels, the one whose kind of product is preferred. Nothing prefers the
// batched one's kind, so the reference never takes it.
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

std::string preferred(const Asked& asked) {
  std::string text = asked.request.environment.text(Variable::humming_gemm_type).value_or("");
  std::ranges::transform(text, text.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return text == "grouped" || text == "grouped_contiguous" ? "grouped_contiguous" : "indexed";
}
std::string own(const Asked& asked) {
  return asked.experts.format == TokenFormat::batched              ? "grouped_masked"
         : asked.experts.name.find("Grouped") != std::string::npos ? "grouped_contiguous"
                                                                   : "indexed";
}
constexpr Rule kRules[] = {
    {.reason = Reason::kernel_variant,
     .after = true,
     .holds = [](const Asked& asked) { return preferred(asked) == own(asked); },
     .reference =
         [](const Asked& asked) {
           return "preferred gemm type " + preferred(asked) + " != supported gemm type " +
                  own(asked);
         },
     .requirement = [](const Asked& asked) { return "computes products of kind " + own(asked); },
     .fact = [](const Asked& asked) { return "preferred are " + preferred(asked); }},
};

constexpr Experts experts(std::string_view name, TokenFormat format) {
  return {
      .name = name,
      .format = format,
      .devices = kDevices,
      .not_gated = true,
      .activations = kGenericEleven,
      .schemes = kSchemes,
      .batch_invariant = true,
      .rules = kRules,
      .reads = {Variable::humming_gemm_type},
      .announces =
          [](const Asked& asked) { return "Using " + preferred(asked) + " gemm for humming moe"; },
      .takes_unquantised = true,
      .expert_map = true};
}
constexpr Experts kBatched = experts("BatchedHummingGroupedExperts", TokenFormat::batched);
constexpr Experts kGrouped = experts("HummingGroupedExperts", TokenFormat::standard);
constexpr Experts kIndexed = experts("HummingIndexedExperts", TokenFormat::standard);
constexpr const Experts* kList[] = {&kBatched, &kGrouped, &kIndexed};

constexpr Backend row(WeightFormat format, std::span<const Rounding> rounding,
                      std::string_view layout) {
  return {.name = "HUMMING",
          .family = "humming",
          .format = format,
          .eras = kAugust,
          .experts = kList,
          .rounding = rounding,
          .scheme = QuantScheme::from_layer,
          .layout = layout,
          .numerics = "unfused"};
}
constexpr Backend kBackends[] = {
    row(WeightFormat::mxfp4, kOtherRounding, "humming.mxfp4"),
    row(WeightFormat::nvfp4, {}, "humming.nvfp4"),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::humming
