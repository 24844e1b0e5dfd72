#include "fp4moe/weights/config.hpp"

#include <filesystem>
#include <initializer_list>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/weights/config_document.hpp"

namespace fp4moe::weights {
namespace {

// Typed reads of one object. The first field of a wrong type is remembered; `null` counts as
// absent, as writers use it so.
class Fields {
 public:
  // `inner` (a multimodal model's text_config) is asked before `outer`.
  explicit Fields(const Json& outer, const Json* inner = nullptr) : outer_(outer), inner_(inner) {}

  const Json* find(std::string_view key) const {
    for (const Json* object : {inner_, &outer_}) {
      if (object == nullptr || !object->is_object()) continue;
      const auto at = object->find(key);
      if (at != object->end() && !at->is_null()) return &*at;
    }
    return nullptr;
  }
  const Json* object(std::string_view key) {
    const Json* value = find(key);
    return value == nullptr || value->is_object() ? value : wrong(key, "an object", *value);
  }
  std::optional<std::uint64_t> count(std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys) {
      const Json* value = find(key);
      if (value == nullptr) continue;
      if (value->is_number_unsigned()) return value->get<std::uint64_t>();
      wrong(key, "a whole number", *value);
      return std::nullopt;
    }
    return std::nullopt;
  }
  std::optional<double> number(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_number()) return value->get<double>();
    wrong(key, "a number", *value);
    return std::nullopt;
  }
  std::optional<bool> boolean(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_boolean()) return value->get<bool>();
    wrong(key, "true or false", *value);
    return std::nullopt;
  }
  std::string string(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (value->is_string()) return value->string();
    wrong(key, "a string", *value);
    return {};
  }
  void exclusions(std::string_view key, Exclusions& into) {
    const Json* value = find(key);
    if (value == nullptr) return;
    if (!value->is_array()) {
      wrong(key, "a list of module names", *value);
      return;
    }
    for (const Json& item : *value) {
      if (!item.is_string()) {
        wrong(key, "a list of module names", item);
        return;
      }
      into.add(item.string());
    }
  }
  const std::optional<Error>& problem() const { return problem_; }

 private:
  const Json* wrong(std::string_view key, std::string_view expected, const Json& found) {
    if (!problem_) {
      problem_ =
          invalid("config.type", "a field has the wrong type")
              .at(key)
              .expects(expected, fmt::format("{} {}", found.type_name(), printable(found.dump())));
    }
    return nullptr;
  }

  const Json& outer_;
  const Json* inner_;
  std::optional<Error> problem_{};
};

bool is_nvfp4(std::string_view algorithm) {
  return algorithm == "NVFP4" || algorithm == "W4A16_NVFP4" || algorithm == "NVFP4_AWQ";
}

Result<QuantClaim> modelopt_claim(Fields& fields, std::string fact) {
  QuantClaim claim;
  const std::string algorithm = fields.string("quant_algo");
  claim.fact = fmt::format("{}, quant_algo \"{}\"", fact, algorithm);
  if (is_nvfp4(algorithm)) {
    claim.dialect = Dialect::modelopt;
    claim.format = WeightFormat::nvfp4;
  } else if (algorithm == "MIXED_PRECISION") {
    bool has_nvfp4 = false;
    if (const Json* layers = fields.object("quantized_layers")) {
      for (const Json& layer : *layers) {
        Fields row(layer);
        has_nvfp4 = has_nvfp4 || is_nvfp4(row.string("quant_algo"));
        if (row.problem()) return *row.problem();
      }
      claim.fact += has_nvfp4 ? " with NVFP4 layers" : " without NVFP4 layers";
    } else {
      has_nvfp4 = true;  // the tensors will tell
    }
    if (has_nvfp4) claim.dialect = Dialect::modelopt;
  }
  for (const std::string_view key : {"exclude_modules", "ignore"}) {
    fields.exclusions(key, claim.excluded);
  }
  if (fields.problem()) return *fields.problem();
  return claim;
}

Result<QuantClaim> compressed_tensors_claim(Fields& fields) {
  QuantClaim claim;
  const auto format_of = [](std::string_view format) -> std::optional<WeightFormat> {
    if (format == "nvfp4-pack-quantized") return WeightFormat::nvfp4;
    if (format == "mxfp4-pack-quantized") return WeightFormat::mxfp4;
    return std::nullopt;
  };
  const std::string format = fields.string("format");
  claim.fact = fmt::format("quant_method \"compressed-tensors\", format \"{}\"", format);
  claim.format = format_of(format);
  if (claim.format) claim.dialect = Dialect::compressed_tensors;
  if (const Json* groups = fields.object("config_groups"); groups != nullptr && !claim.format) {
    // "mixed-precision": each group has its own format.
    for (const Json& group : *groups) {
      Fields row(group);
      const std::string own = row.string("format");
      if (row.problem()) return *row.problem();
      if (const auto found = format_of(own)) {
        claim.fact += fmt::format(", a group of format \"{}\"", own);
        const bool second = claim.dialect && claim.format != found;
        claim.format = second ? std::nullopt : found;
        claim.dialect = Dialect::compressed_tensors;
        if (second) break;
      }
    }
  }
  fields.exclusions("ignore", claim.excluded);
  if (fields.problem()) return *fields.problem();
  return claim;
}

// Quark gives a weight's quantisation as an object or, for two levels, a list of them.
Result<bool> quark_is_fp4(const Json& config, std::string& dtype) {
  Fields fields(config);
  const Json* weight = fields.find("weight");
  if (weight != nullptr && weight->is_array() && !weight->empty()) weight = &(*weight)[0];
  if (weight == nullptr) return false;
  Fields row(*weight);
  dtype = row.string("dtype");
  if (row.problem()) return *row.problem();
  return dtype == "fp4" || dtype == "mxfp4" || dtype == "mx_fp4";
}

Result<QuantClaim> quark_claim(Fields& fields) {
  QuantClaim claim;
  std::string dtype = "none";
  bool fp4 = false;
  if (const Json* global = fields.object("global_quant_config")) {
    const auto answer = quark_is_fp4(*global, dtype);
    if (!answer) return answer.why();
    fp4 = *answer;
  }
  claim.fact = fmt::format("quant_method \"quark\", weight dtype \"{}\"", dtype);
  if (fp4) {
    claim.dialect = Dialect::quark;
    claim.format = WeightFormat::mxfp4;
  } else if (const Json* layers = fields.object("layer_quant_config")) {
    for (const Json& layer : *layers) {
      const auto answer = quark_is_fp4(layer, dtype);
      if (!answer) return answer.why();
      if (!*answer) continue;
      claim.dialect = Dialect::quark;
      claim.fact += ", some layers fp4";
      break;
    }
  }
  fields.exclusions("exclude", claim.excluded);
  if (fields.problem()) return *fields.problem();
  return claim;
}

Result<QuantClaim> claim_from(const Json& config, std::string_view model_type,
                              std::string_view expert_dtype) {
  Fields fields(config);
  std::string method = fields.string("quant_method");
  if (const Json* producer = fields.object("producer"); producer != nullptr && method.empty()) {
    Fields named(*producer);
    method = named.string("name");
    if (named.problem()) return *named.problem();
  }
  if (fields.problem()) return *fields.problem();
  if (method.starts_with("modelopt")) {
    return modelopt_claim(fields, fmt::format("quant_method \"{}\"", method));
  }
  if (method == "compressed-tensors") return compressed_tensors_claim(fields);
  if (method == "quark") return quark_claim(fields);

  QuantClaim claim;
  claim.fact = fmt::format("quant_method \"{}\"", method);
  if (method == "mxfp4") {
    claim.dialect = Dialect::gpt_oss;
    claim.format = WeightFormat::mxfp4;
    fields.exclusions("modules_to_not_convert", claim.excluded);
  } else if (method == "fp8") {
    // DeepSeek-V4: FP8 but for the experts.
    std::string own = fields.string("expert_dtype");
    if (own.empty()) own = expert_dtype;
    if (!own.empty()) claim.fact += fmt::format(", expert_dtype \"{}\"", own);
    if (model_type == "deepseek_v4") claim.fact += " of model_type \"deepseek_v4\"";
    if (own == "fp4" || (own.empty() && model_type == "deepseek_v4")) {
      claim.dialect = Dialect::deepseek_v4;
      claim.format = WeightFormat::mxfp4;
    }
  }
  if (fields.problem()) return *fields.problem();
  return claim;
}

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
    return invalid("config.too_large", "a configuration of this size is none")
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
  std::error_code failed;
  if (!std::filesystem::exists(path, failed) && !failed) return std::optional<ConfigDocument>{};
  const auto file = tensor::MappedFile::open(path);
  if (!file) return file.why();
  return read_document(*file);
}

Result<std::optional<ConfigDocument>> read_config_document(const tensor::Store& store,
                                                           std::string_view name) {
  const auto file = store.document(name);
  if (!file) return file.why();
  if (!file->has_value()) return std::optional<ConfigDocument>{};
  return read_document(**file);
}

void Exclusions::add(std::string_view pattern) {
  constexpr std::string_view kRegex = "re:";
  if (!pattern.starts_with(kRegex)) {
    if (pattern.find_first_of("*?") == std::string_view::npos) {
      exact_.emplace(pattern);
    } else {
      wild_.push_back({std::string(pattern), std::string(pattern)});
    }
    return;
  }
  // A regular expression of literals, "\." and ".*" only; a match may end anywhere unless "$" does.
  std::string wild;
  std::string_view rest = pattern.substr(kRegex.size());
  if (rest.starts_with('^')) rest.remove_prefix(1);
  const bool anchored = rest.ends_with('$');
  if (anchored) rest.remove_suffix(1);
  while (!rest.empty()) {
    if (rest.starts_with(".*")) {
      wild += '*';
      rest.remove_prefix(2);
    } else if (rest.starts_with("\\.")) {
      wild += '.';
      rest.remove_prefix(2);
    } else if (rest[0] == '.') {
      wild += '?';
      rest.remove_prefix(1);
    } else if (std::string_view("\\[](){}+*?|^$").find(rest[0]) != std::string_view::npos) {
      return;  // a real regular expression: the tensors decide
    } else {
      wild += rest[0];
      rest.remove_prefix(1);
    }
  }
  if (!anchored) wild += '*';
  wild_.push_back({std::move(wild), std::string(pattern)});
}

const std::string* Exclusions::find(std::string_view module) const {
  for (std::string_view outer = module;;) {
    if (const auto at = exact_.find(outer); at != exact_.end()) return &*at;
    for (const Wild& row : wild_) {
      if (matches_wildcard(row.pattern, outer)) return &row.spelled;
    }
    const std::size_t dot = outer.rfind('.');
    if (dot == std::string_view::npos) return nullptr;
    outer = outer.substr(0, dot);
  }
}

Result<ModelFacts> parse_config(const Json& config) {
  if (!config.is_object()) return not_an_object(config);
  ModelFacts facts{.has_config = true};
  Fields root(config);
  const Json* inner = nullptr;
  for (const std::string_view key : {"text_config", "llm_config", "language_config"}) {
    if (inner == nullptr) inner = root.object(key);
  }
  if (root.problem()) return *root.problem();

  Fields fields(config, inner);
  ModelConfig& model = facts.model;
  model.model_type = root.string("model_type");
  if (model.model_type.empty()) model.model_type = fields.string("model_type");
  model.layers = fields.count({"num_hidden_layers"});
  model.experts =
      fields.count({"n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"});
  model.top_k = fields.count({"num_experts_per_tok", "experts_per_token", "num_experts_per_token"});
  // Models with latent experts project the hidden state down before them.
  model.hidden = fields.count({"moe_latent_size", "hidden_size"});
  model.intermediate = fields.count({"moe_intermediate_size", "intermediate_size"});
  model.swiglu_limit = fields.number("swiglu_limit");
  model.groups = fields.count({"n_group", "num_expert_group"});
  model.chosen_groups = fields.count({"topk_group"});
  model.routed_scale = fields.number("routed_scaling_factor");
  model.renormalizes = fields.boolean("norm_topk_prob");
  model.scoring = fields.string("scoring_func");
  const std::string expert_dtype = fields.string("expert_dtype");

  const Json* quantization = root.object("quantization_config");
  if (quantization == nullptr) quantization = root.object("compression_config");
  if (quantization == nullptr) quantization = fields.object("quantization_config");
  for (const Fields* read : {&root, &fields}) {
    if (read->problem()) return *read->problem();
  }
  if (quantization != nullptr) {
    auto claim = claim_from(*quantization, model.model_type, expert_dtype);
    if (!claim) return claim.why();
    claim->source = "config.json";
    facts.claims.push_back(std::move(*claim));
  }
  return facts;
}

Result<QuantClaim> parse_hf_quant_config(const Json& config) {
  if (!config.is_object()) return not_an_object(config);
  Fields root(config);
  std::string producer;
  if (const Json* object = root.object("producer")) {
    Fields fields(*object);
    producer = fields.string("name");
    if (fields.problem()) return *fields.problem();
  }
  const Json* quantization = root.object("quantization");
  if (root.problem()) return *root.problem();
  const Json nothing = Json::object();
  Fields fields(quantization != nullptr ? *quantization : nothing);
  auto claim = modelopt_claim(fields, fmt::format("producer \"{}\"", producer));
  if (!claim) return claim.why();
  claim->source = "hf_quant_config.json";
  return claim;
}

Result<ModelFacts> facts_from_gguf(std::span<const tensor::GgufField> fields) {
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
  facts.model.hidden = count("embedding_length");
  facts.model.intermediate = count("expert_feed_forward_length");
  if (!facts.model.intermediate) facts.model.intermediate = count("feed_forward_length");
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

}  // namespace fp4moe::weights
