// `fp4moe golden`, which the program has beside the library's commands.
#pragma once
#include "fp4moe/cli/command.hpp"

namespace fp4moe::golden {

cli::Command command();

}  // namespace fp4moe::golden
