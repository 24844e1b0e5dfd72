#include "fp4moe/cli/errors_toml.hpp"

#include <cstddef>
#include <optional>

#include <fmt/format.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/errors_table.hpp"

namespace fp4moe::cli {
namespace {

// A row of the table is a line `"id" = ["means", "do"]`; both sides are JSON.
std::optional<ErrorRow> read_row(std::string_view line, std::string_view area) {
  const std::size_t sign = line.find(" = ");
  if (sign == line.npos || !line.starts_with('"')) return std::nullopt;
  const Result<Json> value = parse_json(line.substr(sign + 3));
  if (!value || !value->is_array() || value->size() != 2 || !(*value)[0].is_string() ||
      !(*value)[1].is_string())
    return std::nullopt;
  return ErrorRow{std::string(line.substr(1, sign - 2)), std::string(area), (*value)[0].string(),
                  (*value)[1].string()};
}

// Markdown as a terminal shows it: the words of a link, no backticks.
std::string plain(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t middle = text.find("]("), end = text.find(')', middle);
    const std::size_t begin = middle == text.npos ? middle : text.rfind('[', middle);
    if (begin == text.npos || end == text.npos) break;
    result.append(text.substr(0, begin)).append(text.substr(begin + 1, middle - begin - 1));
    text.remove_prefix(end + 1);
  }
  result.append(text);
  std::erase(result, '`');
  return result;
}

}  // namespace

std::vector<ErrorRow> table_rows() {
  constexpr std::string_view kTitle = "title = ";
  std::vector<ErrorRow> rows;
  std::string area;
  for (const std::string_view line : split(kErrorsTable, '\n')) {
    if (line.starts_with(kTitle)) {
      if (const Result<Json> title = parse_json(line.substr(kTitle.size()))) area = title->string();
    } else if (std::optional<ErrorRow> row = read_row(line, area)) {
      rows.push_back(*std::move(row));
    }
  }
  return rows;
}

std::string usual_remedy(std::string_view id) {
  const std::string front = fmt::format("\"{}\" = ", id);
  for (const std::string_view line : split(kErrorsTable, '\n'))
    if (line.starts_with(front))
      if (const std::optional<ErrorRow> row = read_row(line, {})) return plain(row->remedy);
  return {};
}

}  // namespace fp4moe::cli
