// The commands of a program as one tree of options: what is parsed, shown by help and completed by
// shells.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/json.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/options.hpp"

namespace fp4moe::cli {

class Program {
 public:
  explicit Program(std::span<const Command> commands);
  Program(const Program&) = delete;  // the options point into it
  Program& operator=(const Program&) = delete;

  // Its subcommands are the commands.
  const OptionSet& options() const { return root_; }

  // Reads a command line, whose first word is the program's name. Returns the text to show instead
  // of running a command, where help or the version is asked for. Errors: those of parse.hpp.
  Result<std::optional<std::string>> parse(std::span<const char* const> words,
                                           std::size_t columns = 0) const;

  // The options that the command line gave.
  bool wants_json() const { return json_; }
  const Command& chosen() const { return *chosen_; }
  const Run& run() const { return run_; }

 private:
  OptionSet root_{};
  bool json_ = false;
  const Command* chosen_ = nullptr;
  Run run_{};
};

// Options and subcommands of a command, for other programs:
//   name, summary, example, subcommands
//   options: names ("-o", "--out"), name ("out"), positional, required, help,
//     type: flag, text, integer, bytes, number or list; form of texts: as the enum Form,
//     item: of a list separated by commas, or null,
//     default: as --help shows it, or null; choices; range: [low, high] or null,
//     listed_in: the subject of `fp4moe list` that has names for it, or null,
//     implied: the number that the option means without one, or null,
//     group: the heading of --help that it stands under, or null
Json facts(const OptionSet& set);

}  // namespace fp4moe::cli
