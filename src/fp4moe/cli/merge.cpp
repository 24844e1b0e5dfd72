#include "fp4moe/checkpoint/edit/merge.hpp"

#include <cstdint>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/progress.hpp"

namespace fp4moe::cli {
namespace {

struct MergeOptions {
  std::string path{}, adapter{}, rule{}, out{};
  std::size_t threads = 0;
  std::uint64_t max_memory = 0;
  std::uint64_t max_shard_bytes = checkpoint::kDefaultShardBytes;
  bool experts_only = false, dry_run = false;
};

// Names with or without their format in front: "even.rne" is "mxfp4.even.rne".
Result<Done> set_rule(const std::string& rule, checkpoint::WeightFormat format,
                      checkpoint::MergeOptions& options) {
  if (rule.empty()) return Done{};
  std::string known;
  const auto add = [&known](std::string_view name) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
  };
  if (format == checkpoint::WeightFormat::mxfp4) {
    for (const std::string& spelled : {rule, "mxfp4." + rule})
      if (const auto found = formats::mxfp4_rule_from_name(spelled)) {
        options.mxfp4_rule = *found;
        return Done{};
      }
    for (const formats::Mxfp4RuleRow& row : formats::kMxfp4Rules) add(row.name);
  } else {
    for (const std::string& spelled : {rule, "nvfp4." + rule})
      if (const auto found = formats::nvfp4_rule_from_name(spelled)) {
        options.nvfp4_rule = *found;
        return Done{};
      }
    for (const formats::Nvfp4RuleRow& row : formats::kNvfp4Rules) add(row.name);
  }
  return usage("merge.rule", "there is no such rule")
      .expects(fmt::format("one of {}", known), printable(rule));
}

Json error_json(const checkpoint::MergeError& error) {
  return {{"rounding_rms", error.rounding}, {"change_rms", error.change}};
}

Json report_json(const checkpoint::MergeReport& report, const MergeOptions& options) {
  Json layers = Json::array();
  for (const checkpoint::MergedLayer& layer : report.layers) {
    Json line{{"layer", layer.index},
              {"prefix", layer.prefix},
              {"experts", layer.experts},
              {"raised_global_scales", layer.raised}};
    if (!options.dry_run) line.update(error_json(layer.error));
    layers.push_back(std::move(line));
  }
  Json whole{{"command", "merge"},
             {"out", options.out},
             {"dry_run", options.dry_run},
             {"dialect", report.dialect},
             {"format", name(report.format)},
             {"rule", report.rule},
             {"experts", report.experts},
             {"all_experts", report.all_experts},
             {"raised_global_scales", report.raised},
             {"changed_bytes", report.changed_bytes},
             {"copied_bytes", report.copied_bytes},
             {"files", report.shards},
             {"threads", report.threads},
             {"seconds", report.seconds}};
  if (!options.dry_run) whole.update(error_json(report.error));
  whole["layers"] = std::move(layers);
  whole["notes"] = report.notes;
  return whole;
}

std::string percent(double share) { return fmt::format("{:.3f} %", 100 * share); }

void print(const Io& io, const checkpoint::MergeReport& report, const MergeOptions& options) {
  if (io.json) {
    io.print(report_json(report, options));
    return;
  }
  io.out << fmt::format("{} ({}, {}): {} of {} experts in {} layer{}, {} rewritten, {} copied\n",
                        report.dialect, name(report.format), report.rule, report.experts,
                        report.all_experts, report.layers.size(),
                        report.layers.size() == 1 ? "" : "s", human_bytes(report.changed_bytes),
                        human_bytes(report.copied_bytes));
  if (!options.dry_run) {
    io.out << "layer  experts  adapter's change  rounding error\n";
    for (const checkpoint::MergedLayer& layer : report.layers)
      io.out << fmt::format("{:>5}  {:>7}  {:>16}  {:>14}\n", layer.index, layer.experts,
                            percent(layer.error.change), percent(layer.error.rounding));
  }
  for (const std::string& note : report.notes) io.out << "note: " << note << "\n";
  if (options.dry_run) {
    io.out << "nothing was written (--dry-run)\n";
    return;
  }
  io.out << fmt::format("{}: {} file{} in {:.2f} s\n", options.out, report.shards,
                        report.shards == 1 ? "" : "s", report.seconds);
}

Result<int> run_merge(const MergeOptions& given, const Io& io) {
  if (given.out.empty() && !given.dry_run)
    return usage("merge.out", "say where to write").expects("-o OUT, or --dry-run", "neither");
  const Result<checkpoint::Checkpoint> source = checkpoint::Checkpoint::open(given.path);
  if (!source) return source.why();
  const Result<checkpoint::Adapter> adapter =
      checkpoint::Adapter::open(given.adapter, checkpoint::adapter_targets(*source));
  if (!adapter) return adapter.why();
  checkpoint::MergeOptions options{.experts_only = given.experts_only,
                                   .threads = given.threads == 0 ? io.threads : given.threads,
                                   .max_memory = given.max_memory,
                                   .max_shard_bytes = given.max_shard_bytes};
  if (Result<Done> done = set_rule(given.rule, source->dialect().format, options); !done)
    return done.why();
  const Result<checkpoint::MergeReport> plan = checkpoint::plan_merge(*source, *adapter, options);
  if (!plan) return plan.why();
  if (given.dry_run) {
    print(io, *plan, given);
    return kDone;
  }
  const InterruptGuard guard;
  const Result<checkpoint::MergeReport> report = [&] {
    Progress progress(io, "merge", plan->changed_bytes + plan->copied_bytes);
    options.progress = [&progress](std::uint64_t bytes) { progress.add(bytes); };
    return checkpoint::merge(*source, *adapter, given.out, options);
  }();
  if (!report) return report.why();
  print(io, *report, given);
  return kDone;
}

}  // namespace

Run declare_merge(OptionSet& set) {
  auto options = std::make_shared<MergeOptions>();
  set.add("CHECKPOINT", options->path, "Quantized checkpoint: folder, index or file")
      .as(Form::path)
      .required();
  set.add("ADAPTER", options->adapter, "Folder of a LoRA adapter, as PEFT saves it")
      .as(Form::path)
      .required();
  set.add("-o,--out", options->out, "Folder to create (a file for NAME.gguf)").as(Form::path);
  set.add("--rule", options->rule,
          "How scales are chosen and codes rounded (default: even.rne for MXFP4, reference for "
          "NVFP4)");
  set.add("--experts-only", options->experts_only,
          "Leave out what the adapter changes outside the experts");
  set.add_threads(options->threads);
  set.add("--max-memory", options->max_memory, "Memory to stay within, e.g. 2GB")
      .in_bytes("no limit");
  set.add("--max-shard-size", options->max_shard_bytes, "Largest file, e.g. 5GB").in_bytes("5GB");
  set.add("--dry-run", options->dry_run, "Say what would be written, write nothing");
  return [options](const Io& io) { return run_merge(*options, io); };
}

}  // namespace fp4moe::cli
