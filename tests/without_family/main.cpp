// The program without golden data.
#include <iostream>

#include "fp4moe/cli/command.hpp"

int main(int argc, char** argv) {
  return fp4moe::cli::run_main(argc, argv, {.out = std::cout, .err = std::cerr});
}
