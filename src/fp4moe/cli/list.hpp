// The names that the program knows, for shells to complete.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace fp4moe::cli {

struct ListRow {
  std::string name{}, what{};
};
std::vector<ListRow> list_engines();

// The names of a subject of `fp4moe list`; empty where there is no such subject.
std::vector<std::string> listed_names(std::string_view subject);

}  // namespace fp4moe::cli
