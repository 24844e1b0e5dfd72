// Reads a command line by an OptionSet.
#pragma once
#include <optional>
#include <span>
#include <string>

#include "fp4moe/base/result.hpp"
#include "fp4moe/cli/options.hpp"

namespace fp4moe::cli {

// `words` begins with the program's name, `version` is what -V and --version print (empty: no such
// option), `columns` the width of help texts. Fills the variables of `set` and calls `chosen` of
// the subcommands that were named. Where help or the version is asked for, returns that text
// instead.
//
//   --out PATH, --out=PATH, -o PATH, -oPATH; what follows -- is no option. An option's value may
//   begin with a dash, unless it is the name of another one.
//
// Errors: command.unknown, command.option, command.words, and those of assign().
Result<std::optional<std::string>> parse(const OptionSet& set, std::span<const char* const> words,
                                         const std::string& version = {}, std::size_t columns = 0);

// `word` is no subcommand of `set`.
Error unknown_command(const OptionSet& set, std::string_view word);

}  // namespace fp4moe::cli
