// Reads a command line by an OptionSet.
#pragma once
#include <optional>
#include <span>
#include <string>

#include "fp4moe/base/result.hpp"
#include "fp4moe/cli/options.hpp"

namespace fp4moe::cli {

// `words` begins with the program's name, `version` is what --version prints (empty: no such
// option). Fills the variables of `set` and calls `chosen` of the subcommands that were named.
// Where help or the version is asked for, returns that text instead.
// Errors: command.words, with a sentence for people.
Result<std::optional<std::string>> parse(const OptionSet& set, std::span<const char* const> words,
                                         const std::string& version = {});

}  // namespace fp4moe::cli
