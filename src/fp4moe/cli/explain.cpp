// fp4moe explain: which backend a deployment gets and why not the others.
//
// Exit status: 0 a backend was chosen, 4 none supports the configuration, 2 the question is wrong.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/question.hpp"
#include "fp4moe/oracle/record.hpp"

namespace fp4moe::cli {

Run declare_explain(OptionSet& set);

namespace {

using oracle::BackendRow;
using oracle::Experts;
using oracle::Outcome;
using oracle::Record;
using oracle::Selection;
using oracle::Verdict;

struct ExplainOptions {
  QuestionOptions question{};
  std::string diff{};
  bool all_devices = false, verbose = false;
};

std::string_view class_of(const Experts* experts) {
  return experts == nullptr || experts->name.empty() ? "no class" : experts->name;
}

std::string headline(const Selection& selection) {
  if (selection.outcome == Outcome::error) return "No backend: " + selection.message;
  if (selection.outcome == Outcome::none) return "No backend: nothing here computes this layer.";
  return fmt::format("{}  {}", selection.backend->name, class_of(selection.experts));
}

std::string question_line(const Record& record) {
  const Selection& selection = record.selection;
  return fmt::format("on {}, {} weights, policy {} ({})", text(record.request.device),
                     formats::name(selection.policy->format), selection.policy->name,
                     oracle::kModeNames[static_cast<std::size_t>(selection.mode)]);
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

void print_refusals(const Io& io, const Record& record, const Verdict& verdict) {
  for (const oracle::Refusal& refusal : verdict.refusals) {
    const oracle::Sentence words = sentence(record, verdict, refusal);
    io.out << fmt::format("       {:<20} {}; {} -> {}\n", oracle::name(refusal.reason),
                          words.requirement, words.fact, words.remedy);
  }
}

std::string_view decision(const Record& record, const BackendRow& row) {
  if (row.backend == record.selection.backend) return "chosen";
  return row.would_run() ? "would run" : "refused";
}

void print_table(const Io& io, const Record& record, bool verbose) {
  std::size_t width = 8;
  for (const BackendRow& row : record.rows) width = std::max(width, row.backend->name.size());
  int place = 0;
  for (const BackendRow& row : record.rows) {
    const std::string number = row.automatic ? std::to_string(++place) : "-";
    const std::string why = row.would_run() || row.nearest == nullptr
                                ? ""
                                : decisive_reason(record.request, *row.nearest);
    std::string line = fmt::format("  {:>2}  {:<{}}  {:<9}  {}", number, row.backend->name, width,
                                   decision(record, row), why);
    line.erase(line.find_last_not_of(' ') + 1);
    io.out << line << "\n";
    if (!verbose) continue;
    for (const Verdict* verdict : row.verdicts) {
      io.out << fmt::format(
          "     {}: {}\n", class_of(verdict->experts),
          verdict->accepted()
              ? "would run"
              : oracle::reference_reason(*record.selection.policy, record.request, *verdict));
      print_refusals(io, record, *verdict);
    }
  }
  const bool hidden = std::ranges::any_of(record.rows, [](auto& row) { return !row.automatic; });
  if (hidden) io.out << "   -  reached only by name or variable\n";
}

void print_consequences(const Io& io, const Record& record) {
  const oracle::Consequences& then = *record.consequences;
  io.out << "\nWeights\n";
  if (then.buffers)
    for (const oracle::Buffer& buffer : *then.buffers)
      io.out << fmt::format("  {:<24} {:<8} [{}] {}\n", buffer.name, buffer.dtype,
                            fmt::join(buffer.shape, ", "), human_bytes(buffer.bytes));
  else
    io.out << "  " << text(then.buffers.why()) << "\n";
  io.out << fmt::format("\nScales: {}\n", oracle::name(then.quant.scheme));
  for (const oracle::Formula& formula : then.quant.formulas)
    io.out << fmt::format("  {:<24} {}\n", formula.what, formula.made_of);
  for (const std::string& note : then.quant.notes) io.out << "  note: " << note << "\n";
  io.out << "\nKernel\n";
  if (!then.kernel) {
    io.out << "  " << text(then.kernel.why()) << "\n";
    return;
  }
  if (!then.kernel->note.empty()) io.out << "  " << then.kernel->note << "\n";
  if (!then.kernel->has_kernel) return;
  io.out << fmt::format("  {}, {}in place, {}shared experts\n", then.kernel->prepare.name,
                        then.kernel->inplace ? "" : "not ",
                        then.kernel->holds_shared_experts ? "holds " : "without ");
}

void print(const Io& io, const Record& record, const Question& question, bool verbose) {
  io.out << io.bold(headline(record.selection)) << "\n" << question_line(record) << "\n";
  if (record.consequences) io.out << choice_line(record) << "\n";
  if (record.selection.outcome != Outcome::selected) {
    std::vector<std::string> others;
    for (const BackendRow& row : record.rows)
      if (row.would_run()) others.emplace_back(row.backend->name);
    io.out << (others.empty() ? "No other backend of this policy would run either.\n"
                              : "These would run: " + join(others, ", ") + "\n");
  }
  io.out << "\n";
  print_table(io, record, verbose);
  for (const std::string& warning : record.warnings) io.out << "warning: " << warning << "\n";
  for (const std::string& note : question.notes) io.out << "note: " << note << "\n";
  if (!verbose) return;
  if (!record.selection.log.empty()) io.out << "\nLog of the reference\n";
  for (const std::string& line : record.selection.log) io.out << "  " << line << "\n";
  if (record.consequences) print_consequences(io, record);
}

std::string short_choice(const Selection& selection) {
  if (selection.outcome == Outcome::selected)
    return fmt::format("{} / {}", selection.backend->name, class_of(selection.experts));
  return selection.outcome == Outcome::none
             ? "none"
             : fmt::format("none ({})", oracle::name(selection.error));
}

int status_of(const Selection& selection) {
  return selection.outcome == Outcome::selected ? kDone : static_cast<int>(ErrorCode::no_backend);
}

// Two policies side by side: the choices, then the backends that one accepts and the other not.
Result<int> explain_difference(const ExplainOptions& options, const Io& io, const Record& mine) {
  const Result<const oracle::Policy*> other = backends::require_policy(
      options.diff, mine.selection.policy->format,
      mine.selection.policy->is_generic ? backends::Entry::generic : backends::Entry::gpt_oss);
  if (!other) return other.why();
  const Record theirs = make_record(**other, mine.selection.mode, mine.request);
  Json changes = Json::array();
  const auto answer = [](const Record& record, std::string_view name) -> std::string {
    for (const BackendRow& row : record.rows)
      if (row.backend->name == name)
        return row.would_run()
                   ? std::string(decision(record, row))
                   : "refused: " + (row.nearest == nullptr
                                        ? "it has no kernel"
                                        : decisive_reason(record.request, *row.nearest));
    return "unknown";
  };
  std::vector<std::string_view> names;
  for (const Record* record : {&mine, &theirs})
    for (const BackendRow& row : record->rows)
      if (std::ranges::find(names, row.backend->name) == names.end())
        names.push_back(row.backend->name);
  for (const std::string_view name : names) {
    const std::string here = answer(mine, name), there = answer(theirs, name);
    if (here != there) changes.push_back({{"backend", name}, {"here", here}, {"there", there}});
  }
  if (io.json) {
    io.print({{"here", to_json(mine)}, {"there", to_json(theirs)}, {"changes", changes}});
    return status_of(mine.selection);
  }
  const std::string_view here = mine.selection.policy->name, there = (*other)->name;
  const std::size_t width = std::max(here.size(), there.size());
  io.out << fmt::format("{:<{}}  {}\n{:<{}}  {}\n", here, width, short_choice(mine.selection),
                        there, width, short_choice(theirs.selection));
  if (changes.empty()) io.out << "\nEvery backend gets the same answer.\n";
  for (const Json& change : changes)
    io.out << fmt::format("\n{}\n  {:<{}}  {}\n  {:<{}}  {}\n", change["backend"].string(), here,
                          width, change["here"].string(), there, width, change["there"].string());
  return status_of(mine.selection);
}

Result<int> explain_all_devices(const ExplainOptions& options, const Io& io,
                                const Question& question) {
  Json records = Json::array();
  std::size_t width = 0;
  for (const platform::DescribedDevice& part : platform::described_devices())
    width = std::max(width, part.name.size());
  for (const platform::DescribedDevice& part : platform::described_devices()) {
    QuestionOptions asked = options.question;
    asked.device = part.name;
    const Result<platform::Device> device = resolve_device(asked, question.policy);
    if (!device) return device.why();
    oracle::Request request = question.request;
    request.device = *device;
    const Record record = make_record(*question.policy, question.mode, request);
    if (io.json) {
      Json made = to_json(record);
      for (const char* key : {"evaluated", "candidates", "consequences", "layer", "environment"})
        made.erase(key);
      records.push_back(std::move(made));
      continue;
    }
    std::string why;
    if (record.selection.outcome == Outcome::error) why = record.selection.message;
    for (const BackendRow& row : record.rows) {
      if (row.backend == record.selection.backend) break;
      if (!why.empty() || row.nearest == nullptr || row.would_run()) continue;
      why = fmt::format("not {}: {}", row.backend->name, decisive_reason(request, *row.nearest));
    }
    io.out << fmt::format("{:<{}}  {:<54}  {}\n", part.name, width, short_choice(record.selection),
                          why);
  }
  if (io.json) io.print({{"devices", std::move(records)}});
  return kDone;
}

Result<int> run_explain(const ExplainOptions& options, const Io& io) {
  const Result<Question> question = runtime::resolve(options.question);
  if (!question) return question.why();
  if (options.all_devices) return explain_all_devices(options, io, *question);
  const Record record = make_record(*question->policy, question->mode, question->request);
  if (!options.diff.empty()) return explain_difference(options, io, record);
  if (io.json) {
    Json made = to_json(record);
    made["notes"] = question->notes;
    if (question->release) made["vllm"] = to_json(*question->release);
    io.print(made);
  } else {
    print(io, record, *question, options.verbose);
  }
  return status_of(record.selection);
}

}  // namespace

Run declare_explain(OptionSet& set) {
  auto options = std::make_shared<ExplainOptions>();
  declare_question(set, options->question);
  set.add("--diff", options->diff, "Show what another policy decides instead");
  set.add("--all-devices", options->all_devices, "One line for every described device");
  set.add("-v,--verbose", options->verbose,
          "Every kernel with every reason, and everything that follows from the choice");
  return [options](const Io& io) { return run_explain(*options, io); };
}

}  // namespace fp4moe::cli
