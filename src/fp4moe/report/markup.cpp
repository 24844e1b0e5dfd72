#include "fp4moe/report/markup.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::report {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : printable(text)) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string grouped(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string table(std::span<const Column> columns,
                  const std::vector<std::vector<std::string>>& rows) {
  std::string result = "<div class=\"scroll\"><table><thead><tr>";
  const auto cell = [&](std::string_view tag, std::size_t i, std::string_view content) {
    const bool is_number = i < columns.size() && columns[i].is_number;
    result += fmt::format("<{}{}>{}</{}>", tag, is_number ? " class=\"number\"" : "", content, tag);
  };
  for (std::size_t i = 0; i < columns.size(); ++i) cell("th", i, escaped(columns[i].title));
  result += "</tr></thead>\n<tbody>\n";
  for (const std::vector<std::string>& row : rows) {
    result += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) cell("td", i, row[i]);
    result += "</tr>\n";
  }
  return result + "</tbody></table></div>\n";
}

std::string badge(std::string_view kind, std::string_view text) {
  return fmt::format("<span class=\"badge {}\">{}</span>", kind, escaped(text));
}

}  // namespace fp4moe::report
