#include "fp4moe/checkpoint/config.hpp"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/at_path.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/config_document.hpp"
#include "fp4moe/checkpoint/config_fields.hpp"
#include "fp4moe/checkpoint/gguf_fields.hpp"
#include "fp4moe/checkpoint/models.hpp"
#include "fp4moe/checkpoint/quant_claim.hpp"
#include "fp4moe/tensor/files/store_files.hpp"

namespace fp4moe::checkpoint {
namespace {

Error not_an_object(const Json& config) {
  return invalid("config.type", "the document is not an object")
      .expects("an object", config.type_name());
}

// Python writes Infinity and NaN, which JSON has not; none of our fields may be one, so they are
// as good as null.
std::string without_python_numbers(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    if (in_string && rest[0] == '\\' && rest.size() > 1) {
      result += rest.substr(0, 2);
      i += 2;
      continue;
    }
    if (rest[0] == '"') in_string = !in_string;
    std::size_t length = 0;
    for (const std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
      if (!in_string && rest.starts_with(word)) length = word.size();
    }
    result += length > 0 ? std::string_view("null") : rest.substr(0, 1);
    i += length > 0 ? length : 1;
  }
  return result;
}

Result<std::optional<ConfigDocument>> read_document(const tensor::MappedFile& file) {
  constexpr std::size_t kMaxBytes = std::size_t{100} << 20;
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() > kMaxBytes) {
    return invalid("config.too_large", "configuration too large")
        .in(file.path())
        .expects("at most 100 MiB", human_bytes(bytes.size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string strict = without_python_numbers(text);
  Result<Json> document = parse_json(strict);
  if (!document) return Error(document.why()).in(file.path());
  return std::optional(ConfigDocument{std::move(*document), strict != text});
}

}  // namespace

Result<std::optional<ConfigDocument>> read_config_document(const std::string& path) {
  if (at_path(path) == AtPath::nothing) return std::optional<ConfigDocument>{};
  const auto file = tensor::MappedFile::open(path);
  if (!file) return file.why();
  return read_document(*file);
}

Result<std::optional<ConfigDocument>> read_config_document(const std::string& folder,
                                                           const std::string& name) {
  const std::string path = folder + "/" + name;
  if (at_path(path) == AtPath::nothing) return std::optional<ConfigDocument>{};
  if (const auto inside = tensor::file_inside(folder, name); !inside) return inside.why();
  return read_config_document(path);
}

Result<std::optional<ConfigDocument>> read_config_document(const tensor::Store& store,
                                                           std::string_view name) {
  const auto file = store.document(name);
  if (!file) return file.why();
  if (!file->has_value()) return std::optional<ConfigDocument>{};
  return read_document(**file);
}

Result<Done> require_json(const ConfigDocument& document, const std::string& path) {
  if (!document.had_python_numbers) return Done{};
  return invalid("config.python_numbers",
                 "the file holds Infinity or NaN and cannot be written back")
      .in(path)
      .expects("JSON", "numbers that only Python reads")
      .try_this("Write these numbers as JSON has them");
}

void Exclusions::add(std::string_view pattern) {
  constexpr std::string_view kRegex = "re:";
  if (pattern.starts_with(kRegex)) {
    if (auto regex = ModuleRegex::parse(pattern.substr(kRegex.size()))) {
      regexes_.push_back({*std::move(regex), std::string(pattern)});
      return;
    }
  } else if (pattern.find_first_of("*?") == std::string_view::npos) {
    exact_.emplace(pattern);
  } else {
    wild_.emplace_back(pattern);
  }
  // Sets of characters ("[0-3]") are read in regular expressions only.
  const bool is_read = !pattern.starts_with(kRegex) && pattern.find('[') == std::string_view::npos;
  if (!is_read && unparsed_.empty()) unparsed_ = pattern;
}

const std::string* Exclusions::find(std::string_view module) const {
  for (std::string_view outer = module;;) {
    if (const auto at = exact_.find(outer); at != exact_.end()) return &*at;
    for (const std::string& pattern : wild_)
      if (matches_wildcard(pattern, outer)) return &pattern;
    for (const Regex& row : regexes_)
      if (row.regex.matches(outer)) return &row.spelled;
    const std::size_t dot = outer.rfind('.');
    if (dot == std::string_view::npos) return nullptr;
    outer = outer.substr(0, dot);
  }
}

namespace {

// The first of these keys that holds a text.
std::string first_text(ConfigFields& fields, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys)
    if (const Json* value = fields.find(key); value != nullptr && value->is_string())
      return value->string();
  return {};
}

bool has_layer_limits(const ConfigFields& fields) {
  const Json* limits = fields.find("swiglu_limits");
  return limits != nullptr && limits->is_array() &&
         std::any_of(limits->begin(), limits->end(), [](const Json& limit) {
           return limit.is_number() && limit.get<double>() != 0;
         });
}

// The words for the router's scores and its choice. Two words that differ are no word.
void read_router_words(ConfigFields& fields, ModelConfig& model) {
  for (const std::string_view key :
       {"scoring_func", "score_function", "score_func", "router_score_function",
        "moe_router_activation_func", "expert_selection_fn"}) {
    const std::string word = fields.string(key);
    if (word.empty() || word == model.scoring) continue;
    model.scoring = model.scoring.empty() ? word : model.scoring + " and " + word;
  }
  model.topk_method = fields.string("topk_method");
  // DeepSeek-V2's models choose among all experts unless they say otherwise.
  if (model.topk_method == "greedy") model.groups = model.chosen_groups = 1;
  for (const std::string_view key : {"router_logit_softcapping", "moe_router_logit_softcapping",
                                     "router_logit_softcap", "moe_router_logit_softcap"})
    if (const auto cap = fields.number(key); cap.value_or(0) != 0) model.router_softcap = cap;
}

// The activation and its constants.
void read_activation(ConfigFields& fields, ModelConfig& model) {
  model.activation = first_text(
      fields, {"mlp_hidden_act", "hidden_activation", "hidden_act", "activation_function"});
  model.swiglu_limit = fields.number("swiglu_limit");
  model.swiglu_alpha = fields.number("swiglu_alpha");
  model.swiglu_beta = fields.number("swiglu_beta");
  model.has_layer_limits = has_layer_limits(fields);
  model.situ_beta = fields.number("activation_situ_beta");
  model.situ_linear_beta = fields.number("activation_situ_linear_beta");
  for (std::optional<double>* beta : {&model.situ_beta, &model.situ_linear_beta})
    if (*beta == 0.0) beta->reset();
}

}  // namespace

Result<ModelFacts> parse_config(const Json& config) {
  if (!config.is_object()) return not_an_object(config);
  ModelFacts facts{.has_config = true};
  ConfigFields root(config);
  const Json* inner = nullptr;
  for (const std::string_view key : {"text_config", "llm_config", "language_config"}) {
    if (inner == nullptr) inner = root.object(key);
  }
  // Models that also speak have a model for each of the two.
  const Json* thinker = inner == nullptr ? root.object("thinker_config") : nullptr;
  if (root.problem()) return *root.problem();
  if (thinker != nullptr) {
    ConfigFields outer(*thinker);
    inner = outer.object("text_config");
    if (outer.problem()) return *outer.problem();
  }

  ConfigFields fields(config, inner);
  ModelConfig& model = facts.model;
  model.model_type = root.string("model_type");
  // The whole's type says more, unless it is one that is known for its other inputs alone.
  const std::string own_type = fields.string("model_type");
  if (family_routing(model.model_type).empty() && !own_type.empty()) model.model_type = own_type;
  model.layers = fields.count({"num_hidden_layers"});
  model.experts =
      fields.count({"n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"});
  model.top_k = fields.count({"num_experts_per_tok", "experts_per_token", "num_experts_per_token",
                              "moe_k", "moe_topk", "moe_top_k", "top_k_experts"});
  // Models with latent experts project the hidden state down before them.
  model.hidden = fields.count({"moe_latent_size", "routed_expert_hidden_size", "hidden_size"});
  model.router_hidden = fields.count({"hidden_size"});
  model.intermediate = fields.count({"moe_intermediate_size", "intermediate_size"});
  model.groups = fields.count({"n_group", "num_expert_group"});
  model.chosen_groups = fields.count({"topk_group"});
  for (const std::string_view key :
       {"routed_scaling_factor", "moe_routed_scaling_factor", "moe_router_scaling_factor",
        "router_scaling_factor", "route_scale"})
    if (!model.routed_scale) model.routed_scale = fields.number(key);
  for (const std::string_view key : {"norm_topk_prob", "moe_renormalize", "route_norm"})
    if (!model.renormalizes) model.renormalizes = fields.boolean(key);
  read_router_words(fields, model);
  read_activation(fields, model);
  const std::string expert_dtype = fields.string("expert_dtype");

  const Json* quantization = root.object("quantization_config");
  if (quantization == nullptr) quantization = root.object("compression_config");
  if (quantization == nullptr) quantization = fields.object("quantization_config");
  for (const ConfigFields* read : {&root, &fields}) {
    if (read->problem()) return *read->problem();
  }
  if (quantization != nullptr) {  // a converted folder keeps what its checkpoint said
    ConfigFields converted(*quantization);
    if (converted.string("quant_method") == "fp4moe") quantization = converted.object("source");
    if (converted.problem()) return *converted.problem();
  }
  if (quantization != nullptr) {
    auto claim = claim_from(*quantization, model.model_type, expert_dtype);
    if (!claim) return claim.why();
    claim->source = "config.json";
    if (claim->dialect == Dialect::quark) facts.model.quark_input = claim->input;
    facts.claims.push_back(std::move(*claim));
  }
  return facts;
}

Result<QuantClaim> parse_hf_quant_config(const Json& config) {
  if (!config.is_object()) return not_an_object(config);
  ConfigFields root(config);
  std::string producer;
  if (const Json* object = root.object("producer")) {
    ConfigFields fields(*object);
    producer = fields.string("name");
    if (fields.problem()) return *fields.problem();
  }
  const Json* quantization = root.object("quantization");
  if (root.problem()) return *root.problem();
  const Json nothing = Json::object();
  ConfigFields fields(quantization != nullptr ? *quantization : nothing);
  auto claim = modelopt_claim(fields, fmt::format("producer \"{}\"", producer));
  if (!claim) return claim.why();
  claim->source = "hf_quant_config.json";
  return claim;
}

Result<ModelFacts> facts_from_gguf(std::span<const tensor::GgufField> fields) {
  // Files that fp4moe wrote keep the whole config.json, which says more of the router.
  if (const Json kept = kept_config(fields); kept.is_object()) {
    auto facts = parse_config(kept);
    if (!facts) return Error(facts.why()).at(kGgufConfigKey);
    facts->claims.clear();  // of the dialect it was
    facts->model.quark_input.reset();
    return facts;
  }
  ModelFacts facts{.has_config = true};
  std::string architecture;
  const auto find = [&fields](std::string_view key) -> const tensor::GgufField* {
    for (const tensor::GgufField& field : fields) {
      if (field.key == key) return &field;
    }
    return nullptr;
  };
  if (const auto* field = find("general.architecture")) {
    const auto* value = std::get_if<std::string>(&field->value);
    if (value == nullptr) {
      return invalid("config.type", "a metadata field has the wrong type")
          .at(field->key)
          .expects("a string", "another type");
    }
    architecture = *value;
  }
  facts.model.model_type = architecture;
  std::optional<Error> problem;
  const auto count = [&](std::string_view key) -> std::optional<std::uint64_t> {
    const auto* field = find(architecture + "." + std::string(key));
    if (field == nullptr) return std::nullopt;
    if (const auto* value = std::get_if<std::uint64_t>(&field->value)) return *value;
    if (const auto* value = std::get_if<std::int64_t>(&field->value); value != nullptr) {
      if (*value >= 0) return static_cast<std::uint64_t>(*value);
    }
    // Some models give a list with one number per layer; then no single number holds.
    if (std::holds_alternative<std::vector<std::uint64_t>>(field->value) ||
        std::holds_alternative<std::vector<std::int64_t>>(field->value)) {
      return std::nullopt;
    }
    if (!problem) {
      problem = invalid("config.type", "a metadata field has the wrong type")
                    .at(field->key)
                    .expects("a whole number", "another type");
    }
    return std::nullopt;
  };
  facts.model.layers = count("block_count");
  facts.model.experts = count("expert_count");
  facts.model.top_k = count("expert_used_count");
  facts.model.router_hidden = count("embedding_length");
  // Models with latent experts project the hidden state down before them.
  facts.model.hidden = count("moe_latent_size");
  if (!facts.model.hidden) facts.model.hidden = facts.model.router_hidden;
  facts.model.intermediate = count("expert_feed_forward_length");
  if (!facts.model.intermediate) facts.model.intermediate = count("feed_forward_length");
  facts.model.groups = count("expert_group_count");
  facts.model.chosen_groups = count("expert_group_used_count");
  if (const auto function = count("expert_gating_func"); function && *function != 0)
    facts.model.scoring = gguf_scoring(*function);
  else if (architecture == "deepseek2")  // of DeepSeek-V2, before the field was there
    facts.model.scoring = gguf_scoring(1);
  if (architecture == "deepseek2") facts.model.renormalizes = false;  // unless it is said
  if (const auto* field = find(architecture + ".expert_weights_norm"))
    if (const auto* value = std::get_if<bool>(&field->value)) facts.model.renormalizes = *value;
  if (const auto* field = find(architecture + ".expert_weights_scale"))
    if (const auto* value = std::get_if<double>(&field->value); value != nullptr && *value != 0)
      facts.model.routed_scale = *value;
  if (const auto* field = find(architecture + ".router_logit_softcapping"))
    if (const auto* value = std::get_if<double>(&field->value); value != nullptr && *value != 0)
      facts.model.router_softcap = *value;
  if (problem) return *problem;
  return facts;
}

Result<ModelFacts> read_facts(const tensor::Store& store) {
  if (store.kind() == tensor::StoreKind::gguf) return facts_from_gguf(store.gguf_fields());
  ModelFacts facts;
  const auto config = read_config_document(store, "config.json");
  if (!config) return config.why();
  if (config->has_value()) {
    auto parsed = parse_config((*config)->json);
    if (!parsed) return Error(parsed.why()).in(store.path_of("config.json"));
    facts = std::move(*parsed);
  }
  const auto quant = read_config_document(store, "hf_quant_config.json");
  if (!quant) return quant.why();
  if (quant->has_value()) {
    auto claim = parse_hf_quant_config((*quant)->json);
    if (!claim) return Error(claim.why()).in(store.path_of("hf_quant_config.json"));
    facts.claims.push_back(std::move(*claim));
  }
  return facts;
}

}  // namespace fp4moe::checkpoint
