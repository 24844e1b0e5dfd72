#include <csignal>
#include <iostream>

#include "fp4moe/cli/command.hpp"
#include "golden/command.hpp"

int main(int argc, char** argv) {
  // A reader that goes away (`fp4moe inspect | head`) must give a write error, not a signal.
  std::signal(SIGPIPE, SIG_IGN);
  // So must a file that outgrows `ulimit -f`.
  std::signal(SIGXFSZ, SIG_IGN);
  const fp4moe::cli::Command further[] = {fp4moe::golden::command()};
  return fp4moe::cli::run_main(argc, argv,
                               {.out = std::cout, .err = std::cerr, .further_commands = further});
}
