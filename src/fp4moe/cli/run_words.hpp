// A command line without the process around it: parses, runs, prints the result or the error.
#pragma once
#include <functional>
#include <span>
#include <string>

#include "fp4moe/base/result.hpp"
#include "fp4moe/cli/command.hpp"

namespace fp4moe::cli {

// Runs a command; whoever calls run_words puts its own demands around it. `out`: what -o names, or
// nothing.
using RunCommand = Result<int> (*)(const Command& command, const Run& run, const Io& io,
                                   const std::string& out);

// `words` begins with the program's name; the commands are those of `io`. Returns the exit status.
int run_words(std::span<const char* const> words, Io io, RunCommand run);

}  // namespace fp4moe::cli
