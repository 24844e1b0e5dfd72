#include "fp4moe/weights/models.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::weights {
namespace {

constexpr auto kMxfp4 = WeightFormat::mxfp4;
constexpr auto kNvfp4 = WeightFormat::nvfp4;
constexpr auto kInter = RowOrder::interleaved;
constexpr auto kHalves = RowOrder::halves;
constexpr auto kSingle = RowOrder::single;

constexpr std::string_view kMlp = "model.layers.{}.mlp.";
constexpr std::string_view kSparse = "model.layers.{}.block_sparse_moe.";
constexpr std::string_view kNemotronPattern =
    "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";

// clang-format off
constexpr ModelRow kModels[] = {
  // name                 model_type       GGUF              layers first every pattern      experts k  hidden width  activation   order    bias   format prefix                                        router    experts key             width key                 projections  routing
  {"gpt-oss-20b",        "gpt_oss",       "gpt-oss",         24, 0, 1, {},                   32,  4, 2880,  2880, "swigluoai", kInter,  true,  kMxfp4, kMlp,                                         "router", "num_local_experts",   "intermediate_size",       kProjNames, "Renormalize"},
  {"gpt-oss-120b",       "gpt_oss",       "gpt-oss",         36, 0, 1, {},                  128,  4, 2880,  2880, "swigluoai", kInter,  true,  kMxfp4, kMlp,                                         "router", "num_local_experts",   "intermediate_size",       kProjNames, "Renormalize"},
  {"qwen3-30b-a3b",      "qwen3_moe",     "qwen3moe",        48, 0, 1, {},                  128,  8, 2048,   768, "silu",      kHalves, false, kNvfp4, kMlp,                                         "gate",   "num_experts",         "moe_intermediate_size",   kProjNames, "Renormalize"},
  {"qwen3-235b-a22b",    "qwen3_moe",     "qwen3moe",        94, 0, 1, {},                  128,  8, 4096,  1536, "silu",      kHalves, false, kNvfp4, kMlp,                                         "gate",   "num_experts",         "moe_intermediate_size",   kProjNames, "Renormalize"},
  {"deepseek-v3",        "deepseek_v3",   "deepseek2",       61, 3, 1, {},                  256,  8, 7168,  2048, "silu",      kHalves, false, kNvfp4, kMlp,                                         "gate",   "n_routed_experts",    "moe_intermediate_size",   kProjNames, "DeepSeekV3"},
  {"deepseek-v4-flash",  "deepseek_v4",   {},                43, 0, 1, {},                  256,  6, 4096,  2048, "silu",      kHalves, false, kMxfp4, "layers.{}.ffn.",                             "gate",   "n_routed_experts",    "moe_intermediate_size",   kNumberedNames, "DeepseekV4"},
  {"kimi-k2",            "kimi_k2",       "deepseek2",       61, 1, 1, {},                  384,  8, 7168,  2048, "silu",      kHalves, false, kNvfp4, kMlp,                                         "gate",   "n_routed_experts",    "moe_intermediate_size",   kProjNames, "DeepSeekV3"},
  {"nemotron-3-nano",    "nemotron_h",    "nemotron_h_moe",  52, 1, 0, kNemotronPattern,    128,  6, 2688,  1856, "relu2",     kSingle, false, kNvfp4, "backbone.layers.{}.mixer.",                  "gate",   "n_routed_experts",    "moe_intermediate_size",   kProjNames, "DeepSeekV3"},
  {"llama-4-scout",      "llama4",        "llama4",          48, 0, 1, {},                   16,  1, 5120,  8192, "silu",      kHalves, false, kNvfp4, "language_model.model.layers.{}.feed_forward.", "router", "num_local_experts", "intermediate_size",       kProjNames, "Llama4"},
  {"llama-4-maverick",   "llama4",        "llama4",          48, 1, 2, {},                  128,  1, 5120,  8192, "silu",      kHalves, false, kNvfp4, "language_model.model.layers.{}.feed_forward.", "router", "num_local_experts", "intermediate_size",       kProjNames, "Llama4"},
  {"mixtral-8x7b",       "mixtral",       "llama",           32, 0, 1, {},                    8,  2, 4096, 14336, "silu",      kHalves, false, kMxfp4, kSparse,                                      "gate",   "num_local_experts",   "intermediate_size",       kNumberedNames, "Renormalize"},
  {"glm-4.5",            "glm4_moe",      "glm4moe",         92, 3, 1, {},                  160,  8, 5120,  1536, "silu",      kHalves, false, kNvfp4, kMlp,                                         "gate",   "n_routed_experts",    "moe_intermediate_size",   kProjNames, "DeepSeekV3"},
  {"glm-4.5-air",        "glm4_moe",      "glm4moe",         46, 1, 1, {},                  128,  8, 4096,  1408, "silu",      kHalves, false, kNvfp4, kMlp,                                         "gate",   "n_routed_experts",    "moe_intermediate_size",   kProjNames, "DeepSeekV3"},
  {"minimax-m2",         "minimax_m2",    "minimax-m2",      62, 0, 1, {},                  256,  8, 3072,  1536, "silu",      kHalves, false, kNvfp4, kSparse,                                      "gate",   "num_local_experts",   "intermediate_size",       kNumberedNames, "MiniMax2"},
};
// clang-format on

// Routers of families that have no row above. "Default" keeps the weights as they are unless
// norm_topk_prob says otherwise.
struct RouterRow {
  std::string_view model_types;
  std::string_view routing;
};
constexpr RouterRow kRouters[] = {
    {"kimi_linear dots1 glm4_moe_lite glm4v_moe glm_moe_dsa deepseek_v32 solar_open exaone_moe "
     "mimo_v2_flash bailing_hybrid hy_v4",
     "DeepSeekV3"},
    {"qwen2_moe qwen3_next olmoe flex_olmo", "Default"},
    {"qwen3_vl_moe qwen3_5_moe minimax", "RenormalizeNaive"},
    {"granitemoe granitemoeshared granitemoehybrid granitemoe_swa", "Renormalize"},
    {"ernie4_5_moe ernie4_5_vl_moe", "SoftmaxBias"},
    {"deepseek_v2", "GroupedSoftmax"},
};

// The text part of a model of several kinds of input has a type of its own: "llama4_text".
std::string_view without_text(std::string_view model_type) {
  constexpr std::string_view kEnding = "_text";
  if (model_type.ends_with(kEnding)) model_type.remove_suffix(kEnding.size());
  return model_type;
}

const ModelRow* first_where(auto&& matches) {
  const auto* found = std::ranges::find_if(kModels, matches);
  return found == std::end(kModels) ? nullptr : found;
}

}  // namespace

std::span<const ModelRow> models() { return kModels; }

const ModelRow* find_model(std::string_view name) {
  return first_where([&](const ModelRow& row) { return row.name == name; });
}

Result<const ModelRow*> require_model(std::string_view name) {
  if (const ModelRow* row = find_model(name)) return row;
  std::vector<std::string_view> names;
  for (const ModelRow& row : kModels) names.push_back(row.name);
  const std::string_view near = nearest(name, names);
  return usage("models.unknown", "there is no such model in the table")
      .expects(fmt::format("one of {}", fmt::join(names, ", ")),
               fmt::format("'{}'", printable(name)))
      .try_this(near.empty() ? "" : fmt::format("did you mean {}?", near));
}

const ModelRow* find_family(std::string_view model_type) {
  const std::string_view family = without_text(model_type);
  return first_where([&](const ModelRow& row) { return row.model_type == family; });
}

std::optional<RowOrder> joined_order(std::string_view model_type) {
  if (family_routing(model_type).empty()) return std::nullopt;
  const ModelRow* row = find_family(model_type);
  return row != nullptr && row->order == RowOrder::interleaved ? RowOrder::interleaved
                                                               : RowOrder::halves;
}

std::string_view family_routing(std::string_view model_type) {
  if (const ModelRow* row = find_family(model_type)) return row->routing;
  if (const ModelRow* row = find_architecture(model_type)) return row->routing;
  const std::string_view family = without_text(model_type);
  for (const RouterRow& row : kRouters) {
    const std::vector<std::string_view> types = split(row.model_types, ' ');
    if (std::ranges::find(types, family) != types.end()) return row.routing;
  }
  return {};
}

const ModelRow* find_architecture(std::string_view architecture) {
  if (architecture.empty()) return nullptr;
  return first_where([&](const ModelRow& row) { return row.architecture == architecture; });
}

std::uint64_t moe_layer_count(const ModelRow& model) {
  if (model.moe_every != 0)
    return (model.layers - model.first_moe + model.moe_every - 1) / model.moe_every;
  return static_cast<std::uint64_t>(std::ranges::count(model.block_pattern, 'E'));
}

std::uint64_t moe_layer_index(const ModelRow& model, std::uint64_t which) {
  if (model.moe_every != 0) return model.first_moe + which * model.moe_every;
  std::uint64_t index = 0;
  for (; index < model.block_pattern.size(); ++index)
    if (model.block_pattern[index] == 'E' && which-- == 0) break;
  return index;
}

std::string layer_prefix(std::string_view prefix, std::uint64_t index) {
  std::string whole(prefix);
  const std::size_t at = whole.find("{}");
  if (at != std::string::npos) whole.replace(at, 2, std::to_string(index));
  return whole;
}

}  // namespace fp4moe::weights
