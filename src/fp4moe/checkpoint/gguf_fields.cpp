#include "fp4moe/checkpoint/gguf_fields.hpp"

#include <algorithm>
#include <optional>

#include "fp4moe/checkpoint/models.hpp"

namespace fp4moe::checkpoint {
namespace {

using tensor::GgufField;
using tensor::GgufType;

// Keys after the architecture's name, and what config.json calls the same.
enum class KeyKind : std::uint8_t { count, real, truth };
struct KeyRow {
  std::string_view gguf;
  std::string_view config;
  KeyKind kind = KeyKind::count;
};

constexpr KeyRow kKeys[] = {
    {"context_length", "max_position_embeddings"},
    {"attention.head_count", "num_attention_heads"},
    {"moe_latent_size", "moe_latent_size"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.key_length", "head_dim"},
    {"attention.sliding_window", "sliding_window"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", KeyKind::real},
    {"rope.freq_base", "rope_theta", KeyKind::real},
};
// Written, and read from other programs' files under the rules of config_from_gguf.
constexpr KeyRow kRouterKeys[] = {
    {"moe_latent_size", "routed_expert_hidden_size"},
    {"attention.value_length", "head_dim"},
    {"leading_dense_block_count", "first_k_dense_replace"},
    {"expert_shared_count", "n_shared_experts"},
    {"expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"},
    {"expert_group_count", "n_group"},
    {"expert_group_used_count", "topk_group"},
    {"expert_weights_scale", "routed_scaling_factor", KeyKind::real},
    {"expert_weights_norm", "norm_topk_prob", KeyKind::truth},
};
// Keys of rope_scaling (rope_parameters since transformers 5) if its type is yarn.
constexpr KeyRow kYarnKeys[] = {
    {"rope.scaling.factor", "factor", KeyKind::real},
    {"rope.scaling.original_context_length", "original_max_position_embeddings"},
    {"rope.scaling.yarn_ext_factor", "extrapolation_factor", KeyKind::real},
    {"rope.scaling.yarn_attn_factor", "attention_factor", KeyKind::real},
    {"rope.scaling.yarn_attn_factor", "attn_factor", KeyKind::real},
    {"rope.scaling.yarn_beta_fast", "beta_fast", KeyKind::real},
    {"rope.scaling.yarn_beta_slow", "beta_slow", KeyKind::real},
};

const GgufField* find(std::span<const GgufField> fields, std::string_view key) {
  const auto found = std::ranges::find_if(fields, [&](const GgufField& f) { return f.key == key; });
  return found == fields.end() ? nullptr : &*found;
}

std::string text_field(std::span<const GgufField> fields, std::string_view key) {
  const GgufField* field = find(fields, key);
  const auto* value = field == nullptr ? nullptr : std::get_if<std::string>(&field->value);
  return value == nullptr ? std::string() : *value;
}

std::optional<std::uint64_t> count_field(std::span<const GgufField> fields, std::string_view key) {
  const GgufField* field = find(fields, key);
  if (field == nullptr) return std::nullopt;
  if (const auto* value = std::get_if<std::uint64_t>(&field->value)) return *value;
  return std::nullopt;
}

const Json* member(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

double number_or(const Json* value, double otherwise) {
  return value != nullptr && value->is_number() ? value->get<double>() : otherwise;
}

// The fields that llama.cpp's converter writes for a model.
class FieldsOfModel {
 public:
  explicit FieldsOfModel(const GgufModel& model)
      : model_(model), architecture_(gguf_architecture(model.model_type)) {}

  std::vector<GgufField> write() {
    const bool is_mxfp4 = model_.shape.format == WeightFormat::mxfp4;
    add_text("general.architecture", architecture_);
    add_text("general.type", "model");
    if (!model_.name.empty()) add_text("general.name", model_.name);
    add_whole("general.file_type", is_mxfp4 ? 38 : 39);  // MOSTLY_MXFP4_MOE, MOSTLY_NVFP4
    add_whole("general.quantization_version", 2);
    add_count("block_count", model_.layers);
    if (model_.next_layers != 0) add_count("nextn_predict_layers", model_.next_layers);
    const bool is_latent = of_config("moe_latent_size") != nullptr ||
                           of_config("routed_expert_hidden_size") != nullptr;
    const Json* hidden = is_latent ? of_config("hidden_size") : nullptr;
    add_count("embedding_length", hidden != nullptr && is_count(*hidden)
                                      ? hidden->get<std::uint64_t>()
                                      : model_.shape.hidden);
    const Json* dense = of_config("intermediate_size");
    add_count("feed_forward_length", dense != nullptr && is_count(*dense)
                                         ? dense->get<std::uint64_t>()
                                         : model_.shape.intermediate);
    add_count("expert_feed_forward_length", model_.shape.intermediate);
    add_count("expert_count", model_.shape.experts);
    if (model_.top_k != 0) add_count("expert_used_count", model_.top_k);
    if (model_.vocabulary != 0) add_count("vocab_size", model_.vocabulary);
    for (const KeyRow& row : kKeys) add(row, of_config(row.config));
    for (const KeyRow& row : kRouterKeys) add(row, of_config(row.config));
    add_scoring();
    add_rope();
    if (model_.model_type == "gpt_oss") add_openai();
    if (model_.config.is_object()) add_text(kGgufConfigKey, model_.config.dump());
    add_text(kOriginKey, to_text(model_.origin));
    return std::move(fields_);
  }

 private:
  static bool is_count(const Json& value) {
    return value.is_number_integer() &&
           (value.is_number_unsigned() || value.get<std::int64_t>() >= 0) &&
           value.get<std::uint64_t>() <= 0xFFFFFFFFu;
  }

  bool has(std::string_view key) const {
    return find(fields_, lead() + std::string(key)) != nullptr;
  }
  std::string lead() const { return architecture_ + "."; }
  void add_text(std::string_view key, std::string value) {
    fields_.push_back({std::string(key), GgufType::string, std::move(value)});
  }
  void add_whole(std::string key, std::uint64_t value) {
    fields_.push_back({std::move(key), GgufType::u32, value});
  }
  void add_count(std::string_view key, std::uint64_t value) {
    add_whole(lead() + std::string(key), value);
  }
  void add_real(std::string_view key, double value) {
    fields_.push_back({lead() + std::string(key), GgufType::f32, value});
  }

  // A model of several kinds of input keeps what concerns its text apart.
  const Json* of_config(std::string_view key) const {
    if (const Json* value = member(model_.config, key)) return value;
    const Json* text = member(model_.config, "text_config");
    return text != nullptr ? member(*text, key) : nullptr;
  }

  // The first value of a key stays.
  void add(const KeyRow& row, const Json* value) {
    if (value == nullptr || has(row.gguf)) return;
    if (row.kind == KeyKind::count && is_count(*value))
      add_count(row.gguf, value->get<std::uint64_t>());
    if (row.kind == KeyKind::real && value->is_number()) add_real(row.gguf, value->get<double>());
    if (row.kind == KeyKind::truth && value->is_boolean())
      fields_.push_back({lead() + std::string(row.gguf), GgufType::boolean, value->get<bool>()});
  }

  void add_scoring() {
    const Json* field = of_config("scoring_func");
    std::string_view scoring = field != nullptr && field->is_string()
                                   ? std::string_view(field->string())
                                   : std::string_view();
    // Families whose code scores so, whatever their configurations say.
    if (scoring.empty() && (model_.model_type == "glm4_moe" || model_.model_type == "minimax_m2"))
      scoring = "sigmoid";
    if (scoring == "softmax") add_count("expert_gating_func", 1);
    if (scoring == "sigmoid") add_count("expert_gating_func", 2);
    if (scoring == "sqrtsoftplus") add_count("expert_gating_func", 4);
  }

  void add_rope() {
    const Json* rope = of_config("rope_parameters");
    if (rope == nullptr || !rope->is_object()) rope = of_config("rope_scaling");
    if (rope != nullptr)
      if (const Json* full = member(*rope, "full_attention"); full != nullptr) rope = full;
    double rotated = 1;
    if (rope != nullptr && rope->is_object()) {
      add({"rope.freq_base", "rope_theta", KeyKind::real}, member(*rope, "rope_theta"));
      const Json* type = member(*rope, "rope_type");
      if (type == nullptr) type = member(*rope, "type");
      const bool has_factor = number_or(member(*rope, "factor"), 0) > 0;
      if (type != nullptr && *type == Json("linear") && has_factor) {
        add_text(lead() + "rope.scaling.type", "linear");
        add(kYarnKeys[0], member(*rope, "factor"));
      }
      if (type != nullptr && *type == Json("yarn") && has_factor) {
        add_text(lead() + "rope.scaling.type", "yarn");
        for (const KeyRow& row : kYarnKeys) add(row, member(*rope, row.config));
      }
      rotated = number_or(member(*rope, "partial_rotary_factor"), rotated);
    }
    add({"rope.dimension_count", "rotary_dim"}, of_config("rotary_dim"));
    rotated = number_or(of_config("partial_rotary_factor"),
                        rotated == 1 && model_.model_type == "glm4_moe" ? 0.5 : rotated);
    const double heads = number_or(of_config("num_attention_heads"), 0);
    const double head = number_or(of_config("head_dim"),
                                  heads > 0 ? static_cast<double>(model_.shape.hidden) / heads : 0);
    if (!has("rope.dimension_count") && rotated > 0 && rotated < 1 && head > 0 && head < 65536)
      add_count("rope.dimension_count", static_cast<std::uint64_t>(head * rotated));
  }

  // OpenAI's own config.json of gpt-oss has other keys, and leaves the norm's epsilon to its code.
  void add_openai() {
    const double factor = number_or(of_config("rope_scaling_factor"), 0);
    const Json* length = of_config("initial_context_length");
    if (factor > 0 && length != nullptr && is_count(*length) && !has("rope.scaling.type")) {
      const auto original = length->get<std::uint64_t>();
      add_text(lead() + "rope.scaling.type", "yarn");
      add_real("rope.scaling.factor", factor);
      add_count("rope.scaling.original_context_length", original);
      add({"rope.scaling.yarn_beta_fast", {}, KeyKind::real}, of_config("rope_ntk_beta"));
      add({"rope.scaling.yarn_beta_slow", {}, KeyKind::real}, of_config("rope_ntk_alpha"));
      const double context = static_cast<double>(original) * factor;
      if (!has("context_length") && context < 4294967296.0)
        add_count("context_length", static_cast<std::uint64_t>(context));
    }
    if (!has("attention.layer_norm_rms_epsilon"))
      add_real("attention.layer_norm_rms_epsilon", 1e-5);
  }

  const GgufModel& model_;
  std::string architecture_;
  std::vector<GgufField> fields_{};
};

}  // namespace

std::string gguf_architecture(std::string_view model_type) {
  const ModelRow* family = find_family(model_type);
  if (family != nullptr && !family->architecture.empty()) return std::string(family->architecture);
  std::string own(model_type.empty() ? "unknown" : model_type);
  std::ranges::replace(own, '_', '-');
  return own;
}

std::vector<GgufField> gguf_fields(const GgufModel& model) { return FieldsOfModel(model).write(); }

std::string gguf_scoring(std::uint64_t function) {
  switch (function) {
    case 1:
    case 3:  // softmax of the chosen logits: the same weights, normalized
      return "softmax";
    case 2:
      return "sigmoid";
    case 4:
      return "sqrtsoftplus";
    default:
      return std::to_string(function);
  }
}

Json kept_config(std::span<const GgufField> fields) {
  const std::string kept = text_field(fields, kGgufConfigKey);
  if (kept.empty()) return nullptr;
  Result<Json> config = parse_json(kept);
  return config && config->is_object() ? *std::move(config) : Json();
}

Json config_from_gguf(std::span<const GgufField> fields) {
  if (Json kept = kept_config(fields); kept.is_object()) return kept;
  const std::string architecture = text_field(fields, "general.architecture");
  const ModelRow* family = find_architecture(architecture);
  Json config{{"model_type", family != nullptr ? std::string(family->model_type) : architecture}};
  const auto copy = [&](std::string_view gguf, std::string_view key) {
    if (const auto value = count_field(fields, architecture + "." + std::string(gguf)))
      config[std::string(key)] = *value;
  };
  copy("block_count", "num_hidden_layers");
  copy("embedding_length", "hidden_size");
  copy("expert_feed_forward_length",
       family != nullptr ? family->width_key : std::string_view("moe_intermediate_size"));
  copy("expert_count", family != nullptr ? family->experts_key : std::string_view("num_experts"));
  copy("expert_used_count", "num_experts_per_tok");
  copy("expert_group_count", "n_group");
  copy("expert_group_used_count", "topk_group");
  if (const auto function = count_field(fields, architecture + ".expert_gating_func"))
    if (*function != 0) config["scoring_func"] = gguf_scoring(*function);
  const GgufField* norm = find(fields, architecture + ".expert_weights_norm");
  if (norm != nullptr && std::holds_alternative<bool>(norm->value))
    config["norm_topk_prob"] = std::get<bool>(norm->value);
  const GgufField* scale = find(fields, architecture + ".expert_weights_scale");
  if (scale != nullptr && std::holds_alternative<double>(scale->value) &&
      std::get<double>(scale->value) != 0)
    config["routed_scaling_factor"] = std::get<double>(scale->value);
  for (const KeyRow& key : kKeys) {
    const GgufField* field = find(fields, architecture + "." + std::string(key.gguf));
    if (field == nullptr) continue;
    if (const auto* count = std::get_if<std::uint64_t>(&field->value);
        count && key.kind == KeyKind::count)
      config[std::string(key.config)] = *count;
    if (const auto* real = std::get_if<double>(&field->value); real && key.kind == KeyKind::real)
      config[std::string(key.config)] = *real;
  }
  return config;
}

}  // namespace fp4moe::checkpoint
