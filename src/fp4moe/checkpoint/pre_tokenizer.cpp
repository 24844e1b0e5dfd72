#include "fp4moe/checkpoint/pre_tokenizer.hpp"

#include <vector>

namespace fp4moe::checkpoint {
namespace {

constexpr std::string_view kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4oSplit =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekkenSplit =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Three expressions, one after the other.
constexpr std::string_view kDeepSeekSplit =
    "\\p{N}{1,3}\n"
    "[一-龥぀-ゟ゠-ヿ]+\n"
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// `family`: the model type for which the converter writes this name; the others are for any model.
struct PreRow {
  std::string_view name, family, split;
  bool ignores_merges;
};
constexpr PreRow kPreTokenizers[] = {
    {"gpt-4o", "gpt_oss", kGpt4oSplit, false},
    {"qwen2", "qwen3_moe", kQwen2Split, false},
    {"glm4", "glm4_moe", kLlama3Split, false},
    {"minimax-m2", "minimax_m2", kGpt4oSplit, false},
    {"deepseek-v3", "deepseek_v3", kDeepSeekSplit, false},
    {"llama4", "llama4", kGpt4oSplit, false},
    {"llama-bpe", {}, kLlama3Split, true},
    {"tekken", {}, kTekkenSplit, true},
    {"gpt-2", {}, kGpt2Split, false},
};

// The split's expressions, one to a line; empty where something else is done to the text.
std::string split_of(const Json& pre_tokenizer) {
  const auto text = [](const Json& object, const char* key) -> std::string_view {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return found != object.end() && found->is_string() ? std::string_view(found->string())
                                                       : std::string_view();
  };
  const auto is_set = [](const Json& object, const char* key, bool otherwise) {
    const auto found = object.find(key);
    return found != object.end() && found->is_boolean() ? found->get<bool>() : otherwise;
  };
  std::vector<const Json*> steps;
  if (text(pre_tokenizer, "type") == "Sequence") {
    const auto found = pre_tokenizer.find("pretokenizers");
    if (found == pre_tokenizer.end() || !found->is_array()) return {};
    for (const Json& step : found->elements()) steps.push_back(&step);
  } else {
    steps.push_back(&pre_tokenizer);
  }
  std::string all;
  const auto add = [&all](std::string_view expression) {
    all += (all.empty() ? "" : "\n") + std::string(expression);
  };
  for (const Json* step : steps) {
    const std::string_view type = text(*step, "type");
    if (type == "ByteLevel") {
      if (step != steps.back() || is_set(*step, "add_prefix_space", true)) return {};
      if (is_set(*step, "use_regex", true)) add(kGpt2Split);
      return all;
    }
    const auto pattern = type == "Split" ? step->find("pattern") : step->end();
    if (pattern == step->end()) return {};
    const std::string_view expression = text(*pattern, "Regex");
    const std::string_view behavior = text(*step, "behavior");
    const bool is_inverted = is_set(*step, "invert", false);
    const bool keeps_all = behavior == (is_inverted ? "Removed" : "Isolated");
    if (expression.empty() || !keeps_all) return {};
    add(expression);
  }
  return {};  // not byte-level
}

}  // namespace

PreTokenizer pre_tokenizer_of(const Json& pre_tokenizer, bool ignores_merges,
                              std::string_view model_type) {
  PreTokenizer result{.name = "default"};
  const std::string split = split_of(pre_tokenizer);
  const PreRow* chosen = nullptr;
  for (const PreRow& row : kPreTokenizers) {
    const bool is_family = !row.family.empty() && row.family == model_type;
    if (is_family) result.usual = row.name;
    if (split.empty() || row.split != split) continue;
    const auto rank = [&](const PreRow& of) {
      return of.family == model_type && !of.family.empty() ? 2
             : of.ignores_merges == ignores_merges         ? 1
                                                           : 0;
    };
    if (chosen == nullptr || rank(row) > rank(*chosen)) chosen = &row;
  }
  if (chosen == nullptr) return result;
  result.name = chosen->name;
  result.is_known = true;
  result.differs_in_merges =
      result.usual != chosen->name && chosen->ignores_merges != ignores_merges;
  return result;
}

bool adds_bos_by_itself(std::string_view pre) { return pre == "llama-bpe" || pre == "tekken"; }

}  // namespace fp4moe::checkpoint
