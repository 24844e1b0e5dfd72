#include "fp4moe/cli/answer_text.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/error_text.hpp"
#include "fp4moe/cli/selection_options.hpp"

namespace fp4moe::cli {
namespace {

using oracle::BackendRow;
using oracle::ExpertsClass;
using oracle::Outcome;
using oracle::Record;
using oracle::Selection;
using oracle::Verdict;
using runtime::Answer;

// Entries of a list that the short answer shows; --verbose shows the rest.
constexpr std::size_t kFew = 4;

constexpr std::string_view kGreen = "32", kRed = "31", kDim = "2";

std::string painted(const Io& io, std::string_view color, const std::string& text) {
  return io.color ? fmt::format("\x1b[{}m{}\x1b[0m", color, text) : text;
}

std::string_view class_of(const ExpertsClass* experts) {
  return experts == nullptr || experts->name.empty() ? "no class" : experts->name;
}

void print_line(const Io& io, const std::string& text, std::size_t indent = 0) {
  io.out << wrapped(text, io.columns, indent) << "\n";
}

// Names in a column of their own, each with what follows it.
struct Line {
  std::string name{}, text{};
};
void print_lines(const Io& io, std::string_view heading, const std::vector<Line>& lines,
                 std::size_t max) {
  if (lines.empty()) return;
  io.out << "\n" << io.bold(std::string(heading)) << "\n";
  const std::size_t shown = std::min(lines.size(), max);
  std::size_t width = 0;
  for (std::size_t i = 0; i < shown; ++i) width = std::max(width, lines[i].name.size());
  for (std::size_t i = 0; i < shown; ++i)
    print_line(io, fmt::format("  {:<{}}  {}", lines[i].name, width, lines[i].text), width + 4);
  if (shown < lines.size())
    io.out << painted(io, kDim, fmt::format("  and {} more: --verbose", lines.size() - shown))
           << "\n";
}

void print_changes(const Io& io, const Answer& answer, bool verbose) {
  std::vector<Line> lines;
  for (const runtime::ToChange& to : answer.to_change)
    lines.push_back({std::string(to.backend->name), join(to.remedy.steps, ", ")});
  print_lines(io, answer.is_served() ? "To change that" : "To make it run", lines,
              verbose ? lines.size() : kFew);
  if (lines.empty()) io.out << "\nNo flag, variable or package gives another backend here.\n";
}

// Short: without the one that the sentence names already, and without those of other platforms.
void print_near_misses(const Io& io, const Answer& answer, bool verbose) {
  std::vector<Line> lines;
  const std::string said = refusal(answer);
  for (const runtime::NearMiss& miss : answer.near_misses) {
    if (!verbose && miss.is_elsewhere) continue;
    Line line{std::string(miss.backend->name),
              verbose ? join(miss.reasons, " | ") : miss.reasons.front()};
    if (verbose || said != fmt::format("{}: {}", line.name, line.text))
      lines.push_back(std::move(line));
  }
  print_lines(io, "Near misses", lines, verbose ? lines.size() : kFew - 1);
}

// "fp4moe itself: CPU."
std::string other_rules(const runtime::Alternative& other) {
  const bool is_native = other.policy->policy_date == oracle::PolicyDate::native;
  return fmt::format("{}: {}.", is_native ? "fp4moe itself" : oracle::title(*other.policy),
                     other.selection.outcome == Outcome::selected && other.loads
                         ? other.selection.backend->name
                         : "nothing");
}

// The command to type next.
std::string next_step(const Answer& answer) {
  const runtime::SelectionRequest& request = answer.request;
  for (const runtime::Alternative& other : answer.alternatives)
    if (!answer.is_served() && answer.to_change.empty() && other.loads &&
        other.policy->policy_date == oracle::PolicyDate::native)
      return fmt::format("Next: fp4moe itself runs it with {}: fp4moe run CHECKPOINT",
                         other.selection.backend->name);
  if (!answer.is_served())
    return "Next: one of the above, or --verbose for every kernel with every reason";
  const std::string device = request.is_described
                                 ? fmt::format(" --device {}", request.request.device.name)
                                 : std::string();
  const bool is_row = checkpoint::find_model(request.model.name) != nullptr;
  const std::string model =
      (is_row ? " --model " : " ") +
      (request.model.name.empty() ? std::string("CHECKPOINT") : request.model.name);
  const oracle::Parallel& parallel = request.request.layer.parallel;
  const std::string ranks = parallel.ep_size > 1   ? fmt::format(" --ep {}", parallel.ep_size)
                            : parallel.tp_size > 1 ? fmt::format(" --tp {}", parallel.tp_size)
                                                   : std::string();
  return fmt::format(
      "Next: fp4moe plan{}{}{} --policy {} (bytes per rank), or --verbose (every kernel)", model,
      ranks, device, request.policy->name);
}

// "routes by itself, standard tokens, 16-bit activations, layout marlin.mxfp4, ..."
std::string choice_line(const Record& record) {
  const Selection& selection = record.selection;
  const oracle::Consequences& then = *record.consequences;
  std::vector<std::string> parts;
  if (selection.experts != nullptr)
    parts.emplace_back(selection.experts->kind == oracle::Kind::monolithic ? "routes by itself"
                                                                           : "is given the routes");
  parts.push_back(fmt::format("{} tokens", oracle::name(selection.format)));
  parts.push_back(then.quant.activations == oracle::ActivationKey::none
                      ? "16-bit activations"
                      : fmt::format("{} activations", oracle::name(then.quant.activations)));
  if (!selection.backend->layout.empty())
    parts.push_back(fmt::format("layout {}", selection.backend->layout));
  const oracle::Layer& layer = record.request.layer;
  if (then.sizes && *then.sizes == oracle::Sizes{layer.hidden, layer.intermediate})
    parts.push_back(fmt::format("{} x {} without padding", layer.hidden, layer.intermediate));
  else if (then.sizes)
    parts.push_back(fmt::format("{} x {} padded to {} x {}", layer.hidden, layer.intermediate,
                                then.sizes->hidden, then.sizes->intermediate));
  return join(parts, ", ");
}

void print_kernels(const Io& io, const Record& record, const BackendRow& row) {
  if (row.remedy) print_line(io, "     do: " + join(row.remedy->steps, ", "), 9);
  for (const Verdict* verdict : row.verdicts) {
    io.out << fmt::format("     {}: {}\n", class_of(verdict->experts),
                          verdict->accepted() ? "would run"
                                              : oracle::reference_reason(*record.selection.policy,
                                                                         record.request, *verdict));
    for (const oracle::Refusal& refusal : by_cause(*verdict)) {
      const oracle::Sentence words = oracle::sentence(record.request, *verdict, refusal);
      print_line(io,
                 fmt::format("       {:<20} {}; {}", oracle::name(refusal.reason),
                             words.requirement, words.fact),
                 28);
    }
  }
}

void print_table(const Io& io, const Record& record) {
  std::size_t width = 8;
  for (const BackendRow& row : record.rows) width = std::max(width, row.backend->name.size());
  int place = 0;
  io.out << "\n" << io.bold("Every backend, in the order of preference") << "\n";
  for (const BackendRow& row : record.rows) {
    const std::string number = row.automatic ? std::to_string(++place) : "-";
    const std::string why = row.would_run() || row.nearest == nullptr
                                ? ""
                                : decisive_reason(record.request, *row.nearest);
    std::string line = fmt::format("  {:>2}  {:<{}}  {:<9}  {}", number, row.backend->name, width,
                                   decision(record, row), why);
    line.erase(line.find_last_not_of(' ') + 1);
    print_line(io, line, width + 19);
    print_kernels(io, record, row);
  }
  const bool hidden = std::ranges::any_of(record.rows, [](auto& row) { return !row.automatic; });
  if (hidden) io.out << "(-: reached only by name or variable)\n";
}

void print_consequences(const Io& io, const Record& record) {
  const oracle::Consequences& then = *record.consequences;
  io.out << "\n" << io.bold("Weights") << "\n";
  if (then.buffers)
    for (const oracle::Buffer& buffer : *then.buffers)
      io.out << fmt::format("  {:<24} {:<8} [{}] {}\n", buffer.name, buffer.dtype,
                            fmt::join(buffer.shape, ", "), human_bytes(buffer.bytes));
  else
    io.out << "  " << finding_text(then.buffers.why(), io.columns, 2);
  io.out << "\n" << io.bold(fmt::format("Scales: {}", oracle::name(then.quant.scheme))) << "\n";
  for (const oracle::Formula& formula : then.quant.formulas)
    io.out << fmt::format("  {:<24} {}\n", formula.what, formula.made_of);
  for (const std::string& note : then.quant.notes) io.out << "  note: " << note << "\n";
  io.out << "\n" << io.bold("Kernel") << "\n";
  if (!then.kernel) {
    io.out << "  " << finding_text(then.kernel.why(), io.columns, 2);
    return;
  }
  if (!then.kernel->note.empty()) io.out << "  " << then.kernel->note << "\n";
  if (!then.kernel->has_kernel) return;
  io.out << fmt::format("  {}, {}in place, {}shared experts\n", then.kernel->prepare.name,
                        then.kernel->inplace ? "" : "not ",
                        then.kernel->holds_shared_experts ? "holds " : "without ");
}

void print_everything(const Io& io, const Record& record) {
  io.out << fmt::format("\non {}, {} weights, policy {} ({})\n", text(record.request.device),
                        formats::name(record.selection.policy->format),
                        record.selection.policy->name,
                        oracle::kModeNames[static_cast<std::size_t>(record.selection.mode)]);
  if (record.consequences)
    io.out << fmt::format("{}: {}\n", class_of(record.selection.experts), choice_line(record));
  print_table(io, record);
  if (!record.selection.log.empty() || !record.selection.message.empty())
    io.out << "\n" << io.bold("vLLM's own words") << "\n";
  for (const std::string& line : record.selection.log) print_line(io, "  " + line, 2);
  if (!record.selection.message.empty()) print_line(io, "  " + record.selection.message, 2);
  if (record.consequences) print_consequences(io, record);
}

}  // namespace

std::string short_choice(const Selection& selection) {
  if (selection.outcome == Outcome::selected)
    return fmt::format("{} / {}", selection.backend->name, class_of(selection.experts));
  return selection.outcome == Outcome::none
             ? "none"
             : fmt::format("none ({})", oracle::name(selection.error));
}

std::string_view decision(const Record& record, const BackendRow& row) {
  if (row.backend == record.selection.backend) return "chosen";
  return row.would_run() ? "would run" : "refused";
}

void print_answer(const Io& io, const Answer& answer, bool verbose) {
  const std::string first = summary(answer);
  io.out << io.bold(painted(io, answer.is_served() ? kGreen : kRed, wrapped(first, io.columns)))
         << "\n";
  if (answer.request.policy_assumed || !answer.is_served())
    for (const runtime::Alternative& other : answer.alternatives)
      print_line(io, other_rules(other));
  print_changes(io, answer, verbose);
  print_near_misses(io, answer, verbose);
  const std::vector<std::string> left_open = assumed(answer.request);
  if (!left_open.empty() || !answer.record.warnings.empty() || !answer.request.notes.empty())
    io.out << "\n";
  if (!left_open.empty()) print_line(io, "Assumed: " + join(left_open, "; "), 9);
  for (const std::string& warning : answer.record.warnings)
    if (first.find(warning.substr(warning.find(": ") + 2)) == std::string::npos)
      print_line(io, "warning: " + warning, 9);
  for (const std::string& note : answer.request.notes) print_line(io, "note: " + note, 6);
  if (verbose) print_everything(io, answer.record);
  io.out << "\n" << painted(io, kDim, wrapped(next_step(answer), io.columns, 6)) << "\n";
}

}  // namespace fp4moe::cli
