#include <fmt/format.h>

#include "fp4moe/cli/list.hpp"
#include "fp4moe/runtime/engines.hpp"

namespace fp4moe::cli {

std::vector<ListRow> list_engines() {
  std::vector<ListRow> rows;
  for (const runtime::EngineRow& engine : runtime::engines())
    rows.push_back(
        {std::string(engine.name),
         fmt::format("{}{}", engine.what, engine.is_built() ? "" : "; not in this build")});
  return rows;
}

}  // namespace fp4moe::cli
