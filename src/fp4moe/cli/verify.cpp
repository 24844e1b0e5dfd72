// fp4moe verify: whether a converted folder is what was written, and with --deep, what its source
// gives.
//
// Exit status: 0 it is, 3 not a converted folder, 5 it is not, 130 interrupted.
#include "fp4moe/convert/folder/verify.hpp"

#include <memory>
#include <string>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/counts.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/progress.hpp"

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
    for (const Error& finding : report.findings) findings.push_back(to_json(finding));
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
  for (const Error& finding : report.findings) io.out << text(finding) << "\n";
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

Result<int> run_verify(const VerifyOptions& options, const Io& io) {
  const Result<std::uint64_t> total = convert::verify_bytes(options.path, options.deep);
  const InterruptGuard guard;
  const Result<convert::VerifyReport> report = [&] {
    Progress progress(io, "verify", total ? *total : 0);
    return convert::verify_folder(
        options.path, {.threads = options.threads == 0 ? io.threads : options.threads,
                       .deep = options.deep,
                       .source = options.source,
                       .progress = [&progress](std::uint64_t bytes) { progress.add(bytes); }});
  }();
  if (!report) return report.why();
  print(io, *report, options);
  return report->findings.empty() ? kDone : static_cast<int>(ErrorCode::mismatch);
}

}  // namespace

Run declare_verify(OptionSet& set) {
  const auto options = std::make_shared<VerifyOptions>();
  set.add("PATH", options->path, "Converted folder").as(Form::path).required();
  set.add("--deep", options->deep, "Pack every expert of the source again and compare");
  set.add("--source", options->source,
          "With --deep: where the source is now (default: where it was)")
      .as(Form::path);
  set.add_threads(options->threads);
  return [options](const Io& io) { return run_verify(*options, io); };
}

}  // namespace fp4moe::cli
