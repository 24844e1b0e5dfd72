#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/config_document.hpp"
#include "fp4moe/checkpoint/edit/gguf_target.hpp"
#include "fp4moe/checkpoint/edit/transcode.hpp"
#include "fp4moe/checkpoint/edit/transcode_documents.hpp"
#include "fp4moe/checkpoint/edit/transcode_fp4.hpp"
#include "fp4moe/checkpoint/edit/transcode_fp8.hpp"
#include "fp4moe/checkpoint/edit/transcode_row.hpp"
#include "fp4moe/checkpoint/gguf_blocks.hpp"
#include "fp4moe/checkpoint/gguf_fields.hpp"
#include "fp4moe/checkpoint/models.hpp"
#include "fp4moe/checkpoint/origin.hpp"
#include "fp4moe/checkpoint/write/convert_vector.hpp"
#include "fp4moe/checkpoint/write/copy_checkpoint.hpp"
#include "fp4moe/checkpoint/write/exact_scales.hpp"
#include "fp4moe/checkpoint/write/tensor_names.hpp"

namespace fp4moe::checkpoint {
namespace {

using tensor::DType;
using tensor::StoredTensor;

class Planner {
 public:
  Planner(const Checkpoint& source, Dialect target, Origin origin, ScaleSource scales, Json config,
          std::span<const QuantClaim> claims)
      : source_(source),
        target_(target),
        origin_(std::move(origin)),
        scales_(std::move(scales)),
        config_(std::move(config)),
        row_(source, target, origin_, scales_, model_type()),
        fp4_(source, claims),
        fp8_(source, target, claims, fp4_) {}

  Result<TranscodePlan> plan(std::uint64_t max_shard_bytes) {
    Result<DialectRow> row = row_.choose();
    if (!row) return row.why();
    TranscodePlan plan{.checkpoint = {.row = *row}};
    CheckpointPlan& out = plan.checkpoint;
    out.source = &source_.store();
    out.max_shard_bytes = max_shard_bytes;
    for (const LayerTensors& layer : source_.layers())
      if (Result<Done> fits = check_layer(layer, *row); !fits) return fits.why();
    if (Result<Done> done = add_layers(out); !done) return done.why();
    if (Result<Done> done = add_others(out); !done) return done.why();
    Result<ExactScales> records = scales_.records_for(out);
    if (!records) return records.why();
    out.exact_scales.merge(*records);
    if (Result<Done> done = add_documents(out); !done) return done.why();
    plan.notes = std::move(out.notes);
    return plan;
  }

 private:
  // As config.json spells it; GGUF has names of its own.
  std::string model_type() const {
    const auto found = config_.find("model_type");
    const bool is_said = found != config_.end() && found->is_string();
    return std::string(
        model_type_of(is_said ? found->string() : std::string_view(), source_.dialect().dialect));
  }

  Result<Done> check_layer(const LayerTensors& layer, const DialectRow& row) const {
    const MoeShape& shape = layer.shape;
    const std::string to(row.name);
    const std::string others = possible_targets(shape.format, target_);
    if (!shape.gated() && row.joins_gate_up())
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

  // The template of the source's own Hugging Face names, as far as they are known.
  std::string prefix_template() const {
    if (name_family(source_.dialect().dialect) == NameFamily::hugging_face &&
        !source_.layers().empty()) {
      const LayerTensors& layer = source_.layers()[0];
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
    for (const LayerTensors& layer : source_.layers()) {
      OutputLayer result{.index = layer.index, .shape = layer.shape};
      if (out.row.is_transposed && layer.shape.gated())
        result.shape.order = joined_order(model_type()).value_or(layer.shape.order);
      result.prefix = keeps_prefix
                          ? layer.prefix
                          : layer_prefix(is_named_by_dialect ? std::string_view(out.row.prefix)
                                                             : std::string_view(theirs),
                                         layer.index);
      out.layers.push_back(std::move(result));
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
    for (const LayerTensors& layer : source_.layers())
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
    for (const LayerTensors& layer : source_.layers())
      for (const auto* places : {&layer.gate, &layer.up, &layer.down})
        for (const ProjectionPlaces& place : *places)
          for (const TensorPlace part :
               {place.codes, place.scales, place.global_scale, place.input_scale, place.bias})
            if (part.tensor != nullptr) taken.insert(part.tensor);
    for (const StoredTensor& tensor : source_.store().tensors()) {
      if (taken.contains(&tensor)) continue;
      OtherTensor other{.spec = {tensor.entry.name, tensor.entry.dtype, tensor.entry.shape},
                        .pieces = {{.tensor = &tensor, .begin = 0, .bytes = tensor.entry.bytes}}};
      if (is_scalar_of_blocks(tensor)) continue;
      narrow_again(tensor, other);
      if (own_blocks(tensor)) {
        if (Result<Done> done = add_unpacked(out, tensor); !done) return done;
        continue;
      }
      if (Result<Done> done = translate_module(out, tensor, other); !done) return done;
      if (!other.spec.name.empty()) out.others.push_back(std::move(other));
    }
    RenameContext context = rename_context(model_type(), config_, layer_numbers(source_.layers()));
    context.names = origin_.names;
    if (target_ == Dialect::gguf) kept_names_ = names_to_keep(out.others, context);
    Result<std::vector<OtherTensor>> renamed =
        rename_others(std::move(out.others), name_family(source_.dialect().dialect),
                      name_family(target_), context);
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
                     std::string(tensor::name(other.spec.dtype)))
            .try_this(target_ == Dialect::gguf
                          ? "Keep the dialect"
                          : "Start from the safetensors checkpoint, or from a GGUF file whose "
                            "other tensors are BF16, F16 or F32");
    }
    return Done{};
  }

  // A vector that was BF16 or F16 before it was in GGUF, as far as its numbers still are.
  void narrow_again(const StoredTensor& tensor, OtherTensor& other) const {
    const auto found = origin_.dtypes.find(tensor.entry.name);
    if (source_.dialect().dialect != Dialect::gguf || found == origin_.dtypes.end() ||
        tensor.entry.dtype != DType::f32 || tensor.entry.shape.size() != 1)
      return;
    const DType half = found->second == tensor::name(DType::f16) ? DType::f16 : DType::bf16;
    const auto bytes = source_.store().bytes(tensor);
    if (fits_half(half, bytes)) {
      other.stored = DType::f32;
      other.spec.dtype = half;
    }
    source_.store().drop(tensor, bytes);
  }

  // Linear modules outside the experts that are quantized too (attention, shared experts): the
  // same parts under the target's names.
  Result<Done> translate_module(CheckpointPlan& out, const StoredTensor& tensor,
                                OtherTensor& other) {
    const DialectRow& own = source_.dialect();
    if (own.dialect == target_) return Done{};
    if (fp8_.of_scale(tensor.entry.name) != nullptr) return fp8_.check(tensor, other);
    const std::string& name = tensor.entry.name;
    const DialectRow* from = module_row(own.dialect, own.format);
    const DialectRow* to = module_row(target_, own.format);
    if (from == nullptr) return fp8_.check(tensor, other);
    struct PartPair {
      std::string_view from, to;
      bool is_scalar;
    };
    const PartNames none{}, &their = to != nullptr ? to->parts : none;
    const PartPair pairs[] = {{from->parts.codes, their.codes, false},
                              {from->parts.scales, their.scales, false},
                              {from->parts.global_scale, their.global_scale, true},
                              {from->parts.input_scale, their.input_scale, true}};
    for (const PartPair& pair : pairs) {
      if (pair.from.empty() || !name.ends_with(pair.from)) continue;
      const std::string stem = name.substr(0, name.size() - pair.from.size());
      const std::optional<Fp4Module> module = fp4_.find(stem);
      if (!module) continue;
      const bool is_input = pair.is_scalar && pair.from == from->parts.input_scale;
      if (pair.is_scalar)
        if (Result<Done> fine = check_module_scalar(source_.store(), tensor, is_input); !fine)
          return fine;
      if (target_ == Dialect::gguf && (pair.is_scalar || fills_blocks(*module))) {
        if (pack_module(out, stem, *module, pair.from, tensor, other)) return Done{};
      }
      if (to == nullptr)
        return usage("transcode.quantised_module",
                     "a module outside the experts is quantized too, which is not written in " +
                         std::string(out.row.name) + "'s dialect")
            .at(name)
            .expects("experts alone in FP4", "this module too")
            .try_this("Choose one of " + possible_per_expert(own));
      if (pair.to.empty())
        return usage("transcode.quantised_module",
                     std::string(out.row.name) + " has no place for this part")
            .at(name);
      other.spec.name = stem + std::string(pair.to);
      if (pair.is_scalar)
        put_scalar(out, scales_.bits_of(tensor, 0, own.global_scale), is_input, other);
      return Done{};
    }
    return fp8_.check(tensor, other);
  }

  bool fills_blocks(const Fp4Module& module) const {
    return module.k % gguf_block_elements(source_.dialect().format) == 0;
  }

  // A module's part in llama.cpp's form: blocks, .scale and .input_scale. Scales go into the blocks.
  bool pack_module(CheckpointPlan& out, const std::string& stem, const Fp4Module& module,
                   std::string_view part, const StoredTensor& tensor, OtherTensor& other) {
    const DialectRow& own = source_.dialect();
    const DialectRow& from = *module_row(own.dialect, own.format);
    if (part == from.parts.codes) {
      other.pieces.clear();
      other.spec = {stem + ".weight", out.row.codes_dtype, {module.rows, module.k}};
      other.block = BlockPiece{.format = own.format,
                               .codes = module.codes,
                               .scales = module.scales,
                               .rows = module.rows,
                               .k = module.k};
      return true;
    }
    if (part == from.parts.scales) {
      other.spec.name.clear();
      return true;
    }
    const bool is_input = part == from.parts.input_scale;
    const std::string_view their =
        is_input ? out.row.parts.input_scale : out.row.parts.global_scale;
    if (their.empty()) return false;
    other.spec.name = stem + std::string(their);
    put_scalar(out, scales_.bits_of(tensor, 0, own.global_scale), is_input, other);
    other.spec.shape = {1};
    return true;
  }

  // Blocks of a module outside the experts, in a GGUF file.
  bool own_blocks(const StoredTensor& tensor) const {
    const DialectRow& own = source_.dialect();
    return own.dialect == Dialect::gguf && tensor.entry.dtype == own.codes_dtype &&
           tensor.entry.shape.size() == 2 && tensor.entry.bytes != 0 &&
           module_row(target_, own.format) != nullptr && tensor.entry.name.ends_with(".weight");
  }

  Result<Done> add_unpacked(CheckpointPlan& out, const StoredTensor& tensor) {
    const DialectRow& own = source_.dialect();
    const PartNames& parts = module_row(target_, own.format)->parts;
    const auto kept = origin_.names.find(tensor.entry.name);
    std::string stem = kept != origin_.names.end()
                           ? kept->second
                           : hugging_face_name(tensor.entry.name, model_type());
    stem.resize(stem.size() - std::string_view(".weight").size());
    const std::uint64_t rows = tensor.entry.shape[0], k = tensor.entry.shape[1];
    const auto add = [&](BlockPiece::What what, std::string_view part, DType type,
                         std::uint64_t columns) {
      out.others.push_back(
          {.spec = {stem + std::string(part), type, {rows, columns}},
           .block = BlockPiece{
               .what = what, .format = own.format, .codes = &tensor, .rows = rows, .k = k}});
    };
    add(BlockPiece::What::codes, parts.codes, out.row.codes_dtype, k / 2);
    add(BlockPiece::What::scales, parts.scales, out.row.scales_dtype, k / block_size(own.format));
    if (parts.global_scale.empty()) return Done{};
    const tensor::Store& store = source_.store();
    // llama.cpp leaves a scale of 1 out.
    OtherTensor one{.spec = {.name = stem + std::string(parts.global_scale)}};
    const std::string lead = tensor.entry.name.substr(0, tensor.entry.name.size() - 7);
    const StoredTensor* global = store.find(lead + std::string(own.parts.global_scale));
    if (global != nullptr)
      if (Result<Done> fine = check_module_scalar(store, *global, false); !fine) return fine;
    put_scalar(out,
               global != nullptr
                   ? scales_.bits_of(*global, 0, own.global_scale)
                   : scale_bits(std::bit_cast<std::uint32_t>(1.0f), own.global_scale, std::nullopt),
               false, one);
    out.others.push_back(std::move(one));
    if (const StoredTensor* input = store.find(lead + std::string(own.parts.input_scale))) {
      if (Result<Done> fine = check_module_scalar(store, *input, true); !fine) return fine;
      OtherTensor result{.spec = {.name = stem + std::string(parts.input_scale)}};
      put_scalar(out, scales_.bits_of(*input, 0, own.global_scale), true, result);
      out.others.push_back(std::move(result));
    }
    return Done{};
  }

  // Scalars of such a module went with its blocks.
  bool is_scalar_of_blocks(const StoredTensor& tensor) const {
    for (const std::string_view part :
         {source_.dialect().parts.global_scale, source_.dialect().parts.input_scale}) {
      if (part.empty() || !tensor.entry.name.ends_with(part)) continue;
      const std::string lead = tensor.entry.name.substr(0, tensor.entry.name.size() - part.size());
      const StoredTensor* weight = source_.store().find(lead + ".weight");
      if (weight != nullptr && own_blocks(*weight)) return true;
    }
    return false;
  }

  void put_scalar(CheckpointPlan& out, const ScaleBits& bits, bool is_input,
                  OtherTensor& other) const {
    const std::uint32_t stored = bits.in(out.row.global_scale);
    other.pieces.clear();
    const bool is_half =
        is_input && out.row.input_scale_dtype == DType::bf16 && (stored & 0xFFFFu) == 0;
    other.spec.dtype = is_half ? DType::bf16 : DType::f32;
    other.bytes.resize(is_half ? 2 : 4);  // bfloat16 is the upper half of a float32
    std::memcpy(other.bytes.data(), reinterpret_cast<const std::byte*>(&stored) + (is_half ? 2 : 0),
                other.bytes.size());
    other.spec.shape =
        out.row.dialect == Dialect::compressed_tensors ? tensor::Shape{1} : tensor::Shape{};
    if (needs_record(bits, out.row.global_scale))
      out.exact_scales[target_ == Dialect::gguf ? gguf_name(other.spec.name, model_type())
                                                : other.spec.name] =
          bits.in_other(out.row.global_scale);
  }

  std::string possible_per_expert(const DialectRow& own) const {
    std::string all;
    for (const DialectRow& row : dialects())
      if (row.format == own.format && row.grouping == Grouping::per_expert &&
          row.dialect != own.dialect && row.dialect != Dialect::deepseek_v4 &&
          all.find(row.name) == std::string::npos)
        all += (all.empty() ? "" : ", ") + std::string(row.name);
    return all.empty() ? std::string(own.name) : all;
  }

  Result<Done> add_documents(CheckpointPlan& out) {
    const Origin origin = origin_of(out);
    if (target_ == Dialect::gguf) {
      GgufModel model{.model_type = model_type(),
                      .config = config_,
                      .shape = source_.layers().empty() ? MoeShape{} : source_.layers()[0].shape,
                      .layers = source_.config().layers.value_or(0),
                      .top_k = source_.config().top_k.value_or(0),
                      .origin = origin};
      if (Result<Done> done = finish_gguf(out, std::move(model), source_.store()); !done)
        return done;
    } else {
      out.metadata[std::string(kOriginKey)] = to_text(origin);
      if (Result<Done> done = add_config(source_, fp8_, config_, out); !done) return done;
    }
    if (holds_lost_tokenizer(source_.store()))
      out.notes.emplace_back(
          "the tokenizer inside the GGUF file is not taken over: copy tokenizer.json and what "
          "belongs to it from the model's own folder");
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
    const bool is_apart = out.row.grouping == Grouping::per_expert && !out.row.joins_gate_up();
    origin.projections = projections_text(is_apart ? out.row.projections : row_.projections());
    if (source_.dialect().dialect == Dialect::quark) {
      origin.quark_grouping = grouping_text(source_.dialect());
      origin.input_dtype = row_.source_input_dtype() == DType::f32
                               ? ""
                               : std::string(tensor::name(row_.source_input_dtype()));
    }
    if (source_.dialect().dialect == Dialect::modelopt)
      origin.modelopt_grouping = grouping_text(source_.dialect());
    if (target_ == Dialect::gguf) origin.names = kept_names_;
    if (bias_dtype_ && source_.dialect().dialect != Dialect::gguf)
      origin.bias_dtype = tensor::name(*bias_dtype_);
    return origin;
  }

  static constexpr std::string_view kModelPrefix = "model.layers.{}.mlp.";

  const Checkpoint& source_;
  Dialect target_;
  Origin origin_;
  ScaleSource scales_;
  Json config_{};
  std::optional<DType> bias_dtype_{};
  std::map<std::string, std::string> kept_names_{};
  TargetRow row_;
  Fp4Modules fp4_;
  Fp8Modules fp8_;
};

}  // namespace

Result<TranscodePlan> plan_transcode(const Checkpoint& source, Dialect target,
                                     std::uint64_t max_shard_bytes) {
  if (const auto files = source.store().require_files(); !files) return files.why();
  Result<Origin> origin = read_origin(source.store());
  if (!origin) return origin.why();
  Result<ScaleSource> scales = ScaleSource::open(source);
  if (!scales) return scales.why();
  Result<Json> config = read_source_config(source.store(), target);
  if (!config) return config.why();
  const Result<ModelFacts> facts = read_facts(source.store());
  if (!facts) return facts.why();
  for (const QuantClaim& claim : facts->claims)
    if (!claim.transforms.empty() && target != source.dialect().dialect)
      return usage("transcode.transform",
                   fmt::format("{} cannot tell that activations are rotated when the model runs",
                               name(target)))
          .expects("transforms that are folded into the weights", "transform_config with others")
          .try_this("Keep the dialect: its configuration says which module has which transform");
  return Planner(source, target, *std::move(origin), *std::move(scales), *std::move(config),
                 facts->claims)
      .plan(max_shard_bytes);
}

}  // namespace fp4moe::checkpoint
