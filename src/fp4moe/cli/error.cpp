// fp4moe error ID: what an error id or a finding of lint means, and what to do about it.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/error_rows.hpp"
#include "fp4moe/cli/options.hpp"

namespace fp4moe::cli {

Run declare_error(OptionSet& set);

namespace {

Error unknown_id(const std::string& id, const std::vector<ErrorRow>& rows) {
  std::vector<std::string_view> names;
  for (const ErrorRow& row : rows) names.push_back(row.id);
  return usage("error.unknown", "there is no such error id")
      .expects("an id or its first part, e.g. scale.nan or scale", "'" + printable(id) + "'")
      .try_this(did_you_mean(id, names, "fp4moe error lists all ids"));
}

void print_row(const Io& io, const ErrorRow& row) {
  constexpr std::size_t kIndent = 9;
  io.out << io.bold(row.id) << "\n";
  for (const auto& [key, text] : {std::pair<std::string_view, std::string_view>{"area", row.area},
                                  {"means", row.means},
                                  {"do", row.remedy}})
    io.out << wrapped(fmt::format("  {:<7}{}", key, text), io.columns, kIndent) << "\n";
}

Result<int> run_error(const std::string& id, const Io& io) {
  std::vector<ErrorRow> rows = error_rows();
  const bool is_list = id.empty();
  if (!is_list) {
    const auto is_asked = [&](const ErrorRow& row) {
      return row.id == id || row.id.starts_with(id + ".");
    };
    std::vector<ErrorRow> asked;
    std::ranges::copy_if(rows, std::back_inserter(asked), is_asked);
    if (asked.empty()) return unknown_id(id, rows);
    rows = std::move(asked);
  }
  if (io.json) {
    Json result = Json::array();
    for (const ErrorRow& row : rows)
      result.push_back(
          {{"id", row.id}, {"area", row.area}, {"means", row.means}, {"do", row.remedy}});
    io.print({{"command", "error"}, {"errors", std::move(result)}});
    return kDone;
  }
  std::string_view area;
  for (const ErrorRow& row : rows) {
    if (!is_list) {
      print_row(io, row);
      continue;
    }
    if (row.area != area) io.out << io.bold(row.area) << "\n";
    area = row.area;
    io.out << wrapped(fmt::format("  {}: {}", row.id, row.means), io.columns, 4) << "\n";
  }
  return kDone;
}

}  // namespace

Run declare_error(OptionSet& set) {
  const auto id = std::make_shared<std::string>();
  std::set<std::string> ids;  // some are in two areas
  for (const ErrorRow& row : error_rows()) ids.emplace(row.id);
  set.add("ID", *id, "The id in brackets behind an error, or its first part (default: list all)")
      .offering({ids.begin(), ids.end()});
  return [id](const Io& io) { return run_error(*id, io); };
}

}  // namespace fp4moe::cli
