// How experts are chosen for a token, as rows of a table. With l a token's logits, b a correction
// bias and s the routed scaling factor:
//
//   softmax p = exp(l) / sum exp(l)     sigmoid q = 1 / (1 + exp(-l))     c = sqrt(log(1 + exp(l)))
//
// A row says which of them is compared (its key, plus b where there is one), which of them becomes
// the weight of a chosen expert, and what is done to the weights of a token. The k largest keys
// win, equal ones in the order of their experts, and are returned in that order.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/kernels/enums.hpp"

namespace fp4moe::moe::routing {

// clang-format off
enum class Method : std::uint8_t {
  softmax_topk, renormalize_naive, renormalize, topk, topk_sigmoid, sigmoid, sigmoid_renorm, llama4,
  minimax2, deepseek_v3, softmax_bias, grouped_softmax, deepseek_v4, simulated, custom, unspecified,
};
// clang-format on

using kernels::Normalization;
using kernels::Score;

struct MethodRow {
  Method method;
  std::string_view name;  // as configurations and golden files spell it
  Score key, weight;
  Normalization normalization;
  bool takes_bias, takes_groups, takes_scale;
  std::string_view note;
};

// clang-format off
inline constexpr std::array<MethodRow, 16> kMethods{{
    {Method::softmax_topk,      "Default",          Score::softmax,       Score::softmax,       Normalization::none,         false, false, false, ""},
    {Method::renormalize_naive, "RenormalizeNaive", Score::softmax,       Score::softmax,       Normalization::over_sum,     false, false, false, ""},
    {Method::renormalize,       "Renormalize",      Score::logit,         Score::logit,         Normalization::softmax,      false, false, false, ""},
    {Method::topk,              "TopK",             Score::logit,         Score::logit,         Normalization::none,         false, false, false, ""},
    {Method::topk_sigmoid,      "TopKSigmoid",      Score::logit,         Score::sigmoid,       Normalization::none,         false, false, false, ""},
    {Method::sigmoid,           "Sigmoid",          Score::sigmoid,       Score::sigmoid,       Normalization::none,         false, false, false, ""},
    {Method::sigmoid_renorm,    "SigmoidRenorm",    Score::sigmoid,       Score::sigmoid,       Normalization::over_sum,     false, false, false, ""},
    {Method::llama4,            "Llama4",           Score::logit,         Score::sigmoid,       Normalization::none,         false, false, false, "one expert a token"},
    {Method::minimax2,          "MiniMax2",         Score::sigmoid,       Score::sigmoid,       Normalization::over_sum_eps, true,  false, true,  ""},
    {Method::deepseek_v3,       "DeepSeekV3",       Score::sigmoid,       Score::sigmoid,       Normalization::over_sum_eps, true,  true,  true,  ""},
    {Method::softmax_bias,      "SoftmaxBias",      Score::softmax,       Score::softmax,       Normalization::optional,     true,  true,  true,  ""},
    {Method::grouped_softmax,   "GroupedSoftmax",   Score::softmax,       Score::softmax,       Normalization::optional,     false, true,  true,  "DeepSeek-V2"},
    {Method::deepseek_v4,       "DeepseekV4",       Score::sqrt_softplus, Score::sqrt_softplus, Normalization::over_sum,     true,  false, true,  "a table of token ids may choose instead"},
    {Method::simulated,         "Simulated",        Score::none,          Score::none,          Normalization::none,         false, false, false, "seeded noise; logits are not read"},
    {Method::custom,            "Custom",           Score::none,          Score::none,          Normalization::none,         false, false, false, "refused: a model's own function"},
    {Method::unspecified,       "Unspecified",      Score::none,          Score::none,          Normalization::none,         false, false, false, "refused: no method of these"},
}};
// clang-format on

constexpr const MethodRow& row(Method method) { return kMethods[static_cast<std::size_t>(method)]; }
constexpr std::string_view name(Method method) { return row(method).name; }
std::optional<Method> method_from_name(std::string_view name);

// The table of docs/routing.md.
std::string methods_markdown();

// The options of a router in a model's configuration.
enum class Scoring : std::uint8_t { softmax, sigmoid, sqrtsoftplus };
std::optional<Scoring> scoring_from_name(std::string_view name);

struct RouterConfig {
  Scoring scoring = Scoring::softmax;
  bool renormalize = true;
  bool has_bias = false;
  std::uint64_t top_k = 1;
  std::uint64_t groups = 0, chosen_groups = 0;
  std::optional<double> scale{};
  bool has_custom_function = false;
  bool is_llama4_function = false;  // the custom function is Llama 4's
};

// The states of the reference that differ in what they advertise.
enum class ConfigDate : std::uint8_t { before_august_2026, august_2026, vllm_033 };

// The method a configuration advertises to kernels that route themselves.
Method advertised_method(const RouterConfig& config, ConfigDate policy_date);

// The reference's router that serves a layer.
enum class RouterKind : std::uint8_t {
  simulated,
  zero_experts,
  grouped_topk,
  custom,
  biased_topk,
  shared_topk,
  plain_topk,
};
std::string_view name(RouterKind kind);

struct RouterSetting {
  RouterConfig config{};
  bool is_simulated = false;  // VLLM_MOE_ROUTING_SIMULATION_STRATEGY is set
  bool has_zero_experts = false;
  bool uses_grouped_topk = false;
  bool has_hash_table = false;
  bool fuses_shared_experts = false;  // ROCm
  bool can_scale_elsewhere = true;    // the scaling factor may move out of the router
  ConfigDate policy_date = ConfigDate::august_2026;
};
RouterKind choose_router(const RouterSetting& setting);

}  // namespace fp4moe::moe::routing
