#include "fp4moe/cli/command.hpp"

#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/version.hpp"
#include "fp4moe/cli/options.hpp"
#include "support/command_line.hpp"
#include "support/temporary_folder.hpp"

namespace fp4moe::cli {
namespace {

using testing::Outcome;
using testing::run;

TEST(CommandLine, PrintsItsVersion) {
  const Outcome outcome = run({"--version"});

  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, "fp4moe " + std::string(kVersion) + "\n");
  EXPECT_EQ(run({"-V"}).out, outcome.out);
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

TEST(CommandLine, SaysWhatItDoesNotUnderstandInItsOwnWords) {
  const Outcome option = run({"explain", "--devise", "h100"});
  EXPECT_EQ(option.status, 2);
  EXPECT_EQ(option.err,
            "fp4moe explain: there is no such option [command.option]\n"
            "  found: '--devise'\n"
            "  do:    did you mean --device?\n");
  EXPECT_TRUE(testing::has(run({"explane"}).err, "did you mean explain?"));
  EXPECT_TRUE(testing::has(run({"bench", "selec"}).err, "did you mean select?"));
  EXPECT_TRUE(testing::has(run({"lint", "/", "--fix", "total-siz", "-o", "x"}).err,
                           "did you mean total-size?"));
  EXPECT_TRUE(testing::has(run({"synth", "--defect", "nan-scal", "-o", "/nonexistent/x"}).err,
                           "did you mean nan-scale?"));
  EXPECT_TRUE(
      testing::has(run({"transcode", "x", "--to", "ggf", "-o", "y"}).err, "did you mean gguf?"));
}

TEST(CommandLine, RefusesNumbersThatAreNone) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"run", "x", "--threads", "-1"},
        {"run", "x", "--threads", "99999"},
        {"run", "x", "--batch", "-1"},
        {"run", "x", "--batch", "0"},
        {"synth", "-o", "x", "--experts", "0"},
        {"synth", "-o", "x", "--experts", "-3"},
        {"synth", "-o", "x", "--layers", "1e9"},
        {"lint", "x", "--threads", "0"},
        {"diff", "CPU,threads=0", "CPU", "--checkpoint", "x"},
        {"plan", "--model", "gpt-oss-20b", "--tp", "-8"}})
    EXPECT_EQ(run(words).status, 2) << words[0] << " " << words.back();
}

// A path that is not there is exit 1 with id file.open or store.open, whoever looks for it.
TEST(CommandLine, HasOneStatusForAMissingPath) {
  const fp4moe::testing::TemporaryFolder folder;
  const std::string none = folder / "none", out = folder / "out";
  for (const std::vector<std::string>& words : {std::vector<std::string>{"inspect", none},
                                                {"lint", none},
                                                {"run", none},
                                                {"verify", none},
                                                {"unconvert", none, "-o", out},
                                                {"convert", none, "-o", out},
                                                {"transcode", none, "--to", "gguf", "-o", out},
                                                {"quantize", none, "-o", out},
                                                {"merge", none, none, "-o", out},
                                                {"plan", none},
                                                {"diff", "CPU", "CPU", "--checkpoint", none},
                                                {"bench", "files", "--scratch", none}}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.status, 1) << words[0] << ": " << outcome.err;
    EXPECT_TRUE(testing::has(outcome.err, ".open]")) << words[0] << ": " << outcome.err;
    EXPECT_TRUE(testing::has(outcome.err, none)) << words[0] << ": " << outcome.err;
  }
}

TEST(CommandLine, EveryCommandExplainsItselfWithAnExample) {
  for (const Command& command : commands()) {
    const Outcome outcome = run({std::string(command.name), "--help"});

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
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"inspect", "--json"}, {"frobnicate", "--json"}}) {
    const Outcome outcome = run(words);

    EXPECT_EQ(outcome.status, 2);
    const Result<Json> object = parse_json(outcome.out);
    ASSERT_TRUE(object) << outcome.out;
    EXPECT_EQ((*object)["error"]["code"], 2);
    EXPECT_EQ((*object)["error"]["id"],
              words[0] == "inspect" ? "command.words" : "command.unknown");
  }
}

TEST(CommandLine, TellsTheOptionsOfEveryCommand) {
  for (const Command& command : commands()) {
    const Result<Json> facts = option_facts(command.name);
    ASSERT_TRUE(facts) << command.name;
    const std::string help = run({std::string(command.name), "--help"}).out;
    for (const Json& option : (*facts)["options"])
      EXPECT_NE(help.find(option["name"].string()), std::string::npos)
          << command.name << " " << option.dump();
  }
  const Result<Json> convert = option_facts("convert");
  EXPECT_EQ((*convert)["options"][1]["name"], "PATH");
  EXPECT_EQ((*convert)["options"][1]["positional"], true);
  EXPECT_EQ((*convert)["options"][1]["required"], true);
  EXPECT_FALSE((*option_facts("bench"))["subcommands"].empty());
  EXPECT_EQ(option_facts("frobnicate").why().id, "command.unknown");
}

Json fact(std::string_view command, std::string_view option) {
  const Result<Json> facts = option_facts(command);
  if (facts)
    for (const Json& row : (*facts)["options"])
      if (row["name"] == option) return row;
  return Json();
}

TEST(CommandLine, TellsTypesDefaultsChoicesAndRanges) {
  EXPECT_EQ(fact("convert", "out")["names"], Json({"-o", "--out"}));
  EXPECT_EQ(fact("convert", "out")["type"], "text");
  EXPECT_EQ(fact("convert", "out")["form"], "path");
  EXPECT_EQ(fact("convert", "out")["default"], Json());
  EXPECT_EQ(fact("convert", "tp")["form"], "rank");
  EXPECT_EQ(fact("convert", "placement")["choices"], Json({"linear", "round-robin"}));
  EXPECT_EQ(fact("convert", "placement")["default"], "linear");
  EXPECT_EQ(fact("convert", "resume")["type"], "flag");
  EXPECT_EQ(fact("merge", "max-shard-size")["type"], "bytes");
  EXPECT_EQ(fact("merge", "max-shard-size")["default"], "5GB");
  EXPECT_EQ(fact("plan", "tp")["type"], "integer");
  EXPECT_EQ(fact("plan", "tp")["range"], Json({1, 65536}));
  EXPECT_EQ(fact("bench", "seconds")["type"], "number");
  EXPECT_EQ(fact("bench", "seconds")["range"], Json({0.01, 3600.0}));
  EXPECT_EQ(fact("lint", "fix")["type"], "list");
  EXPECT_EQ(fact("lint", "fix")["item"], "POLICY");
}

TEST(CommandLine, HasTheCommandsThatAProgramAdds) {
  const Command added{"added", "Say hello", "fp4moe added", [](OptionSet&) -> cli::Run {
                        return [](const Io& io) -> Result<int> {
                          io.out << io.commands.size();
                          return kDone;
                        };
                      }};
  const std::span further(&added, 1);

  EXPECT_EQ(run({"added"}, further).out, std::to_string(commands().size() + 1));
  EXPECT_EQ(run({"added"}).status, 2);
  EXPECT_NE(run({"--help"}, further).out.find("Say hello"), std::string::npos);
}

TEST(CommandLine, SaysWhoHasTheCommandThatTheLibraryHasNot) {
  const Outcome outcome = run({"golden", "testdata/formats.json"});

  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("built from source"), std::string::npos) << outcome.err;
}

TEST(CommandLine, TellsAHostWhereLongWorkStands) {
  const fp4moe::testing::TemporaryFolder folder;
  const std::string out = folder / "out";
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
}

}  // namespace
}  // namespace fp4moe::cli
