#include "fp4moe/cli/dialect_names.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/phrase.hpp"

namespace fp4moe::cli {

namespace {

std::vector<std::string_view> all_dialects() {
  std::vector<std::string_view> names;
  for (const checkpoint::DialectRow& row : checkpoint::dialects())
    if (std::find(names.begin(), names.end(), row.name) == names.end()) names.push_back(row.name);
  return names;
}

}  // namespace

std::string dialect_names(std::optional<checkpoint::Dialect> except) {
  std::vector<std::string_view> names = all_dialects();
  if (except) std::erase(names, name(*except));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string meant_dialect(std::string_view word) { return did_you_mean(word, all_dialects()); }

}  // namespace fp4moe::cli
