#include "fp4moe/checkpoint/lora/adapter_name.hpp"

#include <string>

namespace fp4moe::checkpoint {
namespace {

constexpr std::string_view kAdapterPrefix = "base_model.model.";

struct FactorSuffix {
  std::string_view suffix;
  Factor factor;
};
constexpr FactorSuffix kFactorSuffixes[] = {{".lora_A.weight", Factor::a},
                                            {".lora_B.weight", Factor::b}};

struct ListWord {
  std::string_view word;
  StoredProjection projection;
};
constexpr ListWord kModuleLists[] = {{"gate_up_projs.", StoredProjection::gate_up},
                                     {"down_projs.", StoredProjection::down}};

// The end of the last component "experts".
std::size_t experts_end(std::string_view module) {
  constexpr std::string_view kWord = "experts";
  for (std::size_t at = module.rfind(kWord); at != std::string_view::npos;
       at = at == 0 ? std::string_view::npos : module.rfind(kWord, at - 1)) {
    const std::size_t end = at + kWord.size();
    if ((at == 0 || module[at - 1] == '.') && (end == module.size() || module[end] == '.'))
      return end;
  }
  return std::string_view::npos;
}

}  // namespace

std::string_view model_name(std::string_view name) {
  return name.starts_with(kAdapterPrefix) ? name.substr(kAdapterPrefix.size()) : name;
}

bool adapter_mentions_experts(std::string_view name) {
  return experts_end(name) != std::string_view::npos;
}

std::optional<AdapterName> parse_adapter_name(std::string_view name) {
  AdapterName parsed;
  for (const FactorSuffix& row : kFactorSuffixes) {
    if (!name.ends_with(row.suffix)) continue;
    parsed.module = model_name(name.substr(0, name.size() - row.suffix.size()));
    parsed.factor = row.factor;
  }
  const std::size_t end = experts_end(parsed.module);
  if (end == std::string_view::npos) return std::nullopt;
  constexpr std::size_t kWord = 7;  // "experts"
  parsed.prefix = parsed.module.substr(0, end - kWord);
  // The layer's number is found as for other tensors of experts.
  const std::string probe = std::string(parsed.prefix) + "experts.0.up_proj";
  parsed.layer = parse_expert_name(probe)->layer;

  std::string_view rest = parsed.module.substr(end);
  constexpr std::string_view kBase = ".base_layer";
  while (rest.starts_with(kBase)) {
    rest.remove_prefix(kBase.size());
    ++parsed.depth;
  }
  if (rest.empty()) return parsed;
  if (parsed.depth != 0) return std::nullopt;
  if (const std::optional<ExpertName> known = parse_expert_name(parsed.module)) {
    if (!known->part.empty() || known->prefix != parsed.prefix) return std::nullopt;
    parsed.expert = known->expert;
    parsed.projection = known->projection;
    return parsed;
  }
  rest.remove_prefix(1);
  for (const ListWord& row : kModuleLists) {
    if (!rest.starts_with(row.word)) continue;
    const std::string numbered =
        "experts." + std::string(rest.substr(row.word.size())) + ".up_proj";
    const std::optional<ExpertName> known = parse_expert_name(numbered);
    if (!known || !known->expert || !known->part.empty()) return std::nullopt;
    parsed.expert = known->expert;
    parsed.projection = row.projection;
    return parsed;
  }
  return std::nullopt;
}

}  // namespace fp4moe::checkpoint
