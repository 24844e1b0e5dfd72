#include "fp4moe/cli/error_rows.hpp"

#include <fmt/format.h>

#include "fp4moe/checkpoint/lint/lint.hpp"

namespace fp4moe::cli {

std::vector<ErrorRow> error_rows() {
  std::vector<ErrorRow> rows = table_rows();
  for (const checkpoint::LintRule& rule : checkpoint::lint_rules())
    rows.push_back({std::string(rule.code), "Findings of lint", fmt::format("{}.", rule.what),
                    rule.fix.empty() ? fmt::format("{}.", rule.remedy)
                                     : fmt::format("{} (`--fix {}`).", rule.remedy, rule.fix)});
  return rows;
}

}  // namespace fp4moe::cli
