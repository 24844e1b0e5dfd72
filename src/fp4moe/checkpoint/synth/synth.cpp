#include "fp4moe/checkpoint/synth/synth.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/parallel.hpp"
#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/gguf_fields.hpp"
#include "fp4moe/checkpoint/synth/synth_expert.hpp"
#include "fp4moe/checkpoint/synth/synth_plan.hpp"
#include "fp4moe/checkpoint/write/convert_vector.hpp"
#include "fp4moe/checkpoint/write/quant_config.hpp"
#include "fp4moe/checkpoint/write/tensor_names.hpp"
#include "fp4moe/tensor/files/folder_tree.hpp"
#include "fp4moe/tensor/files/posix.hpp"

namespace fp4moe::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

// Experts in the making, handed from one piece of work to the next.
class ExpertPool {
 public:
  SynthExpert take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return {};
    SynthExpert expert = std::move(idle_.back());
    idle_.pop_back();
    return expert;
  }
  void give_back(SynthExpert expert) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(expert));
  }

 private:
  std::mutex mutex_{};
  std::vector<SynthExpert> idle_{};
};

Error unknown_defect(std::string_view word) {
  std::vector<std::string_view> names;
  for (const SynthDefect& defect : synth_defects()) names.push_back(defect.name);
  return usage("synth.defect", "there is no such defect")
      .expects(fmt::format("one of {}", fmt::join(names, ", ")), "'" + printable(word) + "'")
      .try_this(did_you_mean(word, names));
}

std::string layer_prefix_of(const SynthPlan& plan, std::uint64_t block) {
  const bool own = name_family(plan.row->dialect) != NameFamily::hugging_face;
  return layer_prefix(own ? plan.row->prefix : plan.model->prefix, block);
}

std::uint64_t experts_bytes(const SynthPlan& plan) {
  const ExpertLayout layout = expert_layout(*plan.row, plan.shape, tensor::DType::bf16);
  return layout.bytes() * plan.shape.experts * plan.blocks.size();
}

// As llama.cpp's converter writes them.
void widen_vectors(std::vector<OtherTensor>& others) {
  for (OtherTensor& other : others) {
    if (other.spec.shape.size() != 1 || !is_half(other.spec.dtype)) continue;
    std::vector<std::byte> wide;
    convert_vector(other.spec.dtype, tensor::DType::f32, other.bytes, wide);
    other.bytes = std::move(wide);
    other.spec.dtype = tensor::DType::f32;
  }
}

Result<CheckpointPlan> checkpoint_plan(const SynthPlan& plan, const SynthOptions& options) {
  const DialectRow& row = *plan.row;
  CheckpointPlan out{.row = row};
  if (row.grouping == Grouping::per_expert && !row.joins_gate_up())
    out.row.projections = plan.model->projections;
  const bool is_gguf = row.dialect == Dialect::gguf;
  if (is_gguf) out.bias_dtype = tensor::DType::f32;
  for (const std::uint64_t block : plan.blocks)
    out.layers.push_back(
        {.index = block, .prefix = layer_prefix_of(plan, block), .shape = plan.shape});
  const Json config = synth_config(plan);
  std::vector<OtherTensor> others;
  if (options.with_other_tensors) others = synth_others(plan, options.seed);
  const QuantFacts facts{.has_input_scale = plan.shape.has_input_scale,
                         .ignore = unquantized_modules(others)};
  LayerNumbers numbers;
  for (const std::uint64_t block : plan.blocks)
    numbers[layer_prefix(plan.model->prefix, block)] = block;
  const RenameContext context = rename_context(plan.model->model_type, config, std::move(numbers));
  std::map<std::string, std::string> kept_names;
  if (is_gguf) kept_names = names_to_keep(others, context);
  Result<std::vector<OtherTensor>> renamed =
      rename_others(std::move(others), NameFamily::hugging_face, name_family(row.dialect), context);
  if (!renamed) return renamed.why();
  out.others = *std::move(renamed);
  if (is_gguf) widen_vectors(out.others);
  if (is_gguf) {
    out.gguf_fields =
        gguf_fields({.model_type = std::string(plan.model->model_type),
                     .config = config,
                     .shape = plan.shape,
                     .layers = plan.blocks.back() + 1,
                     .top_k = plan.top_k,
                     .origin = {.prefix = std::string(plan.model->prefix),
                                .projections = projections_text(plan.model->projections),
                                .bias_dtype = plan.shape.has_bias ? "BF16" : "",
                                .names = std::move(kept_names)}});
  } else {
    out.documents = quantized_documents(config, row, facts);
  }
  std::uint64_t total = experts_bytes(plan);
  for (const OtherTensor& other : out.others) total += bytes_of(other);
  out.max_shard_bytes = (total + options.shards - 1) / options.shards;
  return out;
}

Result<std::uint64_t> write_quantized(const SynthPlan& plan, const SynthOptions& options,
                                      const std::string& out, std::uint64_t& shards) {
  Result<CheckpointPlan> checkpoint = checkpoint_plan(plan, options);
  if (!checkpoint) return checkpoint.why();
  Result<CheckpointWriter> writer = CheckpointWriter::create(out, *std::move(checkpoint));
  if (!writer) return writer.why();
  ExpertPool pool;
  const std::uint64_t experts = plan.shape.experts;
  const auto write = [&](std::size_t item) -> Result<Done> {
    if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
    const std::size_t layer = item / experts;
    const std::uint64_t expert = item % experts;
    SynthExpert maker = pool.take();
    Result<ExpertView> view = maker.make({options.seed, plan.blocks[layer], expert}, plan.shape);
    if (!view) return view.why();
    if (Result<Done> done = writer->write_expert(layer, expert, {*view}); !done) return done;
    pool.give_back(std::move(maker));
    if (options.progress) options.progress(writer->layout(layer).bytes());
    return Done{};
  };
  if (Result<Done> done = parallel_for(options.threads, plan.blocks.size() * experts, write); !done)
    return done.why();
  if (Result<Done> done = writer->copy_others(options.threads); !done) return done.why();
  if (Result<Done> done = writer->finish(); !done) return done.why();
  shards = writer->shards();
  return writer->bytes();
}

// The copy may have its name already; the output has not.
Error of_the_copy(Error why) {
  if (!why.message.starts_with(tensor::kNamedBut)) return why;
  why.message.erase(0, tensor::kNamedBut.size());
  why.remedy = why.code == ErrorCode::exhausted ? tensor::kFreeSpace : "";
  return why;
}

// A folder or file that goes with this object.
struct RemovedAtEnd {
  explicit RemovedAtEnd(std::string name) : path(std::move(name)) {}
  RemovedAtEnd(const RemovedAtEnd&) = delete;
  RemovedAtEnd& operator=(const RemovedAtEnd&) = delete;
  ~RemovedAtEnd() { tensor::remove_folder(path); }

  std::string path;
};

}  // namespace

Result<std::uint64_t> synth_bytes(const SynthOptions& options) {
  const Result<SynthPlan> plan = synth_plan(options);
  if (!plan) return plan.why();
  if (plan->row != nullptr) return experts_bytes(*plan);
  const MoeShape& shape = plan->shape;
  return (shape.w13_rows() + shape.intermediate) * shape.hidden * 2 * shape.experts *
         plan->blocks.size();
}

Result<SynthReport> synth(const SynthOptions& options, const std::string& out) {
  const Clock::time_point begin = Clock::now();
  const Result<SynthPlan> plan = synth_plan(options);
  if (!plan) return plan.why();
  if (options.shards == 0) return usage("synth.shards", "a checkpoint has at least one shard");
  const auto known = std::ranges::find_if(
      synth_defects(), [&](const SynthDefect& defect) { return defect.name == options.defect; });
  if (!options.defect.empty() && known == synth_defects().end())
    return unknown_defect(options.defect);
  SynthReport report{.model = options.model,
                     .dialect = plan->row != nullptr ? std::string(plan->row->name) : "bf16",
                     .format = plan->shape.format,
                     .shape = plan->shape,
                     .layers = plan->blocks.size(),
                     .shards = 1};
  // A defect is planted into a copy, so that everything else is as it would have been.
  const std::filesystem::path target(out);
  const std::string whole =
      options.defect.empty()
          ? out
          : (target.parent_path() / (".whole-" + target.filename().string())).string();
  std::optional<RemovedAtEnd> copy;
  if (!options.defect.empty()) {
    tensor::remove_folder(whole);  // of a run that was killed
    copy.emplace(whole);
  }
  const Result<std::uint64_t> bytes = plan->row != nullptr
                                          ? write_quantized(*plan, options, whole, report.shards)
                                          : write_unquantized(*plan, options, whole);
  if (!bytes && copy) return of_the_copy(bytes.why());
  if (!bytes) return bytes.why();
  if (copy)
    if (Result<Done> planted = plant_defect(*plan, options, whole, out); !planted)
      return planted.why();
  report.bytes = *bytes;
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return report;
}

}  // namespace fp4moe::checkpoint
