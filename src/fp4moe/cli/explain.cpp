// fp4moe explain: which backend a deployment gets and why not the others.
//
// Exit status: 0 a backend was chosen, 4 none supports the configuration, 2 the request is wrong.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/answer_text.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/selection_options.hpp"
#include "fp4moe/oracle/explain/record.hpp"
#include "fp4moe/runtime/answer.hpp"
#include "fp4moe/runtime/vllm_log.hpp"
#include "fp4moe/runtime/vllm_messages.hpp"

namespace fp4moe::cli {

Run declare_explain(OptionSet& set);

namespace {

using oracle::BackendRow;
using oracle::Outcome;
using oracle::Record;
using oracle::Selection;

struct ExplainOptions {
  SelectionOptions request{.policy = ""};
  std::string subject{};  // the model, without an option in front
  std::string diff{}, log{};
  bool all_devices = false, verbose = false, messages = false;
};

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

// The first reason against a backend that the policy prefers to the chosen one.
std::string why_not_better(const Record& record) {
  for (const BackendRow& row : record.rows) {
    if (row.backend == record.selection.backend) break;
    if (row.nearest == nullptr || row.would_run()) continue;
    return fmt::format("not {}: {}", row.backend->name,
                       decisive_reason(record.request, *row.nearest));
  }
  return {};
}

std::string cut(std::string text, std::size_t columns) {
  if (columns > 3 && text.size() > columns) text.replace(columns - 3, text.npos, "...");
  return text;
}

Result<int> explain_all_devices(const ExplainOptions& options, const Io& io) {
  const auto parts = platform::described_devices();
  SelectionOptions asked = options.request;
  asked.device = parts.front().name;  // described ones are asked about
  const Result<SelectionRequest> request = runtime::resolve(asked);
  if (!request) return request.why();
  Json records = Json::array();
  std::vector<std::array<std::string, 3>> lines;
  for (const platform::DescribedDevice& part : parts) {
    asked.device = part.name;
    const Result<platform::Device> device = resolve_device(asked, request->policy);
    if (!device) return device.why();
    SelectionRequest each = *request;
    each.request.device = *device;
    const runtime::Answer found = runtime::answer(std::move(each));
    if (io.json) {
      Json result = to_json(found);
      for (const char* key : {"evaluated", "candidates", "consequences", "layer", "environment"})
        result.erase(key);
      records.push_back(std::move(result));
      continue;
    }
    const bool is_chosen = found.record.selection.outcome == Outcome::selected;
    lines.push_back(
        {std::string(part.name),
         is_chosen && !found.is_served() ? "none" : short_choice(found.record.selection),
         found.is_served() ? why_not_better(found.record) : refusal(found)});
  }
  if (io.json) {
    io.print({{"devices", std::move(records)}});
    return kDone;
  }
  std::array<std::size_t, 2> widths{};
  for (const auto& line : lines)
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  for (const auto& [name, choice, why] : lines)
    io.out << cut(fmt::format("{:<{}}  {:<{}}  {}", name, widths[0], choice, widths[1], why),
                  io.columns)
           << "\n";
  return kDone;
}

Result<std::string> read_whole(const std::string& path) {
  constexpr std::size_t kMax = std::size_t{64} << 20;
  const auto close = [](std::FILE* open) { return open == stdin ? 0 : std::fclose(open); };
  const std::unique_ptr<std::FILE, decltype(close)> file(
      path == "-" ? stdin : std::fopen(path.c_str(), "rb"), close);
  if (!file) return system_error("log.open", "cannot open", errno).in(path);
  std::string text;
  std::array<char, 1 << 16> part{};
  while (text.size() <= kMax) {
    const std::size_t count = std::fread(part.data(), 1, part.size(), file.get());
    text.append(part.data(), count);
    if (count == part.size()) continue;
    if (std::ferror(file.get()) != 0)
      return system_error("log.open", "cannot read", errno).in(path);
    break;
  }
  if (text.size() > kMax)
    return usage("log.size", "log too large")
        .in(path)
        .expects("at most 64 MiB", "more")
        .try_this("backends are chosen at the start: head -n 5000 LOG | fp4moe explain --log -");
  return text;
}

// Prints what was read, and what the message means; the answer follows.
void print_log(const Io& io, const runtime::LogReading& log, const runtime::Answer& found) {
  const auto print = [&](const std::string& text) {
    io.out << wrapped(text, io.columns, 2) << "\n";
  };
  std::vector<std::string> facts;
  for (const runtime::LogFact& fact : log.facts)
    if (fact.name != "message")
      facts.push_back(
          fmt::format("{} {} (line {}{})", fact.name, fact.value, fact.line,
                      fact.also.empty() ? "" : fmt::format("; also: {}", join(fact.also, ", "))));
  if (!facts.empty()) print("Read: " + join(facts, "; "));
  if (log.message)
    print(fmt::format("vLLM says [{}]: {} Do: {}", log.message->row->id, log.message->about->means,
                      log.message->about->todo));
  if (log.reason)
    print(fmt::format("The reason [{}]: {} Do: {}", log.reason->row->id, log.reason->about->means,
                      log.reason->about->todo));
  if (const std::string compared = compare_with_log(log, found); !compared.empty()) print(compared);
  io.out << "\n";
}

// The facts of a log may be unknown here, its model above all; the meaning of its message is known.
Error about_log(const runtime::LogReading& log, Error why) {
  if (!log.message) return why;
  const std::string means = fmt::format("the log's message [{}]: {} {}", log.message->row->id,
                                        log.message->about->means, log.message->about->todo);
  why.remedy = why.remedy.empty() ? means : fmt::format("{}; {}", why.remedy, means);
  return why;
}

Result<int> run_explain(const ExplainOptions& given, const Io& io) {
  if (given.messages) {
    io.out << runtime::message_page();
    return kDone;
  }
  ExplainOptions options = given;
  if (!options.subject.empty() && !options.request.model.empty())
    return usage("explain.model", "the model is named twice")
        .expects("either MODEL or --model", "both");
  if (!options.subject.empty()) options.request.model = options.subject;
  std::optional<runtime::LogReading> log;
  if (!options.log.empty()) {
    const Result<std::string> text = read_whole(options.log);
    if (!text) return text.why();
    Result<runtime::LogReading> read = runtime::read_log(*text, options.request);
    if (!read) return Error(read.why()).in(options.log);
    options.request = read->options;
    log = *std::move(read);
  }
  if (options.all_devices) return explain_all_devices(options, io);
  Result<SelectionRequest> request = runtime::resolve(options.request);
  if (!request && log) return about_log(*log, request.why());
  if (!request && !options.subject.empty() && request.why().id == "models.unknown")
    if (const auto device = platform::describe_device(options.subject))
      return Error(request.why())
          .try_this(fmt::format("{} is a device: fp4moe explain MODEL --device {}",
                                printable(options.subject), device->name));
  if (!request) return request.why();
  if (!options.diff.empty())
    return explain_difference(options, io,
                              make_record(*request->policy, request->mode, request->request));
  const runtime::Answer found = runtime::answer(*std::move(request));
  if (io.json) {
    Json result = to_json(found);
    if (log) result["log_read"] = to_json(*log, found);
    io.print(result);
  } else {
    if (log) print_log(io, *log, found);
    print_answer(io, found, options.verbose);
  }
  return found.is_served() ? kDone : static_cast<int>(ErrorCode::no_backend);
}

}  // namespace

Run declare_explain(OptionSet& set) {
  auto options = std::make_shared<ExplainOptions>();
  set.add("MODEL", options->subject,
          "gpt-oss-120b, openai/gpt-oss-120b, a checkpoint or a config.json")
      .as(Form::path)
      .listed("models");
  declare_selection(set, options->request);
  set.add("--log", options->log, "Take the request from vLLM's message or log: a file, or -")
      .as(Form::path);
  set.add("--diff", options->diff, "Show what another policy decides instead").listed("policies");
  set.add("--all-devices", options->all_devices, "One line for every described device");
  set.add("-v,--verbose", options->verbose,
          "Every kernel with every reason, and everything that follows from the choice");
  set.add("--messages", options->messages, "The page of vLLM's messages, as Markdown");
  return [options](const Io& io) { return run_explain(*options, io); };
}

}  // namespace fp4moe::cli
