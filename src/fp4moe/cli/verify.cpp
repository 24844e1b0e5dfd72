// fp4moe verify: whether a converted folder is what was written, and with --deep, what its source
// gives.
//
// Exit status: 0 it is, 3 not a converted folder, 5 it is not, 130 interrupted.
#include "fp4moe/convert/folder/verify.hpp"

#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/counts.hpp"
#include "fp4moe/cli/error_text.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/progress.hpp"
#include "fp4moe/cli/rank_folders.hpp"

namespace fp4moe::cli {

Run declare_verify(OptionSet& set);

namespace {

struct VerifyOptions {
  std::string path{}, source{};
  std::size_t threads = 0;
  bool deep = false;
};

void print(const Io& io, const convert::VerifyReport& report, const VerifyOptions& options) {
  if (io.json) {
    Json findings = Json::array();
    for (const Error& finding : report.findings)
      findings.push_back(to_json(with_usual_remedy(finding)));
    io.print({{"command", "verify"},
              {"path", options.path},
              {"layout", report.layout},
              {"generation", report.generation},
              {"backend", report.backend},
              {"layers", report.layers},
              {"files", report.files},
              {"tensors", report.tensors},
              {"bytes", report.bytes},
              {"deep", report.deep},
              {"findings", std::move(findings)},
              {"more_findings", report.more},
              {"seconds", report.seconds}});
    return;
  }
  for (const Error& finding : report.findings) io.out << finding_text(finding, io.columns);
  if (report.more != 0) io.out << fmt::format("... and {} more\n", report.more);
  if (!report.findings.empty()) {
    io.out << fmt::format("{}: {}\n", options.path,
                          counted(report.findings.size() + report.more, "finding"));
    return;
  }
  io.out << fmt::format(
      "{}: {}{}, {}, {}, {}: {}\n", options.path,
      convert::layout_text(report.layout, report.generation),
      report.backend.empty() ? "" : fmt::format(" for {}", report.backend),
      counted(report.layers, "MoE layer"), counted(report.tensors, "tensor"),
      human_bytes(report.bytes),
      report.deep ? "every byte is what the source gives" : "every checksum is right");
}

Result<convert::VerifyReport> verify_one(const VerifyOptions& options, const std::string& path,
                                         const Io& io) {
  const Result<std::uint64_t> total = convert::verify_bytes(path, options.deep);
  Progress progress(io, "verify", total ? *total : 0);
  return convert::verify_folder(
      path, {.threads = options.threads == 0 ? io.threads : options.threads,
             .deep = options.deep,
             .source = options.source,
             .progress = [&progress](std::uint64_t bytes) { progress.add(bytes); }});
}

// Adds a rank's report to that of all ranks.
void add(convert::VerifyReport& all, convert::VerifyReport rank) {
  all.layout = rank.layout, all.generation = rank.generation, all.backend = rank.backend;
  all.layers = rank.layers, all.deep = rank.deep;
  all.files += rank.files, all.tensors += rank.tensors, all.bytes += rank.bytes;
  all.seconds += rank.seconds, all.more += rank.more;
  for (Error& finding : rank.findings) all.add(std::move(finding));
}

Result<int> run_verify(const VerifyOptions& options, const Io& io) {
  const InterruptGuard guard;
  convert::VerifyReport all;
  for (const std::string& path : rank_folders(options.path)) {
    Result<convert::VerifyReport> report = verify_one(options, path, io);
    if (!report) return report.why();
    add(all, *std::move(report));
  }
  print(io, all, options);
  return all.findings.empty() ? kDone : static_cast<int>(ErrorCode::mismatch);
}

}  // namespace

Run declare_verify(OptionSet& set) {
  const auto options = std::make_shared<VerifyOptions>();
  set.add("PATH", options->path, "Converted folder, or the one that holds all ranks'")
      .as(Form::path)
      .required();
  set.add("--deep", options->deep, "Pack every expert of the source again and compare");
  set.add("--source", options->source,
          "With --deep: where the source is now (default: where it was)")
      .as(Form::path);
  set.add_threads(options->threads);
  return [options](const Io& io) { return run_verify(*options, io); };
}

}  // namespace fp4moe::cli
