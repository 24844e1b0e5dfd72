#include "fp4moe/checkpoint/edit/transcode.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/counts.hpp"
#include "fp4moe/cli/dialect_names.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/progress.hpp"

namespace fp4moe::cli {
namespace {

struct TranscodeOptions {
  std::string path{}, to{}, out{};
  std::size_t threads = 0;
  std::uint64_t max_shard_bytes = checkpoint::kDefaultShardBytes;
  bool dry_run = false;
};

struct Sizes {
  std::uint64_t experts = 0, expert_bytes = 0, other_bytes = 0;
};

Sizes sizes_of(const checkpoint::CheckpointPlan& plan) {
  Sizes sizes;
  for (const checkpoint::OutputLayer& layer : plan.layers) {
    sizes.experts += layer.shape.experts;
    sizes.expert_bytes += layer.shape.experts *
                          checkpoint::expert_layout(plan.row, layer.shape, plan.bias_dtype).bytes();
  }
  for (const checkpoint::OtherTensor& other : plan.others)
    sizes.other_bytes += checkpoint::bytes_of(other);
  return sizes;
}

Json to_json(const checkpoint::TranscodeReport& report) {
  return {{"command", "transcode"},
          {"from", report.from},
          {"to", report.to},
          {"format", name(report.format)},
          {"layers", report.layers},
          {"experts", report.experts},
          {"expert_bytes", report.expert_bytes},
          {"other_bytes", report.other_bytes},
          {"exact_scales", report.exact_scales},
          {"files", report.shards},
          {"threads", report.threads},
          {"seconds", report.seconds},
          {"notes", report.notes}};
}

void print(const Io& io, const checkpoint::TranscodeReport& report,
           const TranscodeOptions& options) {
  if (io.json) {
    Json whole = to_json(report);
    whole["out"] = options.out;
    whole["dry_run"] = options.dry_run;
    io.print(whole);
    return;
  }
  io.out << fmt::format(
      "{} -> {} ({}): {}, {}, {}{}\n", report.from, report.to, name(report.format),
      counted(report.layers, "MoE layer"), experts_text(report.experts, report.layers),
      human_bytes(report.expert_bytes),
      report.other_bytes == 0 ? std::string()
                              : " and " + human_bytes(report.other_bytes) + " of other tensors");
  if (report.exact_scales != 0)
    io.out << fmt::format("{} kept exactly in the metadata (1/x cannot be undone)\n",
                          counted(report.exact_scales, "scale"));
  for (const std::string& note : report.notes) io.out << "note: " << note << "\n";
  if (options.dry_run) {
    io.out << "nothing was written (--dry-run)\n";
    return;
  }
  const double bytes = static_cast<double>(report.expert_bytes + report.other_bytes);
  io.out << fmt::format(
      "{}: {} in {:.2f} s, {}/s\n", options.out, counted(report.shards, "file"), report.seconds,
      human_bytes(static_cast<std::uint64_t>(report.seconds > 0 ? bytes / report.seconds : 0)));
}

Result<int> run_transcode(const TranscodeOptions& options, const Io& io) {
  const std::optional<checkpoint::Dialect> target = checkpoint::dialect_from_name(options.to);
  if (!target)
    return usage("transcode.dialect", "there is no such dialect")
        .expects("one of " + dialect_names(), "'" + printable(options.to) + "'")
        .try_this(meant_dialect(options.to));
  if (options.out.empty() && !options.dry_run)
    return usage("transcode.out", "say where to write: -o OUT");
  const Result<checkpoint::Checkpoint> source = checkpoint::Checkpoint::open(options.path);
  if (!source) return source.why();
  // Opening read headers all over the files; their pages are not needed again.
  for (const tensor::MappedFile& file : source->store().files()) file.drop(file.bytes());
  Result<checkpoint::TranscodePlan> plan =
      checkpoint::plan_transcode(*source, *target, options.max_shard_bytes);
  if (!plan) return plan.why();
  const Sizes sizes = sizes_of(plan->checkpoint);
  if (options.dry_run) {
    print(io,
          {.from = std::string(source->dialect().name),
           .to = options.to,
           .format = source->dialect().format,
           .layers = source->layers().size(),
           .experts = sizes.experts,
           .expert_bytes = sizes.expert_bytes,
           .other_bytes = sizes.other_bytes,
           .exact_scales = plan->checkpoint.exact_scales.size(),
           .notes = plan->notes},
          options);
    return kDone;
  }
  const InterruptGuard guard;
  const Result<checkpoint::TranscodeReport> report = [&] {
    Progress progress(io, "transcode", sizes.expert_bytes + sizes.other_bytes);
    return checkpoint::transcode(
        *source, *std::move(plan), options.out,
        {.threads = options.threads == 0 ? io.threads : options.threads,
         .progress = [&progress](std::uint64_t bytes) { progress.add(bytes); }});
  }();
  if (!report) return report.why();
  print(io, *report, options);
  return kDone;
}

}  // namespace

Run declare_transcode(OptionSet& set) {
  auto options = std::make_shared<TranscodeOptions>();
  set.add("PATH", options->path, "Checkpoint: folder, index or file").as(Form::path).required();
  set.add("--to", options->to,
          "Dialect to write: " + dialect_names(checkpoint::Dialect::deepseek_v4) +
              " (deepseek-v4: from deepseek-v4 alone)")
      .required()
      .listed("dialects");
  set.add("-o,--out", options->out, "Folder to create (a file for NAME.gguf)").as(Form::path);
  set.add_threads(options->threads);
  set.add("--max-shard-size", options->max_shard_bytes, "Largest file, e.g. 5GB").in_bytes("5GB");
  set.add("--dry-run", options->dry_run, "Say what would be written, write nothing");
  return [options](const Io& io) { return run_transcode(*options, io); };
}

}  // namespace fp4moe::cli
