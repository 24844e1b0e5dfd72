#include "fp4moe/checkpoint/synth/synth.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/synth/synth_adapter.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/counts.hpp"
#include "fp4moe/cli/dialect_names.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/progress.hpp"

namespace fp4moe::cli {
namespace {

struct SynthOptions {
  checkpoint::SynthOptions synth{.layers = 1};
  std::string dialect{}, format{}, grouping{}, out{};
  std::uint64_t experts = 0, hidden = 0, intermediate = 0;
  std::size_t threads = 0;
  bool experts_only = false, weight_only = false;
  std::string adapter_for{}, adapter_form = "per-expert";
  std::uint64_t rank = 8;
};

// An adapter for a checkpoint that is there already.
Result<int> run_adapter(const SynthOptions& given, const Io& io) {
  const Result<checkpoint::Checkpoint> model = checkpoint::Checkpoint::open(given.adapter_for);
  if (!model) return model.why();
  const checkpoint::SynthAdapterOptions options{
      .form = checkpoint::adapter_form_from_name(given.adapter_form)
                  .value_or(checkpoint::AdapterForm::per_expert),
      .rank = given.rank,
      .alpha = 2 * static_cast<double>(given.rank),
      .seed = given.synth.seed};
  const InterruptGuard guard;
  const Result<checkpoint::SynthAdapterReport> report =
      checkpoint::synth_adapter(checkpoint::adapter_targets(*model), options, given.out);
  if (!report) return report.why();
  if (io.json) {
    io.print({{"command", "synth"},
              {"out", given.out},
              {"adapter_for", given.adapter_for},
              {"form", name(options.form)},
              {"rank", options.rank},
              {"layers", report->layers},
              {"tensors", report->tensors},
              {"bytes", report->bytes},
              {"seed", options.seed}});
    return kDone;
  }
  io.out << fmt::format("{}: LoRA adapter of rank {} for {}, {} ({}), {}\n", given.out,
                        options.rank, counted(report->layers, "MoE layer"),
                        counted(report->tensors, "tensor"), name(options.form),
                        human_bytes(report->bytes));
  return kDone;
}

Result<checkpoint::SynthOptions> resolve(const SynthOptions& given, const Io& io) {
  checkpoint::SynthOptions options = given.synth;
  options.threads = given.threads == 0 ? io.threads : given.threads;
  options.with_other_tensors = !given.experts_only;
  options.with_input_scales = !given.weight_only;
  if (given.dialect == "bf16" || given.dialect == "bf16-fused") {
    options.unquantized =
        given.dialect == "bf16" ? checkpoint::Unquantized::own : checkpoint::Unquantized::fused;
  } else if (!given.dialect.empty()) {
    options.dialect = checkpoint::dialect_from_name(given.dialect);
    if (!options.dialect)
      return usage("synth.dialect", "there is no such dialect")
          .expects("one of " + dialect_names() + ", bf16, bf16-fused",
                   "'" + printable(given.dialect) + "'")
          .try_this(meant_dialect(given.dialect));
  }
  if (!given.format.empty())
    options.format =
        given.format == "mxfp4" ? checkpoint::WeightFormat::mxfp4 : checkpoint::WeightFormat::nvfp4;
  if (!given.grouping.empty())
    options.grouping =
        given.grouping == "fused" ? checkpoint::Grouping::fused : checkpoint::Grouping::per_expert;
  if (given.experts != 0) options.experts = given.experts;
  if (given.hidden != 0) options.hidden = given.hidden;
  if (given.intermediate != 0) options.intermediate = given.intermediate;
  return options;
}

Result<int> run_synth(const SynthOptions& given, const Io& io) {
  if (!given.adapter_for.empty()) return run_adapter(given, io);
  Result<checkpoint::SynthOptions> options = resolve(given, io);
  if (!options) return options.why();
  const Result<std::uint64_t> total = checkpoint::synth_bytes(*options);
  if (!total) return total.why();
  const InterruptGuard guard;
  Result<checkpoint::SynthReport> report = [&] {
    Progress progress(io, "synth", *total);
    options->progress = [&progress](std::uint64_t bytes) { progress.add(bytes); };
    return checkpoint::synth(*options, given.out);
  }();
  if (!report) return report.why();
  if (io.json) {
    io.print({{"command", "synth"},
              {"out", given.out},
              {"model", report->model},
              {"dialect", report->dialect},
              {"format", options->unquantized ? "bf16" : std::string(name(report->format))},
              {"layers", report->layers},
              {"experts", report->shape.experts},
              {"hidden", report->shape.hidden},
              {"intermediate", report->shape.intermediate},
              {"seed", options->seed},
              {"defect", options->defect},
              {"bytes", report->bytes},
              {"shards", report->shards},
              {"seconds", report->seconds}});
    return kDone;
  }
  io.out << fmt::format("{}: {} {}, {} of {}, hidden {}, intermediate {}\n", given.out,
                        report->model, report->dialect, counted(report->layers, "MoE layer"),
                        counted(report->shape.experts, "expert"), report->shape.hidden,
                        report->shape.intermediate);
  io.out << fmt::format("{} in {}, {:.2f} s\n", human_bytes(report->bytes),
                        counted(report->shards, "file"), report->seconds);
  return kDone;
}

std::vector<std::string> adapter_forms() {
  std::vector<std::string> names;
  for (const checkpoint::AdapterFormRow& row : checkpoint::kAdapterForms)
    names.emplace_back(row.name);
  return names;
}

std::vector<std::string> defect_names() {
  std::vector<std::string> names;
  for (const checkpoint::SynthDefect& defect : checkpoint::synth_defects())
    names.emplace_back(defect.name);
  return names;
}

std::string defects_help() {
  std::string text = "Plant a known defect:";
  for (const checkpoint::SynthDefect& defect : checkpoint::synth_defects())
    text += fmt::format("\n{} ({})", defect.name, defect.what);
  return text;
}

}  // namespace

Run declare_synth(OptionSet& set) {
  auto options = std::make_shared<SynthOptions>();
  checkpoint::SynthOptions& synth = options->synth;
  set.add("-o,--out", options->out, "Folder to create (a file for NAME.gguf)")
      .as(Form::path)
      .required();
  set.add("--model", synth.model, "Whose shape to take").show_default().listed("models");
  set.add("--dialect", options->dialect,
          "gpt-oss, openai, modelopt, compressed-tensors, quark, deepseek-v4, gguf, or "
          "bf16, bf16-fused for unquantized weights (default: the model's usual one)")
      .listed("dialects");
  set.add("--format", options->format, "Format of the weights").one_of({"mxfp4", "nvfp4"});
  set.add("--grouping", options->grouping, "Form of the experts, where a dialect has both")
      .one_of({"per-expert", "fused"});
  constexpr std::uint64_t kOne = 1, kMax = 1 << 20;
  set.add("--layers", synth.layers, "MoE layers").between(kOne, kMax).show_default();
  set.add("--experts", options->experts, "Experts, instead of the model's").between(kOne, kMax);
  set.add("--hidden", options->hidden, "Hidden size, instead of the model's").between(kOne, kMax);
  set.add("--intermediate", options->intermediate, "Intermediate size, instead of the model's")
      .between(kOne, kMax);
  set.add("--seed", synth.seed, "Seed; the same weights in every dialect").show_default();
  set.add("--shards", synth.shards, "Approximate number of files; tensors stay whole")
      .between(kOne, kMax)
      .show_default();
  set.add_threads(options->threads);
  set.add("--experts-only", options->experts_only, "No router, attention, norms, embeddings");
  set.add("--weight-only", options->weight_only, "No input scales (NVFP4)");
  set.add("--adapter-for", options->adapter_for, "Make a LoRA adapter for this checkpoint instead")
      .as(Form::path);
  set.add("--rank", options->rank, "Rank of the adapter").between(kOne, kMax).show_default();
  set.add("--adapter-form", options->adapter_form, "How the adapter stores experts")
      .one_of(adapter_forms())
      .show_default();
  set.add("--defect", synth.defect, defects_help()).offering(defect_names());
  return [options](const Io& io) { return run_synth(*options, io); };
}

}  // namespace fp4moe::cli
