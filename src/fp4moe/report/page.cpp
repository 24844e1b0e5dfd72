#include "fp4moe/report/page.hpp"

#include <fmt/format.h>

#include "fp4moe/report/markup.hpp"
#include "fp4moe/report/sections.hpp"
#include "fp4moe/report/style.hpp"

namespace fp4moe::report {
namespace {

struct PageSection {
  std::string_view id, title;
  std::string (*make)(const Json& facts);
};

constexpr PageSection kSections[] = {
    {"identity", "What it is", identity_section}, {"findings", "Findings", findings_section},
    {"scales", "Block scales", scales_section},   {"devices", "Devices", devices_section},
    {"numerics", "Numerics", numerics_section},   {"speed", "Speed", bench_section}};

}  // namespace

std::string command_line(const Json& answer) {
  return fmt::format("<p class=\"command\">{}</p>\n",
                     escaped(answer.at("command").get<std::string>()));
}

std::string failure(const Json& error) {
  const auto part = [&](std::string_view key) {
    return escaped(error.value<std::string>(key, ""));
  };
  std::string result = fmt::format("<div class=\"answer bad\"><p><b>{}</b> <code>{}</code></p>",
                                   part("message"), part("id"));
  std::string where = part("file");
  if (error.contains("tensor")) where += (where.empty() ? "" : ", ") + part("tensor");
  if (!where.empty()) result += fmt::format("<p>{}</p>", where);
  if (error.contains("found"))
    result += fmt::format("<p>found {}; expected {}</p>", part("found"), part("expected"));
  if (error.contains("remedy")) result += fmt::format("<p>{}</p>", part("remedy"));
  return result + "</div>\n";
}

std::string heading(std::string_view id, std::string_view title) {
  return fmt::format("<h2 id=\"{}\">{}</h2>\n", id, escaped(title));
}

std::string soft(std::string_view markup) {
  return fmt::format("<p class=\"soft\">{}</p>\n", markup);
}

const Json* result_of(const Json& answer) {
  const auto found = answer.find("result");
  return found == answer.end() ? nullptr : &*found;
}

std::string page(const Json& facts) {
  std::string navigation, body;
  for (const PageSection& section : kSections) {
    const std::string content = section.make(facts);
    if (content.empty()) continue;
    navigation += fmt::format("<a href=\"#{}\">{}</a>\n", section.id, section.title);
    body += heading(section.id, section.title) + content;
  }
  const std::string name = escaped(facts.at("name").get<std::string>());
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0}: fp4moe report</title>\n<style>{1}</style>\n</head>\n<body>\n<main>\n"
      "<h1>{0}</h1>\n<p class=\"soft\"><code>{2}</code></p>\n{3}<nav>\n{4}</nav>\n{5}"
      "<footer>fp4moe {6}, {7}. Every section names the command that says the same.</footer>\n"
      "</main>\n</body>\n</html>\n",
      name, kStyle, escaped(facts.at("path").get<std::string>()), cards(facts), navigation, body,
      escaped(facts.at("version").get<std::string>()),
      escaped(facts.at("date").get<std::string>()));
}

}  // namespace fp4moe::report
