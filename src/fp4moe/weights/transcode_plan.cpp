#include <algorithm>
#include <cstring>
#include <filesystem>
#include <unordered_set>
#include <utility>

#include "fp4moe/base/text.hpp"
#include "fp4moe/weights/copy_checkpoint.hpp"
#include "fp4moe/weights/exact_scales.hpp"
#include "fp4moe/weights/gguf_blocks.hpp"
#include "fp4moe/weights/gguf_fields.hpp"
#include "fp4moe/weights/models.hpp"
#include "fp4moe/weights/origin.hpp"
#include "fp4moe/weights/quant_config.hpp"
#include "fp4moe/weights/tensor_names.hpp"
#include "fp4moe/weights/transcode.hpp"

namespace fp4moe::weights {
namespace {

using tensor::DType;
using tensor::StoredTensor;

// Dialects that can be written for a format, for remedies.
std::string possible_targets(WeightFormat format, Dialect except) {
  std::string all;
  for (const DialectRow& row : dialects())
    if (row.format == format && row.dialect != except && row.dialect != Dialect::deepseek_v4 &&
        all.find(row.name) == std::string::npos)
      all += (all.empty() ? "" : ", ") + std::string(row.name);
  return all;
}

class Planner {
 public:
  Planner(const Checkpoint& source, Dialect target, Origin origin, ScaleSource scales)
      : source_(source),
        target_(target),
        origin_(std::move(origin)),
        scales_(std::move(scales)),
        config_(read_config(source.store())) {}

  Result<TranscodePlan> plan(std::uint64_t max_shard_bytes) {
    Result<DialectRow> row = choose_row();
    if (!row) return row.why();
    TranscodePlan plan{.checkpoint = {.row = *row}};
    CheckpointPlan& out = plan.checkpoint;
    out.source = &source_.store();
    out.max_shard_bytes = max_shard_bytes;
    for (const MoeLayer& layer : source_.layers())
      if (Result<Done> fits = check_layer(layer, *row); !fits) return fits.why();
    if (Result<Done> done = add_layers(out); !done) return done.why();
    if (Result<Done> done = add_others(out); !done) return done.why();
    Result<ExactScales> records = scales_.records_for(out);
    if (!records) return records.why();
    out.exact_scales.merge(*records);
    if (Result<Done> done = add_documents(plan); !done) return done.why();
    return plan;
  }

 private:
  // As config.json spells it; GGUF has names of its own.
  std::string model_type() const {
    const auto found = config_.find("model_type");
    if (found != config_.end() && found->is_string()) return found->string();
    return source_.dialect().dialect == Dialect::openai ? "gpt_oss" : "";
  }

  Result<DialectRow> choose_row() const {
    const DialectRow& own = source_.dialect();
    const std::string from(own.name), to(name(target_));
    const DialectRow* row = find_row(target_, own.format);
    if (row == nullptr)
      return usage("transcode.format", to + " cannot hold " + std::string(name(own.format)) +
                                           " weights without changing their values")
          .expects("one of " + possible_targets(own.format, own.dialect), to)
          .try_this("To change the format, quantize the unquantised model again");
    const bool native = own.dialect == Dialect::deepseek_v4 || target_ == Dialect::deepseek_v4;
    if (native && own.dialect != target_)
      return usage("transcode.pair",
                   "DeepSeek-V4's dialect mixes FP4 experts with FP8 modules, which the other "
                   "dialects cannot describe")
          .expects("two of " + possible_targets(own.format, Dialect::deepseek_v4),
                   from + " to " + to);
    if (own.dialect == Dialect::gguf && target_ == Dialect::gguf)
      return usage("transcode.pair", "the checkpoint is already in this dialect")
          .expects("one of " + possible_targets(own.format, own.dialect), to);
    DialectRow chosen = *row;
    if (target_ == Dialect::quark && wants_fused_quark())
      for (const DialectRow& other : dialects())
        if (other.dialect == target_ && other.grouping == Grouping::fused) chosen = other;
    if (chosen.grouping == Grouping::per_expert) chosen.projections = projections();
    return chosen;
  }

  // Quark exports gpt-oss with gate and up fused; others, and what was apart before, apart.
  bool wants_fused_quark() const {
    if (source_.dialect().dialect == Dialect::quark)
      return source_.dialect().grouping == Grouping::fused;
    if (!origin_.quark_grouping.empty()) return origin_.quark_grouping == name(Grouping::fused);
    return model_type() == "gpt_oss";
  }

  ProjectionNames projections() const {
    if (source_.dialect().grouping == Grouping::per_expert)
      return uses_numbers() ? kNumberedNames : kProjNames;
    if (!origin_.projections.empty())
      return origin_.projections == projections_text(kNumberedNames) ? kNumberedNames : kProjNames;
    const ModelRow* family = find_family(model_type());
    return family != nullptr ? family->projections : kProjNames;
  }

  bool uses_numbers() const {
    if (source_.layers().empty()) return false;
    const std::string& name = source_.layers()[0].down[0].codes.tensor->entry.name;
    return name.find(".w2") != std::string::npos;
  }

  Result<Done> check_layer(const MoeLayer& layer, const DialectRow& row) const {
    const MoeShape& shape = layer.shape;
    const std::string to(row.name);
    const std::string others = possible_targets(shape.format, target_);
    if (!shape.gated() && row.grouping == Grouping::fused)
      return usage("transcode.no_gate", to + " fuses gate and up, and this model has no gate")
          .at(layer.prefix)
          .expects("a gated model", "up and down projections alone")
          .try_this("Choose one of " + others);
    if (shape.has_bias && row.parts.bias.empty())
      return usage("transcode.bias", to + " has no place for the experts' biases")
          .at(layer.prefix)
          .expects("experts without biases", "biases")
          .try_this("Choose one of " + others);
    if (shape.has_input_scale && row.parts.input_scale.empty())
      return usage("transcode.input_scale", to + " has no place for the experts' input scales")
          .at(layer.prefix)
          .expects("experts without input scales", "input scales")
          .try_this("Keep the dialect, or remove the input scales first");
    const std::uint64_t unit = gguf_block_elements(shape.format);
    if (row.dialect == Dialect::gguf &&
        (shape.hidden % unit != 0 || shape.intermediate % unit != 0))
      return usage("transcode.gguf_blocks", "the sizes do not fill whole GGUF blocks")
          .at(layer.prefix)
          .expects("hidden and intermediate sizes that are multiples of " + std::to_string(unit),
                   "hidden " + std::to_string(shape.hidden) + ", intermediate " +
                       std::to_string(shape.intermediate))
          .try_this("Choose one of " + others);
    return Done{};
  }

  static Json read_config(const tensor::Store& store) {
    if (store.kind() == tensor::StoreKind::gguf) return config_from_gguf(store.gguf_fields());
    const Result<Json> config = read_json_file(store.folder() + "/config.json");
    return config && config->is_object() ? *config : Json::object();
  }

  // The template of the source's own Hugging Face names, as far as they are known.
  std::string prefix_template() const {
    if (name_family(source_.dialect().dialect) == NameFamily::hugging_face &&
        !source_.layers().empty()) {
      const MoeLayer& layer = source_.layers()[0];
      const PrefixFamily family = prefix_family(layer.prefix);
      return std::string(family.before) + "{}" + std::string(family.after);
    }
    if (!origin_.prefix.empty()) return origin_.prefix;
    const ModelRow* family = find_family(model_type());
    return std::string(family != nullptr ? family->prefix : kModelPrefix);
  }

  Result<Done> add_layers(CheckpointPlan& out) {
    const bool keeps_prefix = name_family(source_.dialect().dialect) == NameFamily::hugging_face &&
                              name_family(target_) == NameFamily::hugging_face;
    const std::string theirs = prefix_template();
    const bool is_named_by_dialect = name_family(target_) != NameFamily::hugging_face;
    std::optional<DType> bias;
    for (const MoeLayer& layer : source_.layers()) {
      OutputLayer made{.index = layer.index, .shape = layer.shape};
      made.prefix = keeps_prefix
                        ? layer.prefix
                        : layer_prefix(is_named_by_dialect ? std::string_view(out.row.prefix)
                                                           : std::string_view(theirs),
                                       layer.index);
      out.layers.push_back(std::move(made));
      if (layer.shape.has_bias) bias = layer.up[0].bias.tensor->entry.dtype;
    }
    if (bias) {
      bias_dtype_ = *bias;
      const Result<DType> chosen = choose_bias_dtype(*bias);
      if (!chosen) return chosen.why();
      out.bias_dtype = *chosen;
    }
    return Done{};
  }

  // llama.cpp reads biases as float32, the others keep them as they were: bfloat16 when that is
  // recorded or when every value fits.
  Result<DType> choose_bias_dtype(DType own) const {
    if (target_ == Dialect::gguf) {
      if (own == DType::bf16 || own == DType::f32) return DType::f32;
      return usage("transcode.bias",
                   "GGUF biases are float32, and these cannot be widened exactly here")
          .expects("BF16 or F32", std::string(tensor::name(own)));
    }
    if (source_.dialect().dialect != Dialect::gguf || own != DType::f32) return own;
    if (!origin_.bias_dtype.empty())
      return origin_.bias_dtype == "F32" ? DType::f32 : checked_bf16();
    return all_biases_fit() ? DType::bf16 : DType::f32;
  }
  DType checked_bf16() const { return all_biases_fit() ? DType::bf16 : DType::f32; }

  bool all_biases_fit() const {
    for (const MoeLayer& layer : source_.layers())
      for (const auto* places : {&layer.gate, &layer.up, &layer.down})
        for (const ProjectionPlaces& place : *places) {
          if (place.bias.tensor == nullptr) continue;
          const auto bytes = source_.store().bytes(*place.bias.tensor);
          for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4)
            if (bytes[i] != std::byte{0} || bytes[i + 1] != std::byte{0}) return false;
          source_.store().drop(*place.bias.tensor, bytes);
        }
    return true;
  }

  Result<Done> add_others(CheckpointPlan& out) {
    std::unordered_set<const StoredTensor*> taken;
    for (const MoeLayer& layer : source_.layers())
      for (const auto* places : {&layer.gate, &layer.up, &layer.down})
        for (const ProjectionPlaces& place : *places)
          for (const TensorPlace part :
               {place.codes, place.scales, place.global_scale, place.input_scale, place.bias})
            if (part.tensor != nullptr) taken.insert(part.tensor);
    for (const StoredTensor& tensor : source_.store().tensors()) {
      if (taken.contains(&tensor)) continue;
      OtherTensor other{.spec = {tensor.entry.name, tensor.entry.dtype, tensor.entry.shape},
                        .pieces = {{.tensor = &tensor, .begin = 0, .bytes = tensor.entry.bytes}}};
      if (Result<Done> done = translate_module(out, tensor, other); !done) return done;
      out.others.push_back(std::move(other));
    }
    Result<std::vector<OtherTensor>> renamed =
        rename_others(std::move(out.others), name_family(source_.dialect().dialect),
                      name_family(target_), rename_context(model_type(), config_));
    if (!renamed) return renamed.why();
    out.others = *std::move(renamed);
    for (const OtherTensor& other : out.others) {
      const bool fits = target_ == Dialect::gguf ? tensor::row(other.spec.dtype).ggml_type >= 0
                                                 : tensor::row(other.spec.dtype).in_safetensors;
      if (!fits)
        return usage(target_ == Dialect::gguf ? "transcode.gguf_dtype" : "transcode.dtype",
                     std::string(name(target_)) + " cannot hold tensors of this type")
            .at(other.spec.name)
            .expects(target_ == Dialect::gguf ? "a type GGUF has" : "a type safetensors has",
                     std::string(tensor::name(other.spec.dtype)));
    }
    return Done{};
  }

  // Linear modules outside the experts that are quantised too (attention, shared experts): the
  // same parts under the target's names.
  Result<Done> translate_module(CheckpointPlan& out, const StoredTensor& tensor,
                                OtherTensor& other) {
    const DialectRow& own = source_.dialect();
    if (own.dialect == target_ || own.grouping != Grouping::per_expert) return Done{};
    const std::string& name = tensor.entry.name;
    struct PartPair {
      std::string_view from, to;
      bool is_scalar;
    };
    const PartPair pairs[] = {{own.parts.codes, out.row.parts.codes, false},
                              {own.parts.scales, out.row.parts.scales, false},
                              {own.parts.global_scale, out.row.parts.global_scale, true},
                              {own.parts.input_scale, out.row.parts.input_scale, true}};
    for (const PartPair& pair : pairs) {
      if (pair.from.empty() || !name.ends_with(pair.from)) continue;
      const std::string stem = name.substr(0, name.size() - pair.from.size());
      const StoredTensor* codes = source_.store().find(stem + std::string(own.parts.codes));
      const StoredTensor* scales = source_.store().find(stem + std::string(own.parts.scales));
      if (codes == nullptr || scales == nullptr || codes->entry.dtype != own.codes_dtype) continue;
      if (out.row.grouping != Grouping::per_expert)
        return usage("transcode.quantised_module",
                     "a module outside the experts is quantised, for which " +
                         std::string(out.row.name) + " has no form")
            .at(name)
            .expects("experts alone in FP4", "this module too")
            .try_this("Choose one of " + possible_per_expert(own));
      if (pair.to.empty())
        return usage("transcode.quantised_module",
                     std::string(out.row.name) + " has no place for this part")
            .at(name);
      other.spec.name = stem + std::string(pair.to);
      if (pair.is_scalar && tensor.entry.bytes == sizeof(float)) {
        const ScaleBits bits = scales_.bits_of(tensor, 0, own.global_scale);
        const std::uint32_t stored = bits.in(out.row.global_scale);
        other.pieces.clear();
        other.bytes.resize(sizeof stored);
        std::memcpy(other.bytes.data(), &stored, sizeof stored);
        other.spec.shape =
            out.row.dialect == Dialect::compressed_tensors ? tensor::Shape{1} : tensor::Shape{};
        if (needs_record(bits, out.row.global_scale))
          out.exact_scales[other.spec.name] = bits.in_other(out.row.global_scale);
      }
      return Done{};
    }
    return Done{};
  }

  std::string possible_per_expert(const DialectRow& own) const {
    std::string all;
    for (const DialectRow& row : dialects())
      if (row.format == own.format && row.grouping == Grouping::per_expert &&
          row.dialect != own.dialect && row.dialect != Dialect::deepseek_v4)
        all += (all.empty() ? "" : ", ") + std::string(row.name);
    return all.empty() ? std::string(own.name) : all;
  }

  Result<Done> add_documents(TranscodePlan& plan) {
    CheckpointPlan& out = plan.checkpoint;
    const Origin origin = origin_of(out);
    if (target_ == Dialect::gguf) {
      MoeShape shape = source_.layers().empty() ? MoeShape{} : source_.layers()[0].shape;
      std::uint64_t last = 0;
      for (const MoeLayer& layer : source_.layers()) last = std::max(last, layer.index + 1);
      out.gguf_fields = gguf_fields({.model_type = model_type(),
                                     .config = config_,
                                     .shape = shape,
                                     .layers = source_.config().layers.value_or(last),
                                     .top_k = source_.config().top_k.value_or(0),
                                     .origin = origin});
      plan.notes.emplace_back(
          "the GGUF file has no tokenizer; llama.cpp needs one added before it can run the model");
    } else {
      out.metadata[std::string(kOriginKey)] = to_text(origin);
      add_config(plan);
    }
    if (source_.dialect().dialect == Dialect::gguf)
      plan.notes.emplace_back("a tokenizer inside the GGUF file is not taken over");
    const auto& documents = out.documents;
    std::vector<std::string> written{"config.json", "hf_quant_config.json"};
    for (const auto& document : documents) written.push_back(document.first);
    Result<std::vector<FileCopy>> files = companion_files(source_.store(), written);
    if (!files) return files.why();
    out.files = *std::move(files);
    return Done{};
  }

  Origin origin_of(const CheckpointPlan& out) const {
    Origin origin = origin_;
    origin.prefix = prefix_template();
    origin.projections = projections_text(
        out.row.grouping == Grouping::per_expert ? out.row.projections : projections());
    if (source_.dialect().dialect == Dialect::quark)
      origin.quark_grouping = name(source_.dialect().grouping);
    if (bias_dtype_ && source_.dialect().dialect != Dialect::gguf)
      origin.bias_dtype = tensor::name(*bias_dtype_);
    return origin;
  }

  void add_config(TranscodePlan& plan) {
    CheckpointPlan& out = plan.checkpoint;
    if (source_.dialect().dialect == target_) {  // a new sharding; the documents stay
      for (const char* name : {"config.json", "hf_quant_config.json"})
        if (Result<Json> kept = read_json_file(source_.store().folder() + "/" + name))
          out.documents.emplace_back(name, *std::move(kept));
      return;
    }
    const auto copy_key = [&](const char* from, const char* to) {
      const auto found = config_.find(from);
      if (found != config_.end() && !config_.contains(to)) config_[to] = Json(*found);
    };
    if (target_ == Dialect::openai) {
      copy_key("num_local_experts", "num_experts");
      copy_key("num_experts_per_tok", "experts_per_token");
    } else if (source_.dialect().dialect == Dialect::openai) {
      if (!config_.contains("model_type")) config_["model_type"] = "gpt_oss";
      copy_key("num_experts", "num_local_experts");
      copy_key("experts_per_token", "num_experts_per_tok");
    }
    bool has_input_scale = false;
    for (const OutputLayer& layer : out.layers)
      has_input_scale = has_input_scale || layer.shape.has_input_scale;
    const QuantFacts facts{.has_input_scale = has_input_scale,
                           .ignore = unquantised_modules(out.others)};
    note_lost_settings(plan);
    out.documents = quantised_documents(config_, out.row, facts);
  }

  void note_lost_settings(TranscodePlan& plan) const {
    const auto found = config_.find("quantization_config");
    if (found == config_.end() || !found->is_object()) return;
    const auto is_set = [](const Json& object, const char* key) {
      const auto member = object.is_object() ? object.find(key) : object.end();
      return member != object.end() && !member->is_null();
    };
    if (is_set(*found, "kv_cache_scheme") || is_set(*found, "kv_cache_quant_algo"))
      plan.notes.emplace_back("the configuration's KV cache quantisation is not carried over");
    const auto global = found->find("global_quant_config");
    if (global != found->end() && is_set(*global, "input_tensors"))
      plan.notes.emplace_back("the configuration's activation quantisation is not carried over");
  }

  static constexpr std::string_view kModelPrefix = "model.layers.{}.mlp.";

  const Checkpoint& source_;
  Dialect target_;
  Origin origin_;
  ScaleSource scales_;
  Json config_{};
  std::optional<DType> bias_dtype_{};
};

}  // namespace

Result<TranscodePlan> plan_transcode(const Checkpoint& source, Dialect target,
                                     std::uint64_t max_shard_bytes) {
  if (const auto files = source.store().require_files(); !files) return files.why();
  Result<Origin> origin = read_origin(source.store());
  if (!origin) return origin.why();
  Result<ScaleSource> scales = ScaleSource::open(source);
  if (!scales) return scales.why();
  return Planner(source, target, *std::move(origin), *std::move(scales)).plan(max_shard_bytes);
}

}  // namespace fp4moe::weights
