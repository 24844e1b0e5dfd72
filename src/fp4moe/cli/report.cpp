// fp4moe report: one HTML file about a checkpoint or a converted folder. The other commands answer;
// this one asks them and draws, so that a report never says anything else than they do.
//
// Exit status: 0 the report is written, whatever it tells of the checkpoint.
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/shell_word.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/base/version.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/program.hpp"
#include "fp4moe/cli/progress.hpp"
#include "fp4moe/cli/selection_options.hpp"
#include "fp4moe/report/page.hpp"
#include "fp4moe/report/records.hpp"
#include "fp4moe/report/scale_statistics.hpp"
#include "fp4moe/tensor/files/atomic_file.hpp"

namespace fp4moe::cli {

Run declare_report(OptionSet& set);

namespace {

using Words = std::vector<std::string>;

struct ReportOptions {
  std::string path{}, out{};
  std::vector<std::string> devices{}, backends{}, records{};
  SelectionOptions request{};  // the policy alone
  std::string tp{}, ep{};
  std::uint64_t tokens = 0, threads = 0;
  bool bench = false, force = false;
};

// Errors after which going on is useless: an interrupt, memory, a full disk.
bool ends_report(const Error& why) {
  return why.code == ErrorCode::interrupted || why.code == ErrorCode::exhausted;
}

std::string shell_line(const Words& words) {
  std::string line = "fp4moe";
  for (const std::string& word : words) line += " " + shell_word(word);
  return line;
}

// Runs another command; its object, or its error, is the answer.
Result<Json> ask(const Words& words, const Io& io) {
  std::vector<const char*> pointers{"fp4moe"};
  for (const std::string& word : words) pointers.push_back(word.c_str());
  const Program program(commands());
  Json answer{{"command", shell_line(words)}};
  const auto shown = program.parse(pointers);
  if (!shown) return shown.why();
  std::ostringstream out;
  Io quiet{.out = out,
           .err = io.err,
           .threads = io.threads,
           .json = true,
           .show_progress = io.show_progress,
           .err_columns = io.err_columns,
           .on_progress = io.on_progress,
           .commands = io.commands};
  const Result<int> status = program.run()(quiet);
  if (!status && ends_report(status.why())) return status.why();
  answer["status"] = status ? *status : static_cast<int>(status.why().code);
  if (!status) {
    answer["error"] = to_json(status.why());
    return answer;
  }
  Result<Json> result = parse_json(out.str());
  if (!result) return result.why();
  answer["result"] = *std::move(result);
  return answer;
}

Result<Json> scales(const std::string& path, const ReportOptions& options, const Io& io) {
  const Result<std::uint64_t> bytes = report::scale_bytes(path);
  if (!bytes && ends_report(bytes.why())) return bytes.why();
  if (!bytes) return Json{{"error", to_json(bytes.why())}};
  Progress progress(io, "scales", *bytes);
  const auto found = report::scale_statistics(
      path, {.threads = options.threads == 0 ? io.threads : options.threads,
             .progress = [&](std::uint64_t done) { progress.add(done); }});
  if (found) return report::to_json(*found);
  if (ends_report(found.why())) return found.why();
  return Json{{"error", to_json(found.why())}};
}

void add_words(Words& to, std::string_view option, const std::string& value) {
  if (value.empty()) return;
  to.emplace_back(option);
  to.push_back(value);
}

// The model's path for plan and explain: a converted folder has its configuration beside it.
std::string model_of(const ReportOptions& options, bool is_converted) {
  return is_converted ? options.path + "/config.json" : options.path;
}

Result<Json> device_facts(const std::string& device, const ReportOptions& options,
                          bool is_converted, const Io& io) {
  Words explain{"explain", model_of(options, is_converted), "--device", device};
  add_words(explain, "--policy", options.request.policy);
  add_words(explain, "--vllm", options.request.vllm);
  add_words(explain, "--tp", options.tp);
  add_words(explain, "--ep", options.ep);
  Result<Json> answer = ask(explain, io);
  if (!answer) return answer.why();
  // The plan follows the policy that answered.
  const bool is_answered = answer->contains("result");
  Words plan{"plan", model_of(options, is_converted), "--device", device};
  add_words(
      plan, "--policy",
      is_answered ? answer->at("result").at("policy").get<std::string>() : options.request.policy);
  add_words(plan, "--tp", options.tp);
  add_words(plan, "--ep", options.ep);
  Result<Json> planned = ask(plan, io);
  if (!planned) return planned.why();
  return Json{{"device", device}, {"explain", *std::move(answer)}, {"plan", *std::move(planned)}};
}

// Backends to compare with float64, as diff spells them: those named, or those that the devices get.
std::vector<std::pair<std::string, std::string>> compared(const ReportOptions& options,
                                                          bool is_converted, const Json& devices) {
  std::vector<std::pair<std::string, std::string>> result;
  std::set<std::string> known;
  const auto add = [&](const std::string& name, const std::string& specification) {
    if (known.insert(specification).second) result.emplace_back(name, specification);
  };
  if (is_converted) return {{"auto", "auto"}};
  for (const std::string& name : options.backends) add(name, name);
  if (!options.backends.empty()) return result;
  for (const Json& device : devices) {
    const auto explain = device.at("explain").find("result");
    if (explain == device.at("explain").end() || !explain->at("backend").is_string()) continue;
    const auto backend = explain->at("backend").get<std::string>();
    add(backend,
        fmt::format("backend={},policy={}", backend, explain->at("policy").get<std::string>()));
  }
  return result;
}

Result<Json> numerics(const ReportOptions& options, bool is_converted, const Json& devices,
                      const Io& io) {
  Json all = Json::array();
  if (options.tokens == 0) return all;
  for (const auto& [name, specification] : compared(options, is_converted, devices)) {
    Result<Json> answer = ask({"diff", specification, "exact", "--checkpoint", options.path,
                               "--layer", "all", "--tokens", std::to_string(options.tokens)},
                              io);
    if (!answer) return answer.why();
    all.push_back({{"backend", name}, {"diff", *std::move(answer)}});
  }
  return all;
}

Result<Json> read_records(const ReportOptions& options) {
  Json all = Json::array();
  for (const std::string& file : options.records) {
    Result<Json> record = read_json_file(file);
    if (!record) return record.why();
    if (const Result<Done> fine = report::check_record(*record); !fine)
      return Error(fine.why()).in(file);
    all.push_back({{"file", file}, {"report", *std::move(record)}});
  }
  return all;
}

Result<Json> bench_facts(const ReportOptions& options, Json records, const Io& io) {
  Json bench{{"layer", nullptr}, {"records", std::move(records)}};
  if (options.bench) {
    Result<Json> answer = ask({"bench", "layer", "--model", options.path}, io);
    if (!answer) return answer.why();
    bench["layer"] = *std::move(answer);
  }
  return bench["layer"].is_null() && bench["records"].size() == 0 ? Json() : std::move(bench);
}

bool is_converted_folder(const Json& inspect) {
  for (const Json& problem : inspect.at("problems"))
    if (problem.value<std::string>("id", "") == "dialect.converted") return true;
  return false;
}

std::string name_of(const std::string& path) {
  const std::filesystem::path whole = std::filesystem::path(path).lexically_normal();
  const std::string last = whole.filename().string();
  return last.empty() || last == "." ? whole.parent_path().filename().string() : last;
}

std::string today() {
  const std::chrono::year_month_day day{
      std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now())};
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(day.year()),
                     static_cast<unsigned>(day.month()), static_cast<unsigned>(day.day()));
}

Result<Json> gather(const ReportOptions& options, Json records, const Io& io) {
  Result<Json> inspect = ask({"inspect", options.path}, io);
  if (!inspect) return inspect.why();
  const bool is_converted =
      inspect->contains("result") && is_converted_folder(inspect->at("result"));
  Json facts{{"command", "report"},           {"path", options.path},
             {"name", name_of(options.path)}, {"kind", is_converted ? "converted" : "checkpoint"},
             {"version", kVersion},           {"date", today()}};
  facts["inspect"] = *std::move(inspect);
  const char* check = is_converted ? "verify" : "lint";
  Result<Json> findings = ask({check, options.path}, io);
  if (!findings) return findings.why();
  facts[check] = *std::move(findings);
  Result<Json> found = scales(options.path, options, io);
  if (!found) return found.why();
  facts["scales"] = *std::move(found);
  facts["devices"] = Json::array();
  for (const std::string& device : options.devices) {
    Result<Json> answer = device_facts(device, options, is_converted, io);
    if (!answer) return answer.why();
    facts["devices"].push_back(*std::move(answer));
  }
  Result<Json> errors = numerics(options, is_converted, facts["devices"], io);
  if (!errors) return errors.why();
  facts["numerics"] = *std::move(errors);
  Result<Json> measured = bench_facts(options, std::move(records), io);
  if (!measured) return measured.why();
  facts["bench"] = *std::move(measured);
  return facts;
}

Result<Done> check_options(const ReportOptions& options, const Io& io) {
  if (options.out.empty() && !io.json)
    return usage("report.out", "a report needs a file")
        .expects("-o FILE.html, or --json for the facts alone", "neither");
  std::error_code code;
  if (!std::filesystem::exists(options.path, code))
    return system_error("file.open", "cannot open", code ? code.value() : ENOENT).in(options.path);
  if (options.out.empty() || !std::filesystem::exists(options.out, code)) return Done{};
  if (!std::filesystem::is_regular_file(options.out, code))
    return usage("file.not_regular", "is not a plain file").in(options.out);
  if (!options.force)
    return usage("file.exists", "would be overwritten")
        .in(options.out)
        .expects("a name that is free", "a file")
        .try_this("choose another name, or give --force");
  return Done{};
}

Result<int> run_report(ReportOptions options, const Io& io) {
  if (const Result<Done> fine = check_options(options, io); !fine) return fine.why();
  if (options.devices.empty()) options.devices = {"auto"};
  // A name that is no device is refused before any work.
  for (const std::string& device : options.devices) {
    SelectionOptions asked = options.request;
    asked.device = device;
    if (const auto found = runtime::resolve_device(asked); !found) return found.why();
  }
  Result<Json> records = read_records(options);
  if (!records) return records.why();
  const InterruptGuard guard;
  // A path that cannot be opened at all has no report.
  if (const auto store = tensor::Store::open(options.path); !store) return store.why();
  const Result<Json> facts = gather(options, *std::move(records), io);
  if (!facts) return facts.why();
  std::size_t bytes = 0;
  if (!options.out.empty()) {
    const std::string html = report::page(*facts);
    bytes = html.size();
    const auto written = tensor::write_file(options.out, std::as_bytes(std::span(html)));
    if (!written) return written.why();
  }
  if (io.json)
    io.print(*facts);
  else
    io.out << fmt::format("{}: {}\n", options.out, human_bytes(bytes));
  return kDone;
}

}  // namespace

Run declare_report(OptionSet& set) {
  const auto options = std::make_shared<ReportOptions>();
  set.add("PATH", options->path, "A checkpoint or a converted folder").as(Form::path).required();
  set.add("-o,--out", options->out, "The HTML file to write").as(Form::path);
  set.add("--force", options->force, "Replace a file of this name");
  set.add("--device", options->devices, "Devices to plan for (default: auto, this machine)")
      .separated_by_commas("NAME")
      .listed("devices");
  options->request.policy.clear();  // as explain has it
  declare_policy(set, options->request);
  set.add("--tp", options->tp, "Tensor-parallel size").as(Form::number);
  set.add("--ep", options->ep, "Ranks that share out whole experts").as(Form::number);
  set.add("--tokens", options->tokens,
          "Compare backends with float64 on so many seeded tokens (default: none)")
      .between(std::uint64_t{0}, std::uint64_t{1} << 20);
  set.add("--backend", options->backends, "Backends to compare (default: those that devices get)")
      .separated_by_commas("NAME")
      .listed("backends");
  set.add("--bench", options->bench, "Measure this machine with the checkpoint's layers");
  set.add("--records", options->records,
          "Draw measurements beside it: bench layer --json, or a record of peers")
      .as(Form::path)
      .separated_by_commas("PATH");
  set.add_threads(options->threads);
  return [options](const Io& io) { return run_report(*options, io); };
}

}  // namespace fp4moe::cli
