// The explorer's half of C++: the commands that need no checkpoint, as one function of a page.
//
// A question is a command line and an answer what the program prints, so both are the program's
// own. The host (docs/site/explorer/program.js) is a WASI system with one folder and stdin.
#include <iostream>
#include <span>
#include <string_view>

#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/run_words.hpp"

namespace fp4moe::cli {

Run declare_explain(OptionSet& set);
Run declare_layouts(OptionSet& set);
Run declare_list(OptionSet& set);
Run declare_numbers(OptionSet& set);
Run declare_plan(OptionSet& set);

}  // namespace fp4moe::cli

int main(int argc, char** argv) {
  using namespace fp4moe::cli;
  static constexpr Command kCommands[] = {
      {"explain", "", "", declare_explain}, {"plan", "", "", declare_plan},
      {"layouts", "", "", declare_layouts}, {"numbers", "", "", declare_numbers},
      {"list", "", "", declare_list},
  };
  const std::span<const char* const> words(argv, static_cast<std::size_t>(argc));
  const Io io{.out = std::cout, .err = std::cerr, .commands = kCommands};
  return run_words(words, io, [](const Command&, const Run& run, const Io& to, const std::string&) {
    return run(to);
  });
}
