// One line about what lint would find in a checkpoint, for commands that use it as it is.
#pragma once
#include <string>

#include "fp4moe/checkpoint/lint/lint.hpp"
#include "fp4moe/cli/command.hpp"

namespace fp4moe::cli {

// Warns on `err` of errors and of global scales that look inverted; of a converted folder and of
// sound values says nothing.
void warn_of_defects(const checkpoint::LintReport& report, const Io& io);

}  // namespace fp4moe::cli
