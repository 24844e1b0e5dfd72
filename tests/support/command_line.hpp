// Runs the command line in-process and keeps what it said.
#pragma once
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/cli/command.hpp"

namespace fp4moe::cli::testing {

struct Outcome {
  int status;
  std::string out, err;
};

inline Outcome run(const std::vector<std::string>& words,
                   std::span<const Command> further_commands = {}) {
  std::vector<const char*> pointers{"fp4moe"};
  for (const std::string& word : words) pointers.push_back(word.c_str());
  std::ostringstream out, err;
  const int status = run_main(static_cast<int>(pointers.size()), pointers.data(),
                              {.out = out, .err = err, .further_commands = further_commands});
  return {status, out.str(), err.str()};
}

inline bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace fp4moe::cli::testing
