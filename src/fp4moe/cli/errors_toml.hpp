// The table of docs/errors.toml: what every error id means and what to do.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace fp4moe::cli {

struct ErrorRow {
  std::string id{}, area{}, means{}, remedy{};
};

// All rows, an area's together.
std::vector<ErrorRow> table_rows();

// The table's remedy for an id, as plain text; empty: the table does not know it.
std::string usual_remedy(std::string_view id);

}  // namespace fp4moe::cli
