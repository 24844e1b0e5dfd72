#include "fp4moe/cli/command.hpp"

#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/version.hpp"

namespace fp4moe::cli {
namespace {

struct Outcome {
  int status;
  std::string out, err;
};

Outcome run(std::vector<const char*> words) {
  words.insert(words.begin(), "fp4moe");
  std::ostringstream out, err;
  const int status = run_main(static_cast<int>(words.size()), words.data(), out, err);
  return {status, out.str(), err.str()};
}

TEST(CommandLine, PrintsItsVersion) {
  const Outcome outcome = run({"--version"});

  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, "fp4moe " + std::string(kVersion) + "\n");
}

TEST(CommandLine, RefusesAnUnknownCommandWithStatusTwo) {
  const Outcome outcome = run({"frobnicate"});

  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("frobnicate"), std::string::npos);
  EXPECT_TRUE(outcome.out.empty());
}

TEST(CommandLine, RefusesNoCommandAndUnknownOptionsWithStatusTwo) {
  EXPECT_EQ(run({}).status, 2);
  EXPECT_EQ(run({"inspect", "--no-such-option"}).status, 2);
}

TEST(CommandLine, EveryCommandExplainsItselfWithAnExample) {
  for (const Command& command : commands()) {
    const Outcome outcome = run({command.name.data(), "--help"});

    EXPECT_EQ(outcome.status, 0) << command.name;
    EXPECT_NE(outcome.out.find(command.summary), std::string::npos) << command.name;
    EXPECT_NE(outcome.out.find(command.example), std::string::npos) << command.name;
    EXPECT_NE(outcome.out.find("--json"), std::string::npos) << command.name;
    EXPECT_EQ(std::string(command.example).rfind("fp4moe " + std::string(command.name), 0), 0u)
        << command.name;
  }
}

TEST(CommandLine, ReportsAnErrorOnceForPeopleAndOnceAsJson) {
  const Outcome outcome = run({"inspect", "/nonexistent/checkpoint", "--json"});

  ASSERT_NE(outcome.status, 0);
  const Result<Json> report = parse_json(outcome.out);
  ASSERT_TRUE(report) << outcome.out;
  EXPECT_EQ((*report)["schema_version"], 1);
  EXPECT_EQ((*report)["error"]["code"], outcome.status);
  EXPECT_FALSE((*report)["error"]["id"].get<std::string>().empty());
  EXPECT_NE(outcome.err.find((*report)["error"]["id"].get<std::string>()), std::string::npos);
}

TEST(CommandLine, FailsWhenItsOutputCannotBeWritten) {
  std::ostringstream err;
  std::ostream broken(nullptr);
  const char* words[] = {"fp4moe", "inspect", "--help"};

  EXPECT_EQ(run_main(3, words, broken, err), 1);
}

}  // namespace
}  // namespace fp4moe::cli
