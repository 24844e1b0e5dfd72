#include "fp4moe/checkpoint/gguf_fields.hpp"

#include <algorithm>
#include <optional>

#include "fp4moe/checkpoint/models.hpp"

namespace fp4moe::checkpoint {
namespace {

using tensor::GgufField;
using tensor::GgufType;

// Keys after the architecture's name, and what config.json calls the same.
struct KeyRow {
  std::string_view gguf;
  std::string_view config;
  bool is_real;
};

constexpr KeyRow kKeys[] = {
    {"context_length", "max_position_embeddings", false},
    {"attention.head_count", "num_attention_heads", false},
    {"attention.head_count_kv", "num_key_value_heads", false},
    {"attention.key_length", "head_dim", false},
    {"attention.sliding_window", "sliding_window", false},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", true},
    {"rope.freq_base", "rope_theta", true},
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

}  // namespace

std::string gguf_architecture(std::string_view model_type) {
  const ModelRow* family = find_family(model_type);
  if (family != nullptr && !family->architecture.empty()) return std::string(family->architecture);
  std::string own(model_type.empty() ? "unknown" : model_type);
  std::ranges::replace(own, '_', '-');
  return own;
}

std::vector<GgufField> gguf_fields(const GgufModel& model) {
  const std::string architecture = gguf_architecture(model.model_type);
  std::vector<GgufField> fields;
  const auto add_text = [&](std::string_view key, std::string value) {
    fields.push_back({std::string(key), GgufType::string, std::move(value)});
  };
  const auto add_count = [&](const std::string& key, std::uint64_t value) {
    fields.push_back({key, GgufType::u32, value});
  };
  const bool mxfp4 = model.shape.format == WeightFormat::mxfp4;
  add_text("general.architecture", architecture);
  add_text("general.type", "model");
  add_count("general.file_type", mxfp4 ? 38 : 39);  // MOSTLY_MXFP4_MOE, MOSTLY_NVFP4
  add_count("general.quantization_version", 2);
  const std::string lead = architecture + ".";
  add_count(lead + "block_count", model.layers);
  add_count(lead + "embedding_length", model.shape.hidden);
  add_count(lead + "feed_forward_length", model.shape.intermediate);
  add_count(lead + "expert_feed_forward_length", model.shape.intermediate);
  add_count(lead + "expert_count", model.shape.experts);
  if (model.top_k != 0) add_count(lead + "expert_used_count", model.top_k);
  for (const KeyRow& key : kKeys) {
    if (!model.config.is_object()) break;
    const auto found = model.config.find(std::string(key.config));
    if (found == model.config.end()) continue;
    if (key.is_real && found->is_number())
      fields.push_back({lead + std::string(key.gguf), GgufType::f32, found->get<double>()});
    if (key.is_real || !found->is_number_integer()) continue;
    const auto count = found->get<std::int64_t>();
    if (count >= 0 && count <= std::int64_t{0xFFFFFFFF})
      add_count(lead + std::string(key.gguf), static_cast<std::uint64_t>(count));
  }
  if (model.config.is_object()) add_text(kGgufConfigKey, model.config.dump());
  add_text(kOriginKey, to_text(model.origin));
  return fields;
}

std::string gguf_scoring(std::uint64_t function) {
  switch (function) {
    case 1:
    case 3:  // softmax of the chosen logits: the same weights, normalized
      return "softmax";
    case 2:
      return "sigmoid";
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
    if (const auto* count = std::get_if<std::uint64_t>(&field->value); count && !key.is_real)
      config[std::string(key.config)] = *count;
    if (const auto* real = std::get_if<double>(&field->value); real && key.is_real)
      config[std::string(key.config)] = *real;
  }
  return config;
}

}  // namespace fp4moe::checkpoint
