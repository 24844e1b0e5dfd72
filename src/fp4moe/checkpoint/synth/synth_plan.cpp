#include "fp4moe/checkpoint/synth/synth_plan.hpp"

#include <algorithm>
#include <cstring>

#include "fp4moe/checkpoint/gguf_blocks.hpp"
#include "fp4moe/checkpoint/synth/synth_expert.hpp"

namespace fp4moe::checkpoint {
namespace {

constexpr std::uint64_t kHeads = 4, kKeyHeads = 2, kHeadDim = 64, kVocabulary = 256;
constexpr std::uint64_t kOthersLayer = ~std::uint64_t{0};  // a seed no MoE layer has

Dialect usual_dialect(const ModelRow& model, WeightFormat format) {
  if (model.model_type == "gpt_oss" && format == WeightFormat::mxfp4) return Dialect::gpt_oss;
  if (model.model_type == "deepseek_v4" && format == WeightFormat::mxfp4)
    return Dialect::deepseek_v4;
  return format == WeightFormat::mxfp4 ? Dialect::compressed_tensors : Dialect::modelopt;
}

const DialectRow* row_for(Dialect dialect, WeightFormat format, std::optional<Grouping> grouping) {
  if (!grouping) return find_row(dialect, format);
  for (const DialectRow& row : dialects())
    if (row.dialect == dialect && row.format == format && row.grouping == *grouping &&
        !row.is_transposed)
      return &row;
  return nullptr;
}

Result<const DialectRow*> choose_row(const SynthOptions& options, const ModelRow& model) {
  WeightFormat format = options.format.value_or(model.format);
  const Dialect dialect = options.dialect.value_or(usual_dialect(model, format));
  const DialectRow* row = row_for(dialect, format, options.grouping);
  if (row == nullptr && !options.format) {  // a dialect with one format brings its own
    format = format == WeightFormat::mxfp4 ? WeightFormat::nvfp4 : WeightFormat::mxfp4;
    row = row_for(dialect, format, options.grouping);
  }
  if (row == nullptr)
    return usage("synth.dialect", "the dialect does not come in this form")
        .expects("a format and grouping of " + std::string(name(dialect)),
                 std::string(name(format)) +
                     (options.grouping ? ", " + std::string(name(*options.grouping)) : ""));
  if (row->grouping == Grouping::fused && model.order == RowOrder::single)
    return usage("synth.dialect", "the dialect fuses gate and up, and the model has no gate")
        .expects("a model with a gate", std::string(model.name))
        .try_this("use modelopt, compressed-tensors or gguf");
  return row;
}

Result<Done> check_sizes(const SynthPlan& plan) {
  constexpr std::uint64_t kMax = 1u << 20;
  std::uint64_t unit = plan.row == nullptr ? 1 : block_size(plan.shape.format);
  if (plan.row != nullptr && plan.row->dialect == Dialect::gguf)
    unit = gguf_block_elements(plan.shape.format);
  const auto fits = [&](std::uint64_t size) {
    return size > 0 && size <= kMax && size % unit == 0;
  };
  if (fits(plan.shape.hidden) && fits(plan.shape.intermediate) && plan.shape.experts > 0 &&
      plan.shape.experts <= kMax)
    return Done{};
  return usage("synth.size", "sizes do not fill whole blocks, or are out of range")
      .expects("hidden and intermediate multiples of " + std::to_string(unit) + ", all from 1 to " +
                   std::to_string(kMax),
               "hidden " + std::to_string(plan.shape.hidden) + ", intermediate " +
                   std::to_string(plan.shape.intermediate) + ", experts " +
                   std::to_string(plan.shape.experts));
}

class OtherMaker {
 public:
  explicit OtherMaker(std::uint64_t seed) : seed_{.seed = seed, .layer = kOthersLayer} {}

  void add(std::string name, tensor::Shape shape) {
    OtherTensor other{.spec = {std::move(name), tensor::DType::bf16, std::move(shape)}};
    const std::uint64_t elements = tensor::element_count(other.spec.shape).value_or(0);
    std::vector<std::uint16_t> values(elements);
    seed_.expert = others_.size();
    fill_normal_bf16(part_seed(seed_, 0), other.spec.shape.back(), values);
    other.bytes.resize(elements * 2);
    std::memcpy(other.bytes.data(), values.data(), other.bytes.size());
    others_.push_back(std::move(other));
  }
  std::vector<OtherTensor> take() { return std::move(others_); }

 private:
  ExpertSeed seed_;
  std::vector<OtherTensor> others_{};
};

}  // namespace

Result<SynthPlan> synth_plan(const SynthOptions& options) {
  const Result<const ModelRow*> known = require_model(options.model);
  if (!known) return known.why();
  SynthPlan plan{.model = *known};
  const ModelRow& model = *plan.model;
  if (options.layers < 1 || options.layers > moe_layer_count(model))
    return usage("synth.layers", "too many MoE layers")
        .expects("1 to " + std::to_string(moe_layer_count(model)), std::to_string(options.layers));
  for (std::uint64_t i = 0; i < options.layers; ++i)
    plan.blocks.push_back(moe_layer_index(model, i));
  plan.shape = {.format = options.format.value_or(model.format),
                .experts = options.experts.value_or(model.experts),
                .hidden = options.hidden.value_or(model.hidden),
                .intermediate = options.intermediate.value_or(model.intermediate),
                .order = model.order,
                .has_bias = model.bias};
  plan.top_k = std::min(model.top_k, plan.shape.experts);
  if (!options.unquantized) {
    const Result<const DialectRow*> row = choose_row(options, model);
    if (!row) return row.why();
    plan.row = *row;
    plan.shape.format = plan.row->format;
    plan.shape.has_bias = model.bias && !plan.row->parts.bias.empty();
    plan.shape.has_input_scale = options.with_input_scales &&
                                 plan.row->format == WeightFormat::nvfp4 &&
                                 !plan.row->parts.input_scale.empty();
  }
  if (Result<Done> sizes = check_sizes(plan); !sizes) return sizes.why();
  return plan;
}

std::vector<OtherTensor> synth_others(const SynthPlan& plan, std::uint64_t seed) {
  const ModelRow& model = *plan.model;
  const std::uint64_t hidden = plan.shape.hidden;
  const bool is_nemotron = model.model_type == "nemotron_h";
  const std::string root(is_nemotron ? "backbone."
                                     : model.prefix.substr(0, model.prefix.find("layers.")));
  OtherMaker maker(seed);
  maker.add(root + (is_nemotron ? "embeddings.weight" : "embed_tokens.weight"),
            {kVocabulary, hidden});
  for (const std::uint64_t block : plan.blocks) {
    const std::string layer = root + "layers." + std::to_string(block) + ".";
    const std::string router = layer_prefix(model.prefix, block) + std::string(model.router);
    maker.add(layer + (is_nemotron ? "norm.weight" : "input_layernorm.weight"), {hidden});
    if (!is_nemotron) {
      const std::string attention = layer + "self_attn.";
      const auto linear = [&](const char* name, std::uint64_t rows, std::uint64_t columns) {
        maker.add(attention + name + ".weight", {rows, columns});
        if (model.bias) maker.add(attention + name + ".bias", {rows});
      };
      linear("q_proj", kHeads * kHeadDim, hidden);
      linear("k_proj", kKeyHeads * kHeadDim, hidden);
      linear("v_proj", kKeyHeads * kHeadDim, hidden);
      linear("o_proj", hidden, kHeads * kHeadDim);
      if (model.model_type == "gpt_oss") maker.add(attention + "sinks", {kHeads});
      maker.add(layer + "post_attention_layernorm.weight", {hidden});
    }
    maker.add(router + ".weight", {plan.shape.experts, hidden});
    if (model.bias) maker.add(router + ".bias", {plan.shape.experts});
  }
  maker.add(root + (is_nemotron ? "norm_f.weight" : "norm.weight"), {hidden});
  maker.add("lm_head.weight", {kVocabulary, hidden});
  return maker.take();
}

Json synth_config(const SynthPlan& plan) {
  const ModelRow& model = *plan.model;
  Json config{{"model_type", model.model_type},
              {"hidden_size", plan.shape.hidden},
              {"num_hidden_layers", plan.blocks.back() + 1}};
  config[std::string(model.experts_key)] = plan.shape.experts;
  config[std::string(model.width_key)] = plan.shape.intermediate;
  config["num_experts_per_tok"] = plan.top_k;
  config["num_attention_heads"] = kHeads;
  config["num_key_value_heads"] = kKeyHeads;
  config["head_dim"] = kHeadDim;
  config["vocab_size"] = kVocabulary;
  config["max_position_embeddings"] = 4096;
  config["rms_norm_eps"] = 1e-5;
  config["rope_theta"] = 150000.0;
  config["hidden_act"] = model.activation == "swigluoai" ? "silu" : std::string(model.activation);
  config["torch_dtype"] = "bfloat16";
  if (model.model_type == "gpt_oss") {
    config["experts_per_token"] = plan.top_k;
    config["swiglu_limit"] = 7.0;
  }
  if (!model.block_pattern.empty())
    config["hybrid_override_pattern"] =
        std::string(model.block_pattern.substr(0, plan.blocks.back() + 1));
  if (model.model_type == "deepseek_v4") {
    config["expert_dtype"] = "fp4";
    config["swiglu_limit"] = 10.0;
  }
  return config;
}

}  // namespace fp4moe::checkpoint
