#include "fp4moe/cli/error_text.hpp"

#include <fmt/format.h>

#include "fp4moe/base/phrase.hpp"
#include "fp4moe/cli/errors_toml.hpp"

namespace fp4moe::cli {

namespace {

// "model.safetensors: "a": it is wrong [x.y]" after `head`, then what was found and what to do.
std::string lines(std::string head, const Error& why, std::size_t columns, std::size_t indent) {
  constexpr std::size_t kMax = 4000;  // of a part
  const auto shown = [](std::string_view part) { return escaped(part, kMax); };
  const std::string margin(indent + 2, ' ');
  const std::size_t rest = columns == 0 ? 0 : columns - indent - 2;
  if (!why.path.empty()) head += shown(why.path) + ": ";
  if (!why.tensor.empty()) head += "\"" + shown(why.tensor) + "\": ";
  std::string result =
      wrapped(fmt::format("{}{} [{}]", head, shown(why.message), why.id), columns, indent + 2) +
      "\n";
  std::string facts;
  if (!why.found.empty()) facts = "found: " + shown(why.found);
  if (!why.expected.empty())
    facts += (facts.empty() ? "expected: " : "; expected: ") + shown(why.expected);
  const auto add = [&](const std::string& line) {
    result += margin + wrapped(line, rest, indent + 9) + "\n";
  };
  if (!facts.empty()) add(facts);
  if (!why.remedy.empty()) add("do:    " + shown(why.remedy));
  return result;
}

}  // namespace

std::string error_text(const Error& why, std::string_view command, std::size_t columns) {
  return lines(command.empty() ? "fp4moe: " : fmt::format("fp4moe {}: ", command),
               with_usual_remedy(why), columns, 0);
}

std::string finding_text(const Error& why, std::size_t columns, std::size_t indent) {
  return lines({}, with_usual_remedy(why), columns, indent);
}

void print_plain_error(std::ostream& err, std::string_view path,
                       std::initializer_list<std::string_view> sentence, std::string_view id) {
  const auto print = [&err](std::string_view text) {
    for (const char c : text) err.put(static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c);
  };
  err << "fp4moe: ";
  print(path);
  if (!path.empty()) err << ": ";
  for (const std::string_view part : sentence) print(part);
  err << " [";
  print(id);
  err << "]\n";
}

Error with_usual_remedy(Error why) {
  if (why.remedy.empty()) why.remedy = usual_remedy(why.id);
  return why;
}

}  // namespace fp4moe::cli
