// The text of --help: the options of a command under their headings, fitted to the terminal.
#pragma once
#include <cstddef>
#include <span>
#include <string>

#include "fp4moe/cli/options.hpp"

namespace fp4moe::cli {

// One line of a table of options: "-o, --out PATH" and what it means.
struct OptionLine {
  std::string spelling{}, help{};
};

// The options of one heading; the first has none.
struct OptionGroup {
  std::string heading{};
  std::vector<OptionLine> lines{};
};

// Arguments first, then options in the order of their headings. A switch and its opposite
// (--gated, --no-gated) share a line.
std::vector<OptionGroup> option_groups(const OptionSet& set);

// "fp4moe convert PATH [OPTIONS]"
std::string usage_line(std::span<const OptionSet* const> sets);

// `sets`: the program, the command and its subcommand, as far as they are named. 0 columns: 100.
std::string help_text(std::span<const OptionSet* const> sets, std::size_t columns = 0);

}  // namespace fp4moe::cli
