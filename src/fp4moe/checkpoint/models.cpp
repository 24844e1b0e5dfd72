#include "fp4moe/checkpoint/models.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::checkpoint {
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

// Names on hubs of models that have the shape of a row; the names of the table need no row here.
struct HubName {
  std::string_view name, model;
};
constexpr HubName kHubNames[] = {
    {"gpt-oss-safeguard-20b", "gpt-oss-20b"},
    {"gpt-oss-safeguard-120b", "gpt-oss-120b"},
    {"Qwen3-Coder-30B-A3B", "qwen3-30b-a3b"},
    {"DeepSeek-V3.1", "deepseek-v3"},
    {"DeepSeek-R1", "deepseek-v3"},
    {"NVIDIA-Nemotron-3-Nano-30B-A3B", "nemotron-3-nano"},
    {"Nemotron-3-Nano-30B-A3B", "nemotron-3-nano"},
    {"Llama-4-Scout-17B-16E", "llama-4-scout"},
    {"Llama-4-Maverick-17B-128E", "llama-4-maverick"},
    {"GLM-4.6", "glm-4.5"},
};

// Words behind a model's name. Those of a number format tell it; `other` ones are not FP4.
struct NameWord {
  std::string_view word;
  std::optional<WeightFormat> format{};
  bool other = false;
};
constexpr NameWord kNameWords[] = {
    {.word = "instruct"},
    {.word = "thinking"},
    {.word = "base"},
    {.word = "chat"},
    {.word = "terminus"},
    {.word = "hf"},
    {.word = "mxfp4", .format = kMxfp4},
    {.word = "nvfp4", .format = kNvfp4},
    {.word = "fp4", .format = kNvfp4},
    {.word = "bf16", .other = true},
    {.word = "fp8", .other = true},
    {.word = "int4", .other = true},
    {.word = "int8", .other = true},
    {.word = "awq", .other = true},
    {.word = "gptq", .other = true},
};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Without case and punctuation, which users spell differently.
std::string plain_name(std::string_view name) {
  std::string result;
  for (const char c : name)
    if (c != '-' && c != '_' && c != '.' && c != ' ') result += lower(c);
  return result;
}

// Families that have no row above, by model_type and by GGUF's architecture: how their routers choose
// ("Default" keeps the weights as they are unless norm_topk_prob says otherwise), and what their
// experts compute where the configuration does not say it.
struct FamilyRow {
  std::string_view model_types;
  std::string_view routing;
  std::string_view activation = "silu";
};
constexpr FamilyRow kFamilies[] = {
    {"kimi_linear dots1 dots3_note glm4_moe_lite glm4v_moe glm5_next glm_moe_dsa deepseek_v32 axk1 "
     "solar_open exaone_moe mimo_v2_flash bailing_hybrid bailing_moe_v2 hy_v3 hy_v4 afmoe lfm2_moe "
     "kimi-linear dots3note glm-dsa deepseek32 exaone-moe mimo2 bailingmoe2 hy-v3 "
     "lfm2moe",
     "DeepSeekV3"},
    {"qwen2_moe qwen3_next olmoe flex_olmo jamba mellum qwen2moe llada-moe deepseek", "Default"},
    {"qwen3_vl_moe qwen3_omni_moe qwen3_5_moe minimax mistral4 hunyuan_v1_moe qwen3next qwen35moe "
     "qwen3vlmoe hunyuan-moe dbrx rnd1",
     "RenormalizeNaive"},
    {"granitemoe granitemoeshared granitemoehybrid granitemoe_swa aria granitehybrid",
     "Renormalize"},
    {"ernie4_5_moe ernie4_5_vl_moe ernie4_5-moe", "SoftmaxBias"},
    {"deepseek_v2", "GroupedSoftmax"},
    {"minimax_m3 minimax_m3_vl", "DeepSeekV3", {}},  // the configuration names the activation
    {"flint", "SigmoidRenorm"},
    // A method of their own, or one that each file names.
    {"phimoe cohere2_moe cohere2moe arctic", {}},
    {"grok", {}, "gelu_tanh"},
};

// The text part of a model of several kinds of input has a type of its own: "llama4_text".
std::string_view without_text(std::string_view model_type) {
  constexpr std::string_view kEnding = "_text";
  if (model_type.ends_with(kEnding)) model_type.remove_suffix(kEnding.size());
  return model_type;
}

const FamilyRow* find_other_family(std::string_view model_type) {
  const std::string_view family = without_text(model_type);
  const auto* found = std::ranges::find_if(kFamilies, [&](const FamilyRow& row) {
    const std::vector<std::string_view> types = split(row.model_types, ' ');
    return std::ranges::find(types, family) != types.end();
  });
  return found == std::end(kFamilies) ? nullptr : found;
}

const ModelRow* first_where(auto&& matches) {
  const auto* found = std::ranges::find_if(kModels, matches);
  return found == std::end(kModels) ? nullptr : found;
}

const ModelRow* find_called(std::string_view name) {
  const std::string plain = plain_name(name);
  if (const ModelRow* row =
          first_where([&](const ModelRow& r) { return plain_name(r.name) == plain; }))
    return row;
  for (const HubName& hub : kHubNames)
    if (plain_name(hub.name) == plain) return find_model(hub.model);
  return nullptr;
}

// A release ("2507", "v0.1") says nothing of the shape either.
bool is_release(std::string_view word) {
  if (word.size() > 1 && lower(word[0]) == 'v') word.remove_prefix(1);
  return !word.empty() && word.find_first_not_of("0123456789.") == word.npos;
}

// `told`: the word that names a number format.
bool only_known_words(std::string_view words, std::optional<NameWord>& told) {
  for (std::size_t at = 0; at <= words.size();) {
    const std::size_t end = std::min(words.find_first_of("-_", at), words.size());
    const std::string word = plain_name(words.substr(at, end - at));
    const auto* known = std::ranges::find(kNameWords, word, &NameWord::word);
    if (known == std::end(kNameWords) && !is_release(words.substr(at, end - at))) return false;
    if (known != std::end(kNameWords) && (known->format || known->other)) told = *known;
    at = end + 1;
  }
  return true;
}

Error not_fp4(std::string_view name, const ModelRow& row, const NameWord& told) {
  return error(ErrorCode::no_backend, "models.not_fp4", "that is no FP4 version of the model")
      .expects("mxfp4 or nvfp4 weights", fmt::format("'{}': {}", printable(name), told.word))
      .try_this(fmt::format("--model {} answers for its {} version", row.name,
                            checkpoint::name(row.format)));
}

// Names that begin like `own`, or hold it; else the one that is spelled most like it.
std::vector<std::string_view> perhaps_meant(std::string_view own) {
  const std::string plain = plain_name(own);
  std::vector<std::string_view> names, meant;
  for (const ModelRow& row : kModels) names.push_back(row.name);
  if (plain.size() > 1)
    for (const std::string_view name : names)
      if (plain_name(name).find(plain) != std::string::npos) meant.push_back(name);
  if (!meant.empty()) return meant;
  std::vector<std::string> plains;
  for (const std::string_view name : names) plains.push_back(plain_name(name));
  const std::vector<std::string_view> views(plains.begin(), plains.end());
  const std::string_view near = nearest(plain, views);
  for (std::size_t i = 0; i < views.size(); ++i)
    if (!near.empty() && views[i].data() == near.data()) meant.push_back(names[i]);
  return meant;
}

// Remedy for commands that also take a model's files.
constexpr std::string_view kOrPath = "give its checkpoint or config.json instead";

Error unknown_model(std::string_view name, std::string_view own) {
  std::vector<std::string_view> names;
  for (const ModelRow& row : kModels) names.push_back(row.name);
  const std::vector<std::string_view> meant = perhaps_meant(own);
  return usage("models.unknown", "there is no such model in the table")
      .expects(fmt::format("one of {}", fmt::join(names, ", ")),
               fmt::format("'{}'", printable(name)))
      .try_this(meant.empty() ? std::string(kOrPath)
                              : fmt::format("did you mean {}?", fmt::join(meant, " or ")));
}

}  // namespace

std::span<const ModelRow> models() { return kModels; }

const ModelRow* find_model(std::string_view name) {
  return first_where([&](const ModelRow& row) { return row.name == name; });
}

Result<NamedModel> require_named(std::string_view name) {
  const std::string_view own = name.substr(name.rfind('/') + 1);  // without the organization
  if (const ModelRow* row = find_called(own)) return NamedModel{row, std::nullopt};
  // A known name, then words that say nothing of the shape: the longest name counts.
  for (std::size_t end = own.find_last_of("-_"); end != own.npos && end > 0;
       end = own.find_last_of("-_", end - 1)) {
    const ModelRow* row = find_called(own.substr(0, end));
    if (row == nullptr) continue;
    std::optional<NameWord> told;
    if (!only_known_words(own.substr(end + 1), told)) break;
    if (told && !told->format) return not_fp4(name, *row, *told);
    return NamedModel{row, told ? told->format : std::nullopt};
  }
  return unknown_model(name, own);
}

Result<const ModelRow*> require_model(std::string_view name) {
  const Result<NamedModel> found = require_named(name);
  if (found) return found->row;
  Error why = found.why();
  if (why.remedy == kOrPath) why.remedy = "fp4moe list models shows what each is";
  return why;
}

const ModelRow* find_family(std::string_view model_type) {
  const std::string_view family = without_text(model_type);
  return first_where([&](const ModelRow& row) { return row.model_type == family; });
}

std::string_view model_type_of(std::string_view said, Dialect dialect) {
  return said.empty() && dialect == Dialect::openai ? "gpt_oss" : said;
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
  const FamilyRow* row = find_other_family(model_type);
  return row == nullptr ? std::string_view() : row->routing;
}

std::string_view family_activation(std::string_view model_type) {
  if (const ModelRow* row = find_family(model_type)) return row->activation;
  if (const ModelRow* row = find_architecture(model_type)) return row->activation;
  const FamilyRow* row = find_other_family(model_type);
  return row == nullptr ? std::string_view() : row->activation;
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

}  // namespace fp4moe::checkpoint
