#include "fp4moe/checkpoint/edit/quantize.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/parallel.hpp"
#include "fp4moe/checkpoint/edit/gguf_target.hpp"
#include "fp4moe/checkpoint/edit/quantize_expert.hpp"
#include "fp4moe/checkpoint/expert_name.hpp"
#include "fp4moe/checkpoint/gguf_blocks.hpp"
#include "fp4moe/checkpoint/gguf_fields.hpp"
#include "fp4moe/checkpoint/models.hpp"
#include "fp4moe/checkpoint/page_release.hpp"
#include "fp4moe/checkpoint/write/copy_checkpoint.hpp"
#include "fp4moe/checkpoint/write/exact_scales.hpp"
#include "fp4moe/checkpoint/write/quant_config.hpp"
#include "fp4moe/checkpoint/write/tensor_names.hpp"

namespace fp4moe::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

Result<DialectRow> choose_row(const PlainCheckpoint& source, const QuantizeOptions& options) {
  const bool is_gpt_oss = source.model_type() == "gpt_oss";
  const Dialect usual = options.format == WeightFormat::nvfp4 ? Dialect::modelopt
                        : is_gpt_oss                          ? Dialect::gpt_oss
                                                              : Dialect::compressed_tensors;
  const Dialect dialect = options.to.value_or(usual);
  const DialectRow* row = find_row(dialect, options.format);
  if (row == nullptr || dialect == Dialect::deepseek_v4)
    return usage("quantize.dialect", std::string(name(dialect)) + " cannot be written for " +
                                         std::string(name(options.format)))
        .expects(options.format == WeightFormat::nvfp4
                     ? "modelopt, compressed-tensors, quark or gguf"
                     : "gpt-oss, openai, modelopt, compressed-tensors, quark or gguf",
                 std::string(name(dialect)));
  if (dialect == Dialect::quark && is_gpt_oss)  // as Quark writes it
    row = find_row(dialect, options.format, Grouping::per_expert, true);
  DialectRow chosen = *row;
  if (chosen.grouping == Grouping::per_expert && !chosen.joins_gate_up() &&
      source.layers()[0].numbered_names)
    chosen.projections = kNumberedNames;
  return chosen;
}

Result<Done> check_layer(const PlainLayer& layer, const DialectRow& row) {
  const MoeShape& shape = layer.shape;
  const std::uint64_t unit =
      row.dialect == Dialect::gguf ? gguf_block_elements(row.format) : block_size(row.format);
  const auto fills = [unit](std::uint64_t size) { return size != 0 && size % unit == 0; };
  if (!fills(shape.hidden) || !fills(shape.intermediate))
    return usage("quantize.blocks", "the sizes do not fill whole blocks")
        .at(layer.prefix)
        .expects("hidden and intermediate sizes that are multiples of " + std::to_string(unit),
                 "hidden " + std::to_string(shape.hidden) + ", intermediate " +
                     std::to_string(shape.intermediate));
  if (!shape.gated() && row.joins_gate_up())
    return usage("quantize.dialect",
                 std::string(row.name) + " fuses gate and up, and this model has no gate")
        .at(layer.prefix)
        .expects("a gated model", "up and down projections alone");
  return Done{};
}

tensor::DType bias_of(const PlainLayer& layer) {
  if (layer.w2_bias != nullptr) return layer.w2_bias->entry.dtype;
  return layer.down_bias.empty() || layer.down_bias[0] == nullptr ? tensor::DType::bf16
                                                                  : layer.down_bias[0]->entry.dtype;
}

// Gives the names that the way back from GGUF cannot derive.
Result<std::map<std::string, std::string>> add_others(const PlainCheckpoint& source,
                                                      CheckpointPlan& plan) {
  std::unordered_set<const tensor::StoredTensor*> taken;
  for (const PlainLayer& layer : source.layers())
    taken.insert(layer.tensors.begin(), layer.tensors.end());
  std::vector<OtherTensor> others;
  for (const tensor::StoredTensor& tensor : source.store().tensors()) {
    if (taken.contains(&tensor)) continue;
    others.push_back({.spec = {tensor.entry.name, tensor.entry.dtype, tensor.entry.shape},
                      .pieces = {{.tensor = &tensor, .begin = 0, .bytes = tensor.entry.bytes}}});
  }
  const RenameContext context =
      rename_context(source.model_type(), source.config(), layer_numbers(source.layers()));
  std::map<std::string, std::string> kept_names;
  if (plan.row.dialect == Dialect::gguf) kept_names = names_to_keep(others, context);
  Result<std::vector<OtherTensor>> renamed = rename_others(
      std::move(others), NameFamily::hugging_face, name_family(plan.row.dialect), context);
  if (!renamed) return renamed.why();
  plan.others = *std::move(renamed);
  for (const OtherTensor& other : plan.others)
    if (plan.row.dialect == Dialect::gguf && tensor::row(other.spec.dtype).ggml_type < 0)
      return usage("quantize.dialect", "GGUF cannot hold tensors of this type")
          .at(other.spec.name)
          .expects("a type GGUF has", std::string(tensor::name(other.spec.dtype)));
  return kept_names;
}

Result<Done> add_documents(const PlainCheckpoint& source,
                           std::map<std::string, std::string> kept_names, CheckpointPlan& plan) {
  const PlainLayer& first = source.layers()[0];
  if (plan.row.dialect == Dialect::gguf) {
    const PrefixFamily family = prefix_family(first.prefix);
    GgufModel model{
        .model_type = source.model_type(),
        .config = source.config(),
        .shape = plan.layers[0].shape,
        .top_k = source.top_k(),
        .origin = {
            .prefix = std::string(family.before) + "{}" + std::string(family.after),
            .projections = projections_text(first.numbered_names ? kNumberedNames : kProjNames),
            .bias_dtype =
                first.shape.has_bias ? std::string(tensor::name(bias_of(first))) : std::string(),
            .names = std::move(kept_names)}};
    if (Result<Done> done = finish_gguf(plan, std::move(model), source.store()); !done) return done;
  } else {
    plan.documents = quantized_documents(source.config(), plan.row,
                                         {.has_input_scale = plan.layers[0].shape.has_input_scale,
                                          .ignore = unquantized_modules(plan.others)});
  }
  Result<std::vector<FileCopy>> files =
      companion_files(source.store(), {"config.json", "hf_quant_config.json"});
  if (!files) return files.why();
  plan.files = *std::move(files);
  return Done{};
}

class QuantizerPool {
 public:
  QuantizerPool(const PlainCheckpoint& source, const QuantizeOptions& options)
      : source_(source), options_(options) {}
  std::unique_ptr<ExpertQuantizer> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<ExpertQuantizer>(source_, options_);
    std::unique_ptr<ExpertQuantizer> worker = std::move(idle_.back());
    idle_.pop_back();
    return worker;
  }
  void give_back(std::unique_ptr<ExpertQuantizer> worker) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(worker));
  }

 private:
  const PlainCheckpoint& source_;
  const QuantizeOptions& options_;
  std::mutex mutex_{};
  std::vector<std::unique_ptr<ExpertQuantizer>> idle_{};
};

QuantizeError error_of(const ErrorSums& sums) {
  return {.max = sums.max,
          .rms = sums.squared > 0 ? std::sqrt(sums.squared_error / sums.squared) : 0};
}

}  // namespace

Result<CheckpointPlan> plan_quantize(const PlainCheckpoint& source,
                                     const QuantizeOptions& options) {
  const Result<DialectRow> row = choose_row(source, options);
  if (!row) return row.why();
  if (!options.input_scales.empty() && options.format != WeightFormat::nvfp4)
    return usage("quantize.input_scale", "only NVFP4 has input scales")
        .expects("--format nvfp4", "mxfp4");
  CheckpointPlan plan{.row = *row};
  plan.source = &source.store();
  plan.max_shard_bytes = options.max_shard_bytes;
  plan.bias_dtype =
      row->dialect == Dialect::gguf ? tensor::DType::f32 : bias_of(source.layers()[0]);
  for (const PlainLayer& layer : source.layers()) {
    if (Result<Done> fits = check_layer(layer, *row); !fits) return fits.why();
    if (layer.shape.has_bias && bias_of(layer) == tensor::DType::f16 &&
        row->dialect == Dialect::gguf)
      return usage("quantize.dialect", "GGUF biases are float32; F16 ones are not converted")
          .at(layer.prefix);
    OutputLayer result{.index = layer.index, .prefix = layer.prefix, .shape = layer.shape};
    result.shape.format = options.format;
    result.shape.has_input_scale = !options.input_scales.empty();
    if (name_family(row->dialect) != NameFamily::hugging_face)
      result.prefix = layer_prefix(row->prefix, layer.index);
    plan.layers.push_back(std::move(result));
  }
  Result<std::map<std::string, std::string>> kept_names = add_others(source, plan);
  if (!kept_names) return kept_names.why();
  if (Result<Done> done = add_documents(source, *std::move(kept_names), plan); !done)
    return done.why();
  return plan;
}

Result<QuantizeReport> quantize(const PlainCheckpoint& source, const std::string& out,
                                const QuantizeOptions& options) {
  const Clock::time_point begin = Clock::now();
  Result<CheckpointPlan> plan = plan_quantize(source, options);
  if (!plan) return plan.why();
  const bool is_mxfp4 = options.format == WeightFormat::mxfp4;
  QuantizeReport report{
      .to = std::string(plan->row.name),
      .rule = std::string(is_mxfp4 ? name(options.mxfp4_rule) : name(options.nvfp4_rule)),
      .format = options.format,
      .layers = source.layers().size(),
      .threads = std::max<std::size_t>(1, options.threads),
      .notes = plan->notes};
  for (const OtherTensor& other : plan->others) report.other_bytes += bytes_of(other);
  Result<CheckpointWriter> writer = CheckpointWriter::create(out, *std::move(plan));
  if (!writer) return writer.why();

  std::vector<std::pair<std::size_t, std::uint64_t>> items;
  for (std::size_t l = 0; l < source.layers().size(); ++l) {
    for (std::uint64_t e = 0; e < source.layers()[l].shape.experts; ++e) items.emplace_back(l, e);
    for (const tensor::StoredTensor* tensor : source.layers()[l].tensors)
      report.input_bytes += tensor->entry.bytes;
  }
  std::vector<ExpertErrors> errors(items.size());
  QuantizerPool pool(source, options);
  const auto convert = [&](std::size_t i) -> Result<Done> {
    if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
    const auto [l, e] = items[i];
    const OutputLayer& target = writer->plan().layers[l];
    std::unique_ptr<ExpertQuantizer> worker = pool.take();
    const Result<ExpertView> view = worker->quantize(source.layers()[l], e, target.shape);
    if (!view) return view.why();
    const StoredScales& scales = worker->scales(writer->plan().row.global_scale);
    if (Result<Done> done = writer->write_expert(l, e, {*view, &scales}); !done) return done;
    errors[i] = worker->errors();
    pool.give_back(std::move(worker));
    // Reading maps the file page by page; release the pages behind.
    drop_all(source.store());
    if (options.progress) options.progress(writer->layout(l).bytes());
    return Done{};
  };
  if (Result<Done> done = parallel_for(report.threads, items.size(), convert); !done)
    return done.why();
  if (Result<Done> done = writer->copy_others(report.threads, options.progress); !done)
    return done.why();
  if (Result<Done> done = writer->finish(); !done) return done.why();

  ExpertErrors all;
  for (const ExpertErrors& one : errors) {
    all.gate.add(one.gate);
    all.up.add(one.up);
    all.down.add(one.down);
  }
  report.gate = error_of(all.gate);
  report.up = error_of(all.up);
  report.down = error_of(all.down);
  report.experts = items.size();
  report.expert_bytes = writer->bytes() - report.other_bytes;
  report.shards = writer->shards();
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return report;
}

}  // namespace fp4moe::checkpoint
