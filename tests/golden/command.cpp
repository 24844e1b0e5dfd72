// fp4moe golden FILE... [--engine NAME] [--json]: runs golden data of the known schemas.
//
// Exit status: 0 all cases agree; 5 some differ; 3 a file or a case is malformed (and 1, 6 when a
// file cannot be read at all).
#include "golden/command.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fp4moe/cli/error_text.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/runtime/engines.hpp"
#include "golden/schemas.hpp"

namespace fp4moe::golden {
namespace {

using cli::Io;
using cli::kDone;

struct CommandOptions {
  std::vector<std::string> files{};
  std::string engine = "reference";
};

// What all files together came to.
struct Total {
  std::size_t passed = 0;
  std::size_t failed = 0;
  int status = kDone;
  Json files = Json::array();
};

// A file that cannot be run counts as one failure and outranks a disagreement.
void add_error(const std::string& path, const Error& why, const Io& io, Total& total) {
  ++total.failed;
  total.status = static_cast<int>(why.code);
  total.files.push_back({{"file", path}, {"error", to_json(why)}});
  if (!io.json) io.out << cli::finding_text(why, io.columns);
}

Json to_json(const Failure& failure) {
  return {{"case", failure.case_id},
          {"what", failure.what},
          {"expected", failure.expected},
          {"found", failure.found},
          {"malformed", failure.malformed}};
}

void add_report(const Report& report, const Io& io, Total& total) {
  total.passed += report.passed;
  total.failed += report.failed;
  if (report.has_malformed())
    total.status = static_cast<int>(ErrorCode::invalid_input);
  else if (report.failed != 0 && total.status == kDone)
    total.status = static_cast<int>(ErrorCode::mismatch);

  Json failures = Json::array();
  for (const Failure& failure : report.failures) {
    failures.push_back(to_json(failure));
    if (!io.json) io.out << text(failure) << "\n";
  }
  total.files.push_back({{"file", report.path},
                         {"schema", report.schema},
                         {"passed", report.passed},
                         {"failed", report.failed},
                         {"failures", std::move(failures)}});
  if (!io.json)
    io.out << report.path << ": " << report.schema << ": " << report.passed << " of "
           << report.passed + report.failed << " cases agree\n";
}

Result<int> run_golden_files(const CommandOptions& options, const Io& io) {
  std::unique_ptr<moe::Engine> engine;  // none: the reference, which shows its stages, too
  const Result<runtime::EngineKind> kind = runtime::engine_from_name(options.engine);
  if (!kind) return kind.why();
  if (*kind != runtime::EngineKind::reference) {
    auto result = runtime::make_engine(*kind, std::make_shared<ThreadPool>(io.threads));
    if (!result) return result.why();
    engine = std::move(*result);
  }
  Total total;
  for (const std::string& path : options.files) {
    const Result<Report> report = run_golden_file(path, engine.get());
    if (report)
      add_report(*report, io, total);
    else
      add_error(path, report.why(), io, total);
  }
  if (io.json)
    io.print({{"passed", total.passed}, {"failed", total.failed}, {"files", total.files}});
  else
    io.out << total.passed << " passed, " << total.failed << " failed\n";
  return total.status;
}

cli::Run declare_golden(cli::OptionSet& set) {
  const auto options = std::make_shared<CommandOptions>();
  set.add("FILE", options->files, "Golden files (JSON)").as(cli::Form::path).required();
  set.add("--engine", options->engine, "Engine that computes layers").show_default();
  return [options](const Io& io) { return run_golden_files(*options, io); };
}

}  // namespace

cli::Command command() {
  return {"golden", "Run golden files and show where they first differ",
          "fp4moe golden testdata/formats.json", declare_golden};
}

}  // namespace fp4moe::golden
