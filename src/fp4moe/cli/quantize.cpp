#include "fp4moe/checkpoint/edit/quantize.hpp"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/counts.hpp"
#include "fp4moe/cli/dialect_names.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/progress.hpp"

namespace fp4moe::cli {
namespace {

struct QuantizeOptions {
  std::string path{}, format = "mxfp4", to{}, rule{}, input_scale{}, out{};
  bool separate_global_scales = false;
  std::size_t threads = 0;
  std::uint64_t max_shard_bytes = checkpoint::kDefaultShardBytes;
};

// Names with or without their format in front: "even.rne" is "mxfp4.even.rne".
Result<Done> set_rule(const std::string& rule, checkpoint::QuantizeOptions& options) {
  if (rule.empty()) return Done{};
  std::string known;
  if (options.format == checkpoint::WeightFormat::mxfp4) {
    for (const std::string& spelled : {rule, "mxfp4." + rule})
      if (const auto found = formats::mxfp4_rule_from_name(spelled)) {
        options.mxfp4_rule = *found;
        return Done{};
      }
    for (const formats::Mxfp4RuleRow& row : formats::kMxfp4Rules)
      known += (known.empty() ? "" : ", ") + std::string(row.name);
  } else {
    for (const std::string& spelled : {rule, "nvfp4." + rule})
      if (const auto found = formats::nvfp4_rule_from_name(spelled)) {
        options.nvfp4_rule = *found;
        return Done{};
      }
    for (const formats::Nvfp4RuleRow& row : formats::kNvfp4Rules)
      known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return usage("quantize.rule", "there is no such rule")
      .expects("one of " + known, "'" + printable(rule) + "'");
}

bool is_scale(double value) {
  const auto single = static_cast<float>(value);
  return std::isfinite(single) && single > 0;
}

// A number for all projections, or a JSON file of module patterns and numbers.
Result<Done> set_input_scales(const std::string& given, checkpoint::QuantizeOptions& options) {
  if (given.empty()) return Done{};
  const auto bad = [&](std::string_view found) {
    return usage("quantize.input_scale", "not an input scale")
        .at(given)
        .expects("a positive number, or a JSON file {\"pattern\": number, ...}", found);
  };
  char* end = nullptr;
  const double value = std::strtod(given.c_str(), &end);
  if (end != given.c_str() && *end == '\0') {
    if (!is_scale(value)) return bad("a number that cannot scale anything");
    options.input_scales = {{"*", static_cast<float>(value)}};
    return Done{};
  }
  const Result<Json> file = read_json_file(given);
  if (!file) return file.why();
  if (!file->is_object() || file->empty()) return bad("something else in the file");
  for (const auto& [pattern, scale] : file->items()) {
    if (!scale.is_number() || !is_scale(scale.get<double>()))
      return bad("a bad value for " + pattern);
    options.input_scales.emplace_back(pattern, static_cast<float>(scale.get<double>()));
  }
  return Done{};
}

Result<checkpoint::QuantizeOptions> resolve(const QuantizeOptions& given, const Io& io) {
  checkpoint::QuantizeOptions options{.format = given.format == "mxfp4"
                                                    ? checkpoint::WeightFormat::mxfp4
                                                    : checkpoint::WeightFormat::nvfp4,
                                      .separate_global_scales = given.separate_global_scales,
                                      .threads = given.threads == 0 ? io.threads : given.threads,
                                      .max_shard_bytes = given.max_shard_bytes};
  if (!given.to.empty()) {
    options.to = checkpoint::dialect_from_name(given.to);
    if (!options.to)
      return usage("quantize.dialect", "there is no such dialect")
          .expects("one of " + dialect_names(), "'" + printable(given.to) + "'")
          .try_this(meant_dialect(given.to));
  }
  if (Result<Done> done = set_rule(given.rule, options); !done) return done.why();
  if (Result<Done> done = set_input_scales(given.input_scale, options); !done) return done.why();
  return options;
}

Json to_json(const checkpoint::QuantizeError& error) {
  return {{"max_relative", error.max}, {"rms_relative", error.rms}};
}

void print(const Io& io, const checkpoint::QuantizeReport& report, const std::string& out) {
  const bool has_gate = report.gate.rms != 0;
  if (io.json) {
    Json errors{{"up", to_json(report.up)}, {"down", to_json(report.down)}};
    if (has_gate) errors["gate"] = to_json(report.gate);
    io.print({{"command", "quantize"},
              {"out", out},
              {"to", report.to},
              {"format", name(report.format)},
              {"rule", report.rule},
              {"layers", report.layers},
              {"experts", report.experts},
              {"input_bytes", report.input_bytes},
              {"expert_bytes", report.expert_bytes},
              {"other_bytes", report.other_bytes},
              {"files", report.shards},
              {"threads", report.threads},
              {"seconds", report.seconds},
              {"errors", errors},
              {"notes", report.notes}});
    return;
  }
  io.out << fmt::format("{} ({}) as {}: {}, {}, {} -> {}\n", name(report.format), report.rule,
                        report.to, counted(report.layers, "MoE layer"),
                        experts_text(report.experts, report.layers),
                        human_bytes(report.input_bytes), human_bytes(report.expert_bytes));
  const auto line = [&](const char* what, const checkpoint::QuantizeError& error) {
    io.out << fmt::format("{:<5} rms error {:.4f}, largest {:.4f} of its block's maximum\n", what,
                          error.rms, error.max);
  };
  if (has_gate) line("gate", report.gate);
  line("up", report.up);
  line("down", report.down);
  io.out << fmt::format(
      "{}: {} in {:.2f} s, {}/s read\n", out, counted(report.shards, "file"), report.seconds,
      human_bytes(static_cast<std::uint64_t>(
          report.seconds > 0 ? static_cast<double>(report.input_bytes) / report.seconds : 0)));
  for (const std::string& note : report.notes) io.out << "note: " << note << "\n";
}

Result<int> run_quantize(const QuantizeOptions& given, const Io& io) {
  Result<checkpoint::QuantizeOptions> options = resolve(given, io);
  if (!options) return options.why();
  const Result<checkpoint::PlainCheckpoint> source = checkpoint::PlainCheckpoint::open(given.path);
  if (!source) return source.why();
  const Result<checkpoint::CheckpointPlan> plan = checkpoint::plan_quantize(*source, *options);
  if (!plan) return plan.why();
  std::uint64_t total = 0;
  for (const checkpoint::OutputLayer& layer : plan->layers)
    total += layer.shape.experts *
             checkpoint::expert_layout(plan->row, layer.shape, plan->bias_dtype).bytes();
  for (const checkpoint::OtherTensor& other : plan->others) total += checkpoint::bytes_of(other);
  const InterruptGuard guard;
  const Result<checkpoint::QuantizeReport> report = [&] {
    Progress progress(io, "quantize", total);
    options->progress = [&progress](std::uint64_t bytes) { progress.add(bytes); };
    return checkpoint::quantize(*source, given.out, *options);
  }();
  if (!report) return report.why();
  print(io, *report, given.out);
  return kDone;
}

}  // namespace

Run declare_quantize(OptionSet& set) {
  auto options = std::make_shared<QuantizeOptions>();
  set.add("PATH", options->path, "Unquantized checkpoint: folder, index or file")
      .as(Form::path)
      .required();
  set.add("-o,--out", options->out, "Folder to create (a file for NAME.gguf)")
      .as(Form::path)
      .required();
  set.add("--format", options->format, "mxfp4 or nvfp4").one_of({"mxfp4", "nvfp4"}).show_default();
  set.add("--to", options->to,
          "Dialect (default: gpt-oss for gpt-oss models, else compressed-tensors for "
          "mxfp4 and modelopt for nvfp4)")
      .listed("dialects");
  set.add("--rule", options->rule,
          "How scales are chosen and codes rounded, e.g. even.rne, ceil6.rne, floor4.rne "
          "(default: even.rne)");
  set.add("--input-scale", options->input_scale,
          "NVFP4: a number, or a JSON file of module patterns and numbers (default: weights "
          "only)")
      .as(Form::number);
  set.add("--separate-global-scales", options->separate_global_scales,
          "NVFP4: gate and up each get their own global scale");
  set.add_threads(options->threads);
  set.add("--max-shard-size", options->max_shard_bytes, "Largest file, e.g. 5GB").in_bytes("5GB");
  return [options](const Io& io) { return run_quantize(*options, io); };
}

}  // namespace fp4moe::cli
