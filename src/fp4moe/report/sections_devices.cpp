// Which backend each device gets, with every reason, and what the model takes there.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/report/markup.hpp"
#include "fp4moe/report/sections.hpp"

namespace fp4moe::report {
namespace {

std::string word(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_string() ? "" : found->get<std::string>();
}

std::string bullet_list(const std::vector<std::string>& items) {
  if (items.empty()) return "";
  std::string result = "<ul>";
  for (const std::string& item : items) result += "<li>" + item + "</li>";
  return result + "</ul>";
}

std::string joined(const Json& texts, std::string_view separator) {
  std::vector<std::string> all;
  for (const Json& text : texts) all.push_back(text.get<std::string>());
  return join(all, separator);
}

std::string choice_box(const Json& explain) {
  const bool is_served = explain.value("served", false);
  std::string result = fmt::format("<div class=\"answer {}\"><p><b>{}</b></p>",
                                   is_served ? "good" : "bad", escaped(word(explain, "summary")));
  std::vector<std::string> notes;
  for (const std::string_view key : {"warnings", "notes"})
    for (const Json& note : explain.at(key)) notes.push_back(escaped(note.get<std::string>()));
  if (explain.at("assumed").size() > 0)
    notes.push_back("assumed: " + escaped(joined(explain.at("assumed"), "; ")));
  for (const Json& other : explain.at("alternatives"))
    notes.push_back(fmt::format(
        "{}: {}", escaped(word(other, "title")),
        word(other, "backend").empty() ? "no backend" : escaped(word(other, "backend"))));
  return result + bullet_list(notes) + "</div>\n";
}

std::string changes_table(const Json& explain) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& change : explain.at("to_change"))
    rows.push_back({escaped(word(change, "backend")),
                    fmt::format("<code>{}</code>", escaped(joined(change.at("steps"), " ")))});
  if (rows.empty()) return "";
  constexpr Column kColumns[] = {{"to get"}, {"do"}};
  return table(kColumns, rows);
}

std::string verdict(const Json& explain, const Json& candidate) {
  const bool is_chosen = word(candidate, "backend") == word(explain, "backend") &&
                         word(candidate, "experts") == word(explain, "experts");
  if (is_chosen) return badge("good", "chosen");
  return candidate.value("accepted", false) ? badge("plain", "would run") : badge("bad", "refused");
}

std::string candidates_table(const Json& explain) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& candidate : explain.at("candidates")) {
    std::vector<std::string> reasons;
    for (const Json& refusal : candidate.at("refusals"))
      reasons.push_back(fmt::format("{}; {}", escaped(word(refusal, "requirement")),
                                    escaped(word(refusal, "fact"))));
    rows.push_back(
        {escaped(word(candidate, "backend")),
         fmt::format("{}<br><span class=\"soft\">{}, {}</span>",
                     escaped(word(candidate, "experts")), escaped(word(candidate, "kind")),
                     escaped(word(candidate, "token_format"))),
         verdict(explain, candidate), bullet_list(reasons)});
  }
  constexpr Column kColumns[] = {{"backend"}, {"kernel"}, {"verdict"}, {"reasons"}};
  return fmt::format(
      "<details open><summary>All {} kernels, with every reason</summary>\n{}</details>\n",
      rows.size(), table(kColumns, rows));
}

std::string plan_figure(const Json& plan) {
  std::vector<Bar> rows;
  for (const Json& backend : plan.at("backends")) {
    if (!backend.contains("bytes") || backend.at("bytes").is_null()) continue;
    const auto bytes = backend.at("bytes").at("rank").get<std::uint64_t>();
    const bool fits = !backend.contains("fits") || !backend.at("fits").is_boolean() ||
                      backend.at("fits").get<bool>();
    const bool is_chosen = backend.value("chosen", false);
    rows.push_back({.label = word(backend, "backend"),
                    .value_text = human_bytes(bytes) + (is_chosen ? ", chosen" : ""),
                    .value = static_cast<double>(bytes),
                    .kind = !fits       ? "bad"
                            : is_chosen ? "good"
                                        : "plain"});
  }
  const auto memory = plan.value<std::uint64_t>("device_bytes", 0);
  return rows.empty() ? ""
                      : bars(rows, static_cast<double>(memory),
                             fmt::format("memory of the device: {}", human_bytes(memory)));
}

std::string size_text(const Json& backend, const char* key) {
  const auto before = backend.at("before").at(key).get<std::uint64_t>();
  const auto after = backend.at("after").at(key).get<std::uint64_t>();
  return before == after ? std::to_string(before) : fmt::format("{} &rarr; {}", before, after);
}

std::string plan_table(const Json& plan) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& backend : plan.at("backends")) {
    const std::string refused = word(backend, "refused");
    if (!backend.contains("bytes") || backend.at("bytes").is_null()) {
      const bool is_impossible = refused.empty() && backend.contains("impossible");
      rows.push_back(
          {escaped(word(backend, "backend")),
           badge("bad", is_impossible ? "impossible" : "refused"),
           escaped(is_impossible ? word(backend.at("impossible"), "message") : refused)});
      continue;
    }
    const Json& bytes = backend.at("bytes");
    rows.push_back({escaped(word(backend, "backend")),
                    backend.value("chosen", false) ? badge("good", "chosen")
                    : refused.empty()              ? badge("plain", "would run")
                                                   : badge("bad", "refused"),
                    escaped(word(backend, "layout")), size_text(backend, "hidden"),
                    size_text(backend, "intermediate"),
                    human_bytes(bytes.at("rank").get<std::uint64_t>()),
                    fmt::format("{:.3f}", backend.value("memory_ratio", 1.0)),
                    fmt::format("{:.3f}", backend.value("work_ratio", 1.0))});
  }
  constexpr Column kColumns[] = {{"backend"},
                                 {""},
                                 {"layout"},
                                 {"hidden", true},
                                 {"intermediate", true},
                                 {"bytes a rank", true},
                                 {"memory", true},
                                 {"work", true}};
  return table(kColumns, rows) +
         soft("Memory and work: with padding, over what they would be without.");
}

std::string plan_part(const Json& answer) {
  std::string result = "<h3>Plan</h3>\n" + command_line(answer);
  const Json* plan = result_of(answer);
  if (plan == nullptr) return result + failure(answer.at("error"));
  if (const std::string none = word(*plan, "no_choice"); !none.empty())
    result += fmt::format("<p>No backend is chosen: {}</p>\n", escaped(none));
  return result + plan_figure(*plan) + plan_table(*plan);
}

std::string selection_part(const Json& answer) {
  std::string result = command_line(answer);
  const Json* explain = result_of(answer);
  if (explain == nullptr) return result + failure(answer.at("error"));
  return result + choice_box(*explain) + changes_table(*explain) + candidates_table(*explain);
}

}  // namespace

std::string devices_section(const Json& facts) {
  std::string result;
  for (const Json& device : facts.at("devices")) {
    const Json* explain = result_of(device.at("explain"));
    std::string name = word(device, "device");
    if (explain != nullptr) name = word(explain->at("device"), "name");
    result += fmt::format("<h3>{}</h3>\n", escaped(name)) + selection_part(device.at("explain")) +
              plan_part(device.at("plan"));
  }
  return result;
}

}  // namespace fp4moe::report
