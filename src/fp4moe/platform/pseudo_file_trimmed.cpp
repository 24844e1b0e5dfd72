#include "fp4moe/platform/pseudo_file.hpp"

namespace fp4moe::platform {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n\v\f";
  const auto first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

}  // namespace fp4moe::platform
