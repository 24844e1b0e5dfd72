#include "fp4moe/cli/dialect_names.hpp"

#include <algorithm>
#include <vector>

#include "fp4moe/base/text.hpp"
#include "fp4moe/weights/dialect.hpp"

namespace fp4moe::cli {

std::string dialect_names() {
  std::vector<std::string> names;
  for (const weights::DialectRow& row : weights::dialects())
    if (std::find(names.begin(), names.end(), row.name) == names.end())
      names.emplace_back(row.name);
  return join(names, ", ");
}

}  // namespace fp4moe::cli
