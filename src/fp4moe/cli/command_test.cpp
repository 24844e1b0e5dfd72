#include "fp4moe/cli/command.hpp"

#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
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
  EXPECT_FALSE((*report)["error"]["id"].string().empty());
  EXPECT_NE(outcome.err.find((*report)["error"]["id"].string()), std::string::npos);
}

TEST(CommandLine, FailsWhenItsOutputCannotBeWritten) {
  std::ostringstream err;
  std::ostream broken(nullptr);
  const char* words[] = {"fp4moe", "inspect", "--help"};

  EXPECT_EQ(run_main(3, words, broken, err), 1);
}

TEST(CommandLine, SaysAsJsonWhatItDoesNotUnderstand) {
  for (const std::vector<const char*>& words :
       {std::vector<const char*>{"inspect", "--json"}, {"frobnicate", "--json"}}) {
    const Outcome outcome = run(words);

    EXPECT_EQ(outcome.status, 2);
    const Result<Json> object = parse_json(outcome.out);
    ASSERT_TRUE(object) << outcome.out;
    EXPECT_EQ((*object)["error"]["code"], 2);
    EXPECT_EQ((*object)["error"]["id"],
              std::string_view(words[0]) == "inspect" ? "command.words" : "command.unknown");
  }
}

TEST(CommandLine, TellsTheOptionsOfEveryCommand) {
  for (const Command& command : commands()) {
    const Result<Json> facts = option_facts(command.name);
    ASSERT_TRUE(facts) << command.name;
    const std::string help = run({command.name.data(), "--help"}).out;
    for (const Json& option : (*facts)["options"])
      EXPECT_NE(help.find(option["name"].string()), std::string::npos)
          << command.name << " " << option.dump();
  }
  const Result<Json> convert = option_facts("convert");
  EXPECT_EQ((*convert)["options"][0]["name"], "PATH");
  EXPECT_EQ((*convert)["options"][0]["positional"], true);
  EXPECT_EQ((*convert)["options"][0]["required"], true);
  EXPECT_FALSE((*option_facts("bench"))["questions"].empty());
  EXPECT_EQ(option_facts("frobnicate").why().id, "command.unknown");
}

TEST(CommandLine, TellsAHostWhereLongWorkStands) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / "fp4moe_on_progress";
  std::filesystem::remove_all(folder);
  const std::string out = folder.string();
  const std::vector<const char*> words{
      "fp4moe", "synth",    "--model", "gpt-oss-20b",    "--experts", "2",  "--layers",
      "1",      "--hidden", "64",      "--intermediate", "64",        "-o", out.c_str()};
  std::ostringstream said, err;
  std::uint64_t last = 0, all = 0;
  const int status = run_main(
      static_cast<int>(words.size()), words.data(),
      {.out = said, .err = err, .on_progress = [&](std::string_view title, auto done, auto total) {
         EXPECT_EQ(title, "synth");
         EXPECT_GE(done, last);
         last = done;
         all = total;
       }});

  EXPECT_EQ(status, 0) << err.str();
  EXPECT_GT(last, 0u);
  EXPECT_EQ(last, all);
  EXPECT_TRUE(err.str().empty()) << err.str();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace fp4moe::cli
