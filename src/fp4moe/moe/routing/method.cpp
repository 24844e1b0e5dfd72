#include "fp4moe/moe/routing/method.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace fp4moe::moe::routing {
namespace {

constexpr std::array<std::string_view, 5> kScoreWords{"logit", "softmax", "sigmoid",
                                                      "sqrt(softplus)", "-"};
constexpr std::array<std::string_view, 5> kNormalizationWords{
    "-", "over their sum", "over their sum + 1e-20", "softmax of the chosen",
    "over their sum, if asked for"};
constexpr std::array<std::string_view, 3> kScoringNames{"softmax", "sigmoid", "sqrtsoftplus"};
constexpr std::array<std::string_view, 7> kRouterNames{
    "simulated",   "zero experts",          "grouped top-k", "custom function",
    "top-k, bias", "top-k, shared experts", "top-k"};

std::string_view yes(bool value) { return value ? "yes" : ""; }

// Grouping without effect: dropping it does not change the choice.
bool is_trivial(const RouterSetting& setting) {
  if (setting.config.groups > 1 || setting.config.chosen_groups > 1) return false;
  const bool scales = setting.config.scale.value_or(1) != 1;
  if (scales && !setting.can_scale_elsewhere) return false;
  RouterConfig plain = setting.config;
  plain.groups = plain.chosen_groups = 0;
  return advertised_method(plain, setting.policy_date) ==
         advertised_method(setting.config, setting.policy_date);
}

Method advertised_since_august_2026(const RouterConfig& config, ConfigDate policy_date) {
  if (config.scoring == Scoring::sqrtsoftplus)
    return config.renormalize ? Method::deepseek_v4 : Method::unspecified;
  const bool is_sigmoid = config.scoring == Scoring::sigmoid;
  if (config.has_bias) {
    if (!is_sigmoid || !config.renormalize) return Method::unspecified;
    if (config.groups > 0) return Method::deepseek_v3;
    // Since release 0.33.0 whatever the factor is.
    const bool any_scale = policy_date == ConfigDate::vllm_033 || config.scale.value_or(1) == 1;
    return any_scale ? Method::minimax2 : Method::unspecified;
  }
  if (is_sigmoid) return config.renormalize ? Method::sigmoid_renorm : Method::sigmoid;
  return config.renormalize ? Method::renormalize_naive : Method::softmax_topk;
}

Method advertised_before_august_2026(const RouterConfig& config) {
  const bool is_sigmoid = config.scoring == Scoring::sigmoid;
  if (config.has_bias)
    return config.groups > 0 && is_sigmoid ? Method::deepseek_v3 : Method::unspecified;
  if (is_sigmoid) return config.top_k == 1 ? Method::llama4 : Method::unspecified;
  if (config.scoring != Scoring::softmax) return Method::unspecified;
  return config.renormalize ? Method::renormalize : Method::softmax_topk;
}

}  // namespace

std::optional<Method> method_from_name(std::string_view name) {
  const auto* found = std::ranges::find(kMethods, name, &MethodRow::name);
  if (found == kMethods.end()) return std::nullopt;
  return found->method;
}

std::optional<Scoring> scoring_from_name(std::string_view name) {
  const auto* found = std::ranges::find(kScoringNames, name);
  if (found == kScoringNames.end()) return std::nullopt;
  return static_cast<Scoring>(found - kScoringNames.begin());
}

std::string_view name(RouterKind kind) { return kRouterNames[static_cast<std::size_t>(kind)]; }

std::string methods_markdown() {
  std::string page =
      "| method | compared | weight | normalized | bias | groups | scale | |\n"
      "|---|---|---|---|---|---|---|---|\n";
  for (const MethodRow& one : kMethods)
    page += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", one.name,
                        kScoreWords[static_cast<std::size_t>(one.key)],
                        kScoreWords[static_cast<std::size_t>(one.weight)],
                        kNormalizationWords[static_cast<std::size_t>(one.normalization)],
                        yes(one.takes_bias), yes(one.takes_groups), yes(one.takes_scale), one.note);
  return page;
}

Method advertised_method(const RouterConfig& config, ConfigDate policy_date) {
  if (config.has_custom_function)
    return config.is_llama4_function ? Method::llama4 : Method::custom;
  return policy_date == ConfigDate::before_august_2026
             ? advertised_before_august_2026(config)
             : advertised_since_august_2026(config, policy_date);
}

RouterKind choose_router(const RouterSetting& setting) {
  if (setting.is_simulated) return RouterKind::simulated;
  if (setting.has_zero_experts) return RouterKind::zero_experts;
  if (setting.uses_grouped_topk && !is_trivial(setting)) return RouterKind::grouped_topk;
  if (setting.config.has_custom_function) return RouterKind::custom;
  if (setting.config.has_bias || setting.has_hash_table) return RouterKind::biased_topk;
  if (setting.fuses_shared_experts) return RouterKind::shared_topk;
  return RouterKind::plain_topk;
}

}  // namespace fp4moe::moe::routing
