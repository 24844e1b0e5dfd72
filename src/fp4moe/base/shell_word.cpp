#include "fp4moe/base/shell_word.hpp"

#include <algorithm>

namespace fp4moe {

std::string shell_word(std::string_view word) {
  const auto is_plain = [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           (letter >= '0' && letter <= '9') ||
           std::string_view("_-.,:=+/@%").find(letter) != std::string_view::npos;
  };
  if (!word.empty() && std::ranges::all_of(word, is_plain)) return std::string(word);
  std::string result = "'";
  for (const char letter : word)
    result += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return result + "'";
}

}  // namespace fp4moe
