// What the program knows by name, for shells to complete.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace fp4moe::cli {

// The names of a subject of `fp4moe list`; empty where there is no such subject.
std::vector<std::string> listed_names(std::string_view subject);

}  // namespace fp4moe::cli
