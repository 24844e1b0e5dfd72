#include "fp4moe/checkpoint/edit/merge.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/parallel.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/edit/merge_expert.hpp"
#include "fp4moe/checkpoint/page_release.hpp"
#include "fp4moe/checkpoint/write/copy_checkpoint.hpp"

namespace fp4moe::checkpoint {
namespace {

using tensor::StoredTensor;

constexpr std::uint64_t kMergeChunk = std::uint64_t{1} << 20;     // written at a time
constexpr std::uint64_t kMergeProgram = std::uint64_t{64} << 20;  // the program and its tables

// From this share of the adapter's change on, rounding is worth a warning: a change that is lost
// altogether gives 1.
constexpr double kMuchLost = 0.8;

bool keeps_apart(const LayerTensors& layer) { return layer.row->grouping == Grouping::per_expert; }

// A run of an expert's bytes that a merge may change, and where it lies.
struct ChangeableRun {
  std::size_t run = 0;  // of the layout
  const StoredTensor* tensor = nullptr;
  std::uint64_t begin = 0;  // in the tensor
};

Projection first_projection(Matrix matrix) {
  return matrix == Matrix::down ? Projection::down
         : matrix == Matrix::up ? Projection::up
                                : Projection::gate;
}

// Codes, scales and global scales; biases and input scales stay what they are. A global scale that
// all experts share stays, too.
std::vector<ChangeableRun> changeable_runs(const LayerTensors& layer, const ExpertLayout& layout,
                                           std::uint64_t expert) {
  std::vector<ChangeableRun> runs;
  for (std::size_t i = 0; i < layout.runs.size(); ++i) {
    const Run& run = layout.runs[i];
    const Projection which = run.matrix == Matrix::gate_up && !layer.shape.gated()
                                 ? Projection::up
                                 : first_projection(run.matrix);
    const ProjectionPlaces& places = layer.places(which, expert);
    const StoredTensor* tensor = run.part == Part::codes          ? places.codes.tensor
                                 : run.part == Part::scales       ? places.scales.tensor
                                 : run.part == Part::global_scale ? places.global_scale.tensor
                                                                  : nullptr;
    const std::uint64_t holders = keeps_apart(layer) ? 1 : layer.shape.experts;
    if (tensor == nullptr || tensor->entry.bytes != run.bytes() * holders) continue;
    runs.push_back({i, tensor, keeps_apart(layer) ? 0 : expert * run.bytes()});
  }
  return runs;
}

struct MergeItem {
  std::size_t layer = 0;
  std::uint64_t expert = 0;
};

// Experts to be written by hand: those the adapter names, and all that share their tensors.
std::vector<MergeItem> merge_items(const Checkpoint& source, const Adapter& adapter) {
  std::vector<MergeItem> items;
  for (std::size_t l = 0; l < source.layers().size(); ++l) {
    if (!adapter.touches(l)) continue;
    const LayerTensors& layer = source.layers()[l];
    for (std::uint64_t e = 0; e < layer.shape.experts; ++e)
      if (!keeps_apart(layer) || adapter.touches(l, e)) items.push_back({l, e});
  }
  return items;
}

std::uint64_t largest_rank(const Checkpoint& source, const Adapter& adapter) {
  std::uint64_t rank = 0;
  for (std::size_t l = 0; l < source.layers().size(); ++l)
    for (std::uint64_t e = 0; e < source.layers()[l].shape.experts; ++e)
      for (const Projection which : {Projection::gate, Projection::up, Projection::down})
        rank = std::max(rank, adapter.place(l, which, e).rank());
  return rank;
}

Result<std::size_t> merge_threads(const Checkpoint& source, const Adapter& adapter,
                                  const MergeOptions& options) {
  const std::size_t threads = std::max<std::size_t>(1, options.threads);
  if (options.max_memory == 0) return threads;
  const std::uint64_t rank = largest_rank(source, adapter);
  std::uint64_t each = 0;
  for (const LayerTensors& layer : source.layers())
    each = std::max(each, ExpertMerger::memory(layer.shape, rank) + 2 * kMergeChunk);
  if (kMergeProgram + each > options.max_memory)
    return error(ErrorCode::exhausted, "merge.memory",
                 "even one expert at a time needs more memory")
        .at("--max-memory")
        .expects(fmt::format("at least {} bytes ({})", kMergeProgram + each,
                             human_bytes(kMergeProgram + each)),
                 fmt::format("{} bytes", options.max_memory))
        .try_this("Allow more, or merge on a machine that has it");
  return static_cast<std::size_t>(
      std::min<std::uint64_t>(threads, (options.max_memory - kMergeProgram) / each));
}

class MergerPool {
 public:
  MergerPool(const Checkpoint& source, const Adapter& adapter, const ScaleSource& scales,
             const MergeOptions& options)
      : source_(source), adapter_(adapter), scales_(scales), options_(options) {}

  std::unique_ptr<ExpertMerger> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<ExpertMerger>(source_, adapter_, scales_, options_);
    std::unique_ptr<ExpertMerger> merger = std::move(idle_.back());
    idle_.pop_back();
    return merger;
  }
  void give_back(std::unique_ptr<ExpertMerger> merger) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(merger));
  }

 private:
  const Checkpoint& source_;
  const Adapter& adapter_;
  const ScaleSource& scales_;
  const MergeOptions& options_;
  std::mutex mutex_{};
  std::vector<std::unique_ptr<ExpertMerger>> idle_{};
};

// The result for one expert.
struct Outcome {
  MergeSums sums{};
  std::uint64_t raised = 0;
  bool changed = false;
};

class MergeRun {
 public:
  MergeRun(const Checkpoint& source, const Adapter& adapter, CheckpointWriter& writer)
      : source_(source), adapter_(adapter), writer_(writer) {
    for (const LayerTensors& layer : source.layers())
      layouts_.push_back(expert_layout(*layer.row, layer.shape, tensor::DType::bf16));
  }

  Result<Outcome> write_expert(const MergeItem& item, ExpertMerger& merger) const {
    const LayerTensors& layer = source_.layers()[item.layer];
    const ExpertLayout& layout = layouts_[item.layer];
    const std::vector<ChangeableRun> runs = changeable_runs(layer, layout, item.expert);
    if (!adapter_.touches(item.layer, item.expert)) {
      for (const ChangeableRun& run : runs)
        if (Result<Done> done = copy_run(layout.runs[run.run], run); !done) return done.why();
      return Outcome{};
    }
    const Result<MergedExpert> merged = merger.merge(item.layer, item.expert);
    if (!merged) return merged.why();
    Outcome outcome{.sums = merged->sums, .raised = merged->raised};
    for (const ChangeableRun& run : runs) {
      const Matrix matrix = layout.runs[run.run].matrix;
      const bool both = matrix == Matrix::gate_up;
      const bool changed =
          both ? merged->is_changed(Projection::gate) || merged->is_changed(Projection::up)
               : merged->is_changed(first_projection(matrix));
      outcome.changed = outcome.changed || changed;
      if (Result<Done> done =
              changed ? lay_out_run(layout, run, *merged) : copy_run(layout.runs[run.run], run);
          !done)
        return done.why();
    }
    return outcome;
  }

  // Bytes of one expert's runs, for progress.
  std::uint64_t bytes(const MergeItem& item) const {
    std::uint64_t total = 0;
    for (const ChangeableRun& run :
         changeable_runs(source_.layers()[item.layer], layouts_[item.layer], item.expert))
      total += layouts_[item.layer].runs[run.run].bytes();
    return total;
  }

 private:
  std::size_t number(const StoredTensor& tensor) const {
    return static_cast<std::size_t>(&tensor - source_.store().tensors().data());
  }

  Result<Done> copy_run(const Run& run, const ChangeableRun& place) const {
    return writer_.write_other(
        number(*place.tensor), place.begin,
        source_.store().bytes(*place.tensor).subspan(place.begin, run.bytes()));
  }

  Result<Done> lay_out_run(const ExpertLayout& layout, const ChangeableRun& place,
                           const MergedExpert& merged) const {
    const Run& run = layout.runs[place.run];
    const std::uint64_t count = std::max<std::uint64_t>(1, kMergeChunk / run.row_bytes);
    std::vector<std::byte> piece(std::min(count, run.rows) * run.row_bytes);
    for (std::uint64_t row = 0; row < run.rows; row += std::min(count, run.rows - row)) {
      const Step step{.run = place.run, .rows = {row, row + std::min(count, run.rows - row)}};
      const std::span<std::byte> bytes = std::span(piece).first(step.rows.size() * run.row_bytes);
      lay_out_step(layout, step, {merged.view, &merged.scales}, bytes);
      if (Result<Done> done =
              writer_.write_other(number(*place.tensor), place.begin + row * run.row_bytes, bytes);
          !done)
        return done;
    }
    return Done{};
  }

  const Checkpoint& source_;
  const Adapter& adapter_;
  CheckpointWriter& writer_;
  std::vector<ExpertLayout> layouts_{};
};

// The source's tensors; those with changed experts are to be written by hand.
Result<CheckpointPlan> plan_tensors(const Checkpoint& source, std::span<const MergeItem> items,
                                    const MergeOptions& options) {
  Result<CheckpointPlan> plan = plan_copy(source.store(), {}, options.max_shard_bytes);
  if (!plan) return plan.why();
  for (const MergeItem& item : items) {
    const LayerTensors& layer = source.layers()[item.layer];
    const ExpertLayout layout = expert_layout(*layer.row, layer.shape, tensor::DType::bf16);
    for (const ChangeableRun& run : changeable_runs(layer, layout, item.expert))
      plan->others[static_cast<std::size_t>(run.tensor - source.store().tensors().data())]
          .pieces.clear();
  }
  for (const tensor::Metadata& metadata : source.store().metadata())
    for (const auto& [key, value] : metadata)
      if (key != kExactScalesKey) plan->metadata.emplace(key, value);
  return plan;
}

void summarize(const Checkpoint& source, std::span<const MergeItem> items,
               std::span<const Outcome> outcomes, MergeReport& report) {
  MergeSums all, here;
  report.layers.clear();
  report.experts = report.raised = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const LayerTensors& layer = source.layers()[items[i].layer];
    if (i == 0 || items[i].layer != items[i - 1].layer) {
      here = {};
      report.layers.push_back({.index = layer.index, .prefix = layer.prefix});
    }
    MergedLayer& line = report.layers.back();
    here.add(outcomes[i].sums);
    all.add(outcomes[i].sums);
    line.error = here.error();
    line.experts += outcomes[i].changed ? 1 : 0;
    line.raised += outcomes[i].raised;
    report.experts += outcomes[i].changed ? 1 : 0;
    report.raised += outcomes[i].raised;
  }
  report.error = all.error();
  if (report.raised != 0)
    report.notes.push_back(fmt::format("{} global scale{} had to grow for larger weights",
                                       report.raised, report.raised == 1 ? "" : "s"));
  if (report.experts != 0 && report.error.rounding >= kMuchLost * report.error.change)
    report.notes.push_back(
        fmt::format("rounding is {:.0f} % of the adapter's change: run the adapter unmerged, or "
                    "merge it into the unquantized model and quantize that",
                    100 * report.error.rounding / report.error.change));
}

}  // namespace

Result<MergeReport> plan_merge(const Checkpoint& source, const Adapter& adapter,
                               const MergeOptions& options) {
  if (const auto files = source.store().require_files(); !files) return files.why();
  const DialectRow& row = source.dialect();
  const bool is_mxfp4 = row.format == WeightFormat::mxfp4;
  if (!is_mxfp4 && options.nvfp4_rule == formats::Nvfp4Rule::no_global)
    return usage("merge.rule", "this rule ignores the global scales that the checkpoint has")
        .expects("nvfp4.reference or nvfp4.flashinfer_exact", name(options.nvfp4_rule));
  MergeReport report{
      .dialect = std::string(row.name),
      .rule = std::string(is_mxfp4 ? name(options.mxfp4_rule) : name(options.nvfp4_rule)),
      .format = row.format};
  for (std::size_t l = 0; l < source.layers().size(); ++l) {
    const LayerTensors& layer = source.layers()[l];
    report.all_experts += layer.shape.experts;
    if (!adapter.touches(l)) continue;
    MergedLayer line{.index = layer.index, .prefix = layer.prefix};
    for (std::uint64_t e = 0; e < layer.shape.experts; ++e)
      line.experts += adapter.touches(l, e) ? 1 : 0;
    report.experts += line.experts;
    report.layers.push_back(std::move(line));
  }
  if (report.layers.empty())
    return usage("merge.nothing", "the adapter changes no expert")
        .in(adapter.folder())
        .expects("lora_A and lora_B of experts",
                 fmt::format("{} other modules", adapter.other_modules().size()))
        .try_this("Merge it with PEFT: the modules outside the experts are not quantized here");
  if (!adapter.other_modules().empty()) {
    if (!options.experts_only)
      return usage("merge.other_modules", "the adapter also changes modules outside the experts")
          .in(adapter.folder())
          .expects("changes of experts alone",
                   fmt::format("{} other modules, {} the first", adapter.other_modules().size(),
                               printable(adapter.other_modules()[0])))
          .try_this("With --experts-only they are left out; merge them with PEFT");
    report.notes.push_back(fmt::format("{} module{} outside the experts not merged, as asked for",
                                       adapter.other_modules().size(),
                                       adapter.other_modules().size() == 1 ? "" : "s"));
  }
  const Result<std::size_t> threads = merge_threads(source, adapter, options);
  if (!threads) return threads.why();
  report.threads = *threads;
  std::uint64_t all = 0;
  for (const StoredTensor& tensor : source.store().tensors()) all += tensor.entry.bytes;
  const Result<CheckpointPlan> plan = plan_tensors(source, merge_items(source, adapter), options);
  if (!plan) return plan.why();
  for (const OtherTensor& other : plan->others) report.copied_bytes += bytes_of(other);
  report.changed_bytes = all - report.copied_bytes;
  return report;
}

Result<MergeReport> merge(const Checkpoint& source, const Adapter& adapter, const std::string& out,
                          const MergeOptions& options) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  Result<MergeReport> report = plan_merge(source, adapter, options);
  if (!report) return report.why();
  const std::vector<MergeItem> items = merge_items(source, adapter);
  Result<ScaleSource> scales = ScaleSource::open(source);
  if (!scales) return scales.why();
  Result<CheckpointPlan> plan = plan_tensors(source, items, options);
  if (!plan) return plan.why();
  Result<CheckpointWriter> writer = CheckpointWriter::create(out, *std::move(plan));
  if (!writer) return writer.why();

  const MergeRun run(source, adapter, *writer);
  MergerPool pool(source, adapter, *scales, options);
  std::vector<Outcome> outcomes(items.size());
  const auto merge_one = [&](std::size_t i) -> Result<Done> {
    if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
    std::unique_ptr<ExpertMerger> merger = pool.take();
    Result<Outcome> outcome = run.write_expert(items[i], *merger);
    if (!outcome) return outcome.why();
    outcomes[i] = *outcome;
    merger->release();
    pool.give_back(std::move(merger));
    // Reading maps the files page by page; release the pages behind.
    drop_all(source.store());
    drop_all(adapter.store());
    if (options.progress) options.progress(run.bytes(items[i]));
    return Done{};
  };
  if (Result<Done> done = parallel_for(report->threads, items.size(), merge_one); !done)
    return done.why();
  const std::size_t copiers = std::min<std::size_t>(report->threads, 4);
  if (Result<Done> done = writer->copy_others(copiers, options.progress); !done) return done.why();
  if (Result<Done> done = writer->finish(); !done) return done.why();
  summarize(source, items, outcomes, *report);
  report->shards = writer->shards();
  report->seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return report;
}

}  // namespace fp4moe::checkpoint
