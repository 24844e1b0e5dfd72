#include "fp4moe/cli/error_text.hpp"

#include <fmt/format.h>

#include "fp4moe/base/phrase.hpp"

namespace fp4moe::cli {

std::string error_text(const Error& why, std::string_view command, std::size_t columns) {
  constexpr std::size_t kMax = 4000;  // of a part
  const auto shown = [](std::string_view part) { return escaped(part, kMax); };
  std::string head = command.empty() ? "fp4moe: " : fmt::format("fp4moe {}: ", command);
  if (!why.path.empty()) head += shown(why.path) + ": ";
  if (!why.tensor.empty()) head += "\"" + shown(why.tensor) + "\": ";
  std::string result =
      wrapped(fmt::format("{}{} [{}]", head, shown(why.message), why.id), columns, 2) + "\n";
  std::string facts;
  if (!why.found.empty()) facts = "found: " + shown(why.found);
  if (!why.expected.empty())
    facts += (facts.empty() ? "expected: " : "; expected: ") + shown(why.expected);
  if (!facts.empty()) result += "  " + wrapped(facts, columns == 0 ? 0 : columns - 2, 9) + "\n";
  if (!why.remedy.empty())
    result +=
        "  " + wrapped("do:    " + shown(why.remedy), columns == 0 ? 0 : columns - 2, 9) + "\n";
  return result;
}

}  // namespace fp4moe::cli
