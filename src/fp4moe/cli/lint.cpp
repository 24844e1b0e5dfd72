// fp4moe lint: what is wrong with a checkpoint, the worst first, each with what to do about it; and
// the repair of what can be repaired, into a new checkpoint.
#include "fp4moe/checkpoint/lint/lint.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/shell_word.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/edit/fix.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/counts.hpp"
#include "fp4moe/cli/errors_toml.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/progress.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::cli {

Run declare_lint(OptionSet& set);

namespace {

using checkpoint::Finding;
using checkpoint::FixReport;
using checkpoint::LintReport;

struct LintOptions {
  std::string path{}, out{};
  std::vector<std::string> policies{};
  bool deep = false, verbose = false, force = false;
  std::size_t threads = 0;
};

constexpr std::size_t kLinesPerCode = 5;

// "model-00001-of-00002.safetensors, layer 3 expert 0 model.layers.3...": the file as it is called
// inside the checkpoint.
std::string place(const Finding& finding, const std::string& checkpoint) {
  std::string_view file = finding.file;
  if (file.starts_with(checkpoint + "/")) file.remove_prefix(checkpoint.size() + 1);
  std::string text = file == checkpoint ? "" : printable(file);
  const auto add = [&text](std::string_view separator, const std::string& part) {
    text += fmt::format("{}{}", text.empty() ? "" : separator, part);
  };
  if (finding.layer) add(", ", fmt::format("layer {}", *finding.layer));
  if (finding.expert) add(" ", fmt::format("expert {}", *finding.expert));
  if (!finding.tensor.empty()) add(finding.layer ? " " : ", ", printable(finding.tensor));
  return text;
}

std::string_view what_of(std::string_view code) {
  for (const checkpoint::LintRule& rule : checkpoint::lint_rules()) {
    if (rule.code == code) return rule.what;
  }
  return {};
}

// One line for each code, its findings below it, and what to do.
void print_findings(const Io& io, const LintReport& report, bool verbose) {
  for (std::size_t begin = 0; begin < report.findings.size();) {
    const Finding& first = report.findings[begin];
    std::size_t end = begin;
    while (end < report.findings.size() && report.findings[end].code == first.code) ++end;
    const std::uint64_t count = report.counts.at(first.code);
    const std::string_view what = what_of(first.code);
    io.out << io.bold(fmt::format("{} {} ({})", name(first.severity), first.code, count))
           << (what.empty() ? "" : ": ") << what << "\n";
    const std::size_t shown = verbose ? end - begin : std::min(end - begin, kLinesPerCode);
    for (std::size_t i = begin; i < begin + shown; ++i) {
      const Finding& finding = report.findings[i];
      const std::string where = place(finding, report.path);
      io.out << fmt::format("    {}{}{}\n", where, where.empty() ? "" : ": ",
                            printable(finding.fact));
    }
    if (count > shown) {
      io.out << fmt::format("    and {} more{}\n", count - shown,
                            verbose ? "" : " (--verbose shows them)");
    }
    if (!first.remedy.empty()) io.out << fmt::format("    -> {}", printable(first.remedy));
    if (!first.fix.empty()) io.out << fmt::format(" (--fix {})", first.fix);
    if (!first.remedy.empty()) io.out << "\n";
    begin = end;
  }
}

void print_lint(const Io& io, const LintReport& report, bool verbose) {
  print_findings(io, report, verbose);
  io.out << fmt::format("{}: {}, {}, {}", printable(report.path), counted(report.errors, "error"),
                        counted(report.warnings, "warning"), counted(report.notes, "note"));
  if (report.layers > 0) {
    io.out << fmt::format("; {}, {}, {}, {} read in {:.2f} s", report.dialect,
                          counted(report.layers, "layer"),
                          experts_text(report.experts, report.layers),
                          human_bytes(report.bytes_read), report.seconds);
  }
  io.out << "\n"
         << (report.findings.empty()
                 ? fmt::format("Next: fp4moe explain {} --device h100 (its backend there)\n",
                               shell_word(printable(report.path)))
                 : std::string("Next: what follows -> above, or fp4moe error ID\n"));
}

Json to_json(const LintReport& report) {
  Json json{
      {"path", report.path},         {"dialect", report.dialect},       {"errors", report.errors},
      {"warnings", report.warnings}, {"notes", report.notes},           {"layers", report.layers},
      {"experts", report.experts},   {"bytes_read", report.bytes_read}, {"seconds", report.seconds},
      {"counts", report.counts},     {"findings", Json::array()}};
  for (const Finding& finding : report.findings) {
    Json row{{"code", finding.code}, {"severity", name(finding.severity)}};
    row["file"] = finding.file;
    if (finding.layer) row["layer"] = *finding.layer;
    if (finding.expert) row["expert"] = *finding.expert;
    if (!finding.tensor.empty()) row["tensor"] = finding.tensor;
    row["fact"] = finding.fact;
    if (!finding.remedy.empty()) row["remedy"] = finding.remedy;
    if (!finding.fix.empty()) row["fix"] = finding.fix;
    json["findings"].push_back(std::move(row));
  }
  return json;
}

Json to_json(const FixReport& report) {
  Json json{{"changes", Json::array()},
            {"rescaled_scales", report.rescaled_scales},
            {"rounded_scales", report.rounded_scales},
            {"worst_relative_change", report.worst_relative_change}};
  for (const checkpoint::FixChange& change : report.changes) {
    json["changes"].push_back(
        {{"policy", name(change.policy)}, {"tensor", change.tensor}, {"what", change.what}});
  }
  return json;
}

void print_fix(const Io& io, const FixReport& report, bool verbose) {
  constexpr std::size_t kMaxShown = 20;
  const std::size_t shown =
      verbose ? report.changes.size() : std::min(report.changes.size(), kMaxShown);
  for (std::size_t i = 0; i < shown; ++i) {
    const checkpoint::FixChange& change = report.changes[i];
    io.out << fmt::format("fixed {}: {}: {}\n", name(change.policy), printable(change.tensor),
                          change.what);
  }
  if (shown < report.changes.size()) {
    io.out << fmt::format("fixed {} more (--verbose shows them)\n", report.changes.size() - shown);
  }
  if (report.rescaled_scales > 0) {
    io.out << fmt::format("{} of {} were rounded, weights changed by at most {:.3g} %\n",
                          report.rounded_scales, counted(report.rescaled_scales, "block scale"),
                          100 * report.worst_relative_change);
  }
}

Result<std::vector<checkpoint::FixPolicy>> parse_policies(const LintOptions& options) {
  std::vector<checkpoint::FixPolicy> policies;
  for (const std::string& name : options.policies) {
    const auto policy = checkpoint::fix_policy_from_name(name);
    if (!policy) {
      std::vector<std::string> names;
      for (const checkpoint::FixPolicyRow& row : checkpoint::fix_policies())
        names.emplace_back(row.name);
      const std::vector<std::string_view> known(names.begin(), names.end());
      return usage("lint.policy", "there is no such repair")
          .expects("one of " + join(names, ", "), "'" + printable(name) + "'")
          .try_this(did_you_mean(name, known));
    }
    policies.push_back(*policy);
  }
  if (policies.empty() == options.out.empty()) return policies;
  return usage("lint.out", "--fix and -o belong together")
      .expects("both or neither", policies.empty() ? "only -o" : "only --fix");
}

std::uint64_t file_bytes(const std::string& path) {
  const auto store = tensor::Store::open(path);
  std::uint64_t bytes = 0;
  if (store) {
    for (const tensor::MappedFile& file : store->files()) bytes += file.bytes().size();
  }
  return bytes;
}

LintReport lint_with_progress(const std::string& path, const LintOptions& options, const Io& io) {
  // The share of scales among all bytes is not known before: the bar counts what is read.
  Progress progress(io, "lint", options.deep ? file_bytes(path) : file_bytes(path) / 17);
  return checkpoint::lint(path, {.deep = options.deep,
                                 .threads = options.threads == 0 ? io.threads : options.threads,
                                 .progress = [&](std::uint64_t bytes) { progress.add(bytes); }});
}

Result<int> run_lint(const LintOptions& options, const Io& io) {
  const auto policies = parse_policies(options);
  if (!policies) return policies.why();
  // A path that exists but cannot be opened is a finding; a path that does not exist is an error.
  std::error_code code;
  if (!std::filesystem::exists(options.path, code))
    return system_error("file.open", "cannot open", code ? code.value() : ENOENT).in(options.path);
  const InterruptGuard guard;
  std::string checked = options.path;
  Json json = Json::object();
  if (!policies->empty()) {
    Progress progress(io, "fix", file_bytes(options.path));
    const auto report =
        checkpoint::fix(options.path, options.out,
                        {.policies = *policies,
                         .force = options.force,
                         .threads = options.threads == 0 ? io.threads : options.threads,
                         .progress = [&](std::uint64_t bytes) { progress.add(bytes); }});
    if (!report) return report.why();
    if (io.json) json["fix"] = to_json(*report);
    if (!io.json) print_fix(io, *report, options.verbose);
    checked = options.out;  // what is left to find
  }
  LintReport report = lint_with_progress(checked, options, io);
  for (Finding& finding : report.findings)
    if (finding.remedy.empty()) finding.remedy = usual_remedy(finding.code);
  if (const auto fine = check_interrupt(); report.interrupted && !fine) return fine.why();
  if (report.exhausted) return *report.exhausted;
  if (io.json) {
    json.update(to_json(report));
    io.print(json);
  } else {
    print_lint(io, report, options.verbose);
  }
  return report.errors == 0 ? kDone : static_cast<int>(ErrorCode::invalid_input);
}

}  // namespace

Run declare_lint(OptionSet& set) {
  const auto options = std::make_shared<LintOptions>();
  set.add("PATH", options->path, "A checkpoint: a folder, an index or a file")
      .as(Form::path)
      .required();
  set.add("--deep", options->deep, "Look at the codes too");
  set.add("--verbose", options->verbose, "Show every finding");
  set.add_threads(options->threads);
  std::vector<std::string> repairs;
  std::string policies = "Repair into a new checkpoint, then check that:";
  for (const checkpoint::FixPolicyRow& row : checkpoint::fix_policies()) {
    policies += fmt::format("\n{}: {}", row.name, row.what);
    repairs.emplace_back(row.name);
  }
  set.add("--fix", options->policies, policies).separated_by_commas("POLICY").offering(repairs);
  set.add("-o,--out", options->out, "The repaired checkpoint").as(Form::path);
  set.add("--force", options->force,
          "With --fix: write it even where weights change by more than an eighth");
  return [options](const Io& io) { return run_lint(*options, io); };
}

}  // namespace fp4moe::cli
