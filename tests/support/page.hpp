// Pages that show commands: each must give what the page shows, in a folder of its own.
#pragma once
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/command_line.hpp"
#include "support/files.hpp"

namespace fp4moe::cli::testing {

// Times and speeds differ from run to run, instruction sets from machine to machine; what they
// compute does not.
inline std::string without_times(const std::string& text) {
  static const std::regex kTimes("[0-9.]+ (ms|s)\\b(, [0-9.]+ [KMG]?i?B/s)?");
  static const std::regex kSets("[a-z0-9_]+/(exact|fast|match)\\b");
  return std::regex_replace(std::regex_replace(text, kTimes, "TIME"), kSets, "SET/$1");
}

// Runs every line "$ fp4moe ..." of docs/`name`; there are at least `least`.
inline void expect_page_shows(const std::string& name, std::size_t least) {
  std::ifstream page(std::string(FP4MOE_TESTDATA) + "/../docs/" + name);
  const tensor::testing::TemporaryFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const std::string prompt = "$ fp4moe ";
  std::size_t shown = 0;
  for (std::string read; std::getline(page, read);) {
    if (!read.starts_with(prompt)) continue;
    std::istringstream words(read.substr(prompt.size()));
    std::vector<std::string> arguments;
    for (std::string word; words >> word;) arguments.push_back(word);
    std::string expected;
    for (std::string next; std::getline(page, next) && next != "```";) expected += next + "\n";
    const Outcome outcome = run(arguments);
    EXPECT_EQ(without_times(outcome.out + outcome.err), without_times(expected)) << read;
    ++shown;
  }
  std::filesystem::current_path(before);
  EXPECT_GE(shown, least);
}

}  // namespace fp4moe::cli::testing
