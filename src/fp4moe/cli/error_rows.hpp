// The meaning of every error id and every rule of lint, and what to do.
#pragma once
#include <vector>

#include "fp4moe/cli/errors_toml.hpp"

namespace fp4moe::cli {

// All rows, an area's together, lint's last.
std::vector<ErrorRow> error_rows();

}  // namespace fp4moe::cli
