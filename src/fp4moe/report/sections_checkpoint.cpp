// The section on the checkpoint and its defects.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/report/markup.hpp"
#include "fp4moe/report/sections.hpp"

namespace fp4moe::report {
namespace {

std::string text_of(const Json& object, std::string_view key) {
  return object.value<std::string>(key, "");
}

std::uint64_t number_of(const Json& object, std::string_view key) {
  return object.value<std::uint64_t>(key, 0);
}

std::string card(std::string_view what, std::string_view value) {
  return fmt::format("<div class=\"card\"><b>{}</b><span>{}</span></div>\n", value, what);
}

bool is_converted(const Json& facts) { return facts.at("kind").get<std::string>() == "converted"; }

std::string range_text(const Json& numbers) {
  if (numbers.size() == 0) return "";
  const auto first = numbers.front().get<std::uint64_t>(),
             last = numbers.back().get<std::uint64_t>();
  if (last - first + 1 == numbers.size() && last > first) return fmt::format("{}-{}", first, last);
  std::vector<std::string> all;
  for (const Json& number : numbers) all.push_back(std::to_string(number.get<std::uint64_t>()));
  return join(all, ", ");
}

std::string layers_table(const Json& inspect) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& layer : inspect.at("layers")) {
    std::vector<std::string> extras{text_of(layer, "row_order") + " w13"};
    if (layer.value("has_bias", false)) extras.emplace_back("bias");
    if (layer.value("has_input_scale", false)) extras.emplace_back("input scales");
    rows.push_back({fmt::format("<code>{}</code>", escaped(text_of(layer, "prefix"))),
                    range_text(layer.at("numbers")), escaped(text_of(layer, "format")),
                    grouped(number_of(layer, "experts")), grouped(number_of(layer, "hidden")),
                    grouped(number_of(layer, "intermediate")), escaped(join(extras, ", "))});
  }
  for (const Json& layer : inspect.at("other_layers"))
    rows.push_back({fmt::format("<code>{}</code>", escaped(text_of(layer, "prefix"))),
                    std::to_string(number_of(layer, "number")),
                    "not FP4: " + escaped(text_of(layer, "what"))});
  if (rows.empty()) return "";
  constexpr Column kColumns[] = {{"layers"},        {"numbers"},      {"format"},
                                 {"experts", true}, {"hidden", true}, {"intermediate", true},
                                 {"form"}};
  return table(kColumns, rows);
}

std::string types_figure(const Json& inspect) {
  std::vector<Bar> rows;
  for (const auto& [type, count] : inspect.at("types").items()) {
    const std::uint64_t bytes = number_of(count, "bytes");
    rows.push_back({.label = type,
                    .value_text = fmt::format("{} in {}", human_bytes(bytes),
                                              counted(number_of(count, "tensors"), "tensor")),
                    .value = static_cast<double>(bytes)});
  }
  std::ranges::sort(rows, {}, [](const Bar& row) { return -row.value; });
  return rows.empty() ? "" : "<h3>Bytes by type</h3>\n" + bars(rows, 0, "bytes of each type");
}

std::string files_table(const Json& inspect) {
  constexpr std::size_t kMaxFiles = 12;
  std::vector<std::vector<std::string>> rows;
  const Json& files = inspect.at("files");
  for (std::size_t i = 0; i < std::min(files.size(), kMaxFiles); ++i)
    rows.push_back({fmt::format("<code>{}</code>", escaped(text_of(files[i], "path"))),
                    human_bytes(number_of(files[i], "bytes"))});
  if (files.size() > kMaxFiles)
    rows.push_back({fmt::format("and {} more", files.size() - kMaxFiles)});
  constexpr Column kColumns[] = {{"file"}, {"bytes", true}};
  return "<h3>Files</h3>\n" + table(kColumns, rows);
}

std::string findings_badges(const Json& lint) {
  const auto one = [&](std::string_view key, std::string_view kind, std::string_view word) {
    const std::uint64_t count = number_of(lint, key);
    return badge(count == 0 ? "good" : kind, counted(count, word)) + " ";
  };
  return one("errors", "bad", "error") + one("warnings", "warn", "warning") +
         one("notes", "plain", "note");
}

// For the card: what is there, or that nothing is.
std::string findings_summary(const Json& lint) {
  std::string result;
  if (const auto count = number_of(lint, "errors"); count > 0)
    result += badge("bad", counted(count, "error")) + " ";
  if (const auto count = number_of(lint, "warnings"); count > 0)
    result += badge("warn", counted(count, "warning")) + " ";
  if (const auto count = number_of(lint, "notes"); count > 0)
    result += badge("plain", counted(count, "note"));
  return result.empty() ? badge("good", "no findings") : result;
}

std::string place_of(const Json& finding) {
  std::vector<std::string> parts;
  if (finding.contains("layer"))
    parts.push_back(fmt::format("layer {}", number_of(finding, "layer")));
  if (finding.contains("expert"))
    parts.push_back(fmt::format("expert {}", number_of(finding, "expert")));
  const std::string name = text_of(finding, finding.contains("tensor") ? "tensor" : "file");
  if (!name.empty()) parts.push_back(fmt::format("<code>{}</code>", escaped(name)));
  return join(parts, ", ");
}

std::string lint_table(const Json& lint) {
  constexpr std::size_t kShownOfCode = 8;
  std::vector<std::vector<std::string>> rows;
  const Json& findings = lint.at("findings");
  std::size_t of_code = 0;
  for (std::size_t i = 0; i < findings.size(); ++i) {
    const Json& finding = findings[i];
    const std::string code = text_of(finding, "code"), severity = text_of(finding, "severity");
    const bool is_first = i == 0 || text_of(findings[i - 1], "code") != code;
    of_code = is_first ? 1 : of_code + 1;
    if (of_code > kShownOfCode + 1) continue;
    if (of_code == kShownOfCode + 1) {
      rows.push_back({"", "",
                      fmt::format("and {} more", number_of(lint.at("counts"), code) - kShownOfCode),
                      ""});
      continue;
    }
    const std::string_view kind = severity == "error"     ? "bad"
                                  : severity == "warning" ? "warn"
                                                          : "plain";
    rows.push_back({badge(kind, severity), fmt::format("<code>{}</code>", escaped(code)),
                    fmt::format("{}<br>{}", place_of(finding), escaped(text_of(finding, "fact"))),
                    is_first ? escaped(text_of(finding, "remedy")) : ""});
  }
  constexpr Column kColumns[] = {{""}, {"code"}, {"where and what"}, {"what to do"}};
  return table(kColumns, rows);
}

std::string lint_part(const Json& answer) {
  std::string result = command_line(answer);
  const Json* lint = result_of(answer);
  if (lint == nullptr) return result + failure(answer.at("error"));
  result += "<p>" + findings_badges(*lint) + "</p>\n";
  if (number_of(*lint, "layers") > 0)
    result += soft(fmt::format("{}, {} of all layers, {} of scales read.",
                               counted(number_of(*lint, "layers"), "layer"),
                               counted(number_of(*lint, "experts"), "expert"),
                               human_bytes(number_of(*lint, "bytes_read"))));
  return lint->at("findings").size() == 0 ? result + "<p>Nothing is wrong with it.</p>\n"
                                          : result + lint_table(*lint);
}

std::string verify_part(const Json& answer) {
  std::string result = command_line(answer);
  const Json* verify = result_of(answer);
  if (verify == nullptr) return result + failure(answer.at("error"));
  const std::size_t count = verify->at("findings").size();
  result +=
      fmt::format("<p>{}</p>\n", badge(count == 0 ? "good" : "bad", counted(count, "difference")));
  if (count == 0)
    return result + fmt::format("<p>All {} of {} have the checksums of the manifest.</p>\n",
                                counted(number_of(*verify, "tensors"), "tensor"),
                                counted(number_of(*verify, "files"), "file"));
  for (const Json& finding : verify->at("findings")) result += failure(finding);
  return result;
}

std::string shape_cards(const Json& inspect) {
  std::string result;
  std::uint64_t layers = 0;
  for (const Json& group : inspect.at("layers")) layers += group.at("numbers").size();
  if (layers == 0) return card("dialect", "not recognized");
  const Json& first = inspect.at("layers").front();
  result += card("dialect", escaped(text_of(inspect, "dialect")));
  result += card("format", escaped(text_of(inspect, "format")));
  result += card("MoE layers", grouped(layers));
  result += card("experts a layer", grouped(number_of(first, "experts")));
  result += card("hidden x intermediate", fmt::format("{} x {}", number_of(first, "hidden"),
                                                      number_of(first, "intermediate")));
  result += card("bytes of experts", human_bytes(number_of(inspect.at("bytes"), "experts")));
  return result +
         card("bits a weight", fmt::format("{:.2f}", inspect.value("bits_per_weight", 0.0)));
}

}  // namespace

std::string cards(const Json& facts) {
  std::string result = "<div class=\"cards\">\n";
  const Json* inspect = result_of(facts.at("inspect"));
  if (is_converted(facts)) {
    const Json* verify = result_of(facts.at("verify"));
    result += card("kind", "converted folder");
    if (verify != nullptr) {
      result += card("backend", escaped(text_of(*verify, "backend")));
      result += card("layout", escaped(text_of(*verify, "layout")));
      result += card("MoE layers", grouped(number_of(*verify, "layers")));
      result += card("bytes", human_bytes(number_of(*verify, "bytes")));
      const std::size_t count = verify->at("findings").size();
      result +=
          card("checksums", badge(count == 0 ? "good" : "bad", count == 0 ? "equal" : "differ"));
    }
  } else {
    if (inspect != nullptr) result += shape_cards(*inspect);
    if (const Json* lint = result_of(facts.at("lint")); lint != nullptr)
      result += card("lint", findings_summary(*lint));
  }
  return result + "</div>\n";
}

std::string identity_section(const Json& facts) {
  const Json& answer = facts.at("inspect");
  std::string result = command_line(answer);
  const Json* inspect = result_of(answer);
  if (inspect == nullptr) return result + failure(answer.at("error"));
  if (is_converted(facts))
    result +=
        "<p>A folder that <code>fp4moe convert</code> wrote: weights in a backend's layout.</p>\n";
  else if (inspect->contains("evidence"))
    result +=
        fmt::format("<p>{}, grouped {}: {}.</p>\n", escaped(text_of(*inspect, "dialect")),
                    escaped(text_of(*inspect, "grouping")), escaped(text_of(*inspect, "evidence")));
  for (const Json& problem : inspect->at("problems"))
    if (text_of(problem, "id") != "dialect.converted") result += failure(problem);
  return result + layers_table(*inspect) + types_figure(*inspect) + files_table(*inspect);
}

std::string findings_section(const Json& facts) {
  return is_converted(facts) ? verify_part(facts.at("verify")) : lint_part(facts.at("lint"));
}

}  // namespace fp4moe::report
