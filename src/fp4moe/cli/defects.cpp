#include "fp4moe/cli/defects.hpp"

#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe::cli {

void warn_of_defects(const checkpoint::LintReport& report, const Io& io) {
  std::vector<std::string> codes;
  for (const checkpoint::Finding& finding : report.findings) {
    const bool counts =
        finding.severity == checkpoint::Severity::error || finding.code == "scale.global_inverted";
    const std::string shown = fmt::format("{} ({})", finding.code, report.counts.at(finding.code));
    if (counts && (codes.empty() || codes.back() != shown)) codes.push_back(shown);
  }
  if (codes.empty()) return;
  const std::string path = printable(report.path);
  io.err << wrapped(fmt::format("warning: {} has defects: {}; see fp4moe lint {}", path,
                                join(codes, ", "), path),
                    io.err_columns, 2)
         << "\n";
}

}  // namespace fp4moe::cli
