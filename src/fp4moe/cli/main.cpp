#include <csignal>
#include <iostream>

#include "fp4moe/cli/command.hpp"

int main(int argc, char** argv) {
  // A reader that goes away (`fp4moe inspect | head`) must give a write error, not a signal.
  std::signal(SIGPIPE, SIG_IGN);
  // So must a file that outgrows `ulimit -f`.
  std::signal(SIGXFSZ, SIG_IGN);
  return fp4moe::cli::run_main(argc, argv, std::cout, std::cerr);
}
