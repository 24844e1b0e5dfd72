// help and completion, in-process; the bash script in bash itself.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/program.hpp"
#include "support/command_line.hpp"
#include "support/files.hpp"

namespace fp4moe::cli {
namespace {

using tensor::testing::TemporaryFolder;
using testing::has;
using testing::Outcome;
using testing::run;

TEST(HelpCommand, PrintsWhatTheOptionPrints) {
  EXPECT_EQ(run({"help"}).out, run({"--help"}).out);
  EXPECT_EQ(run({"help", "convert"}).out, run({"convert", "--help"}).out);
  EXPECT_EQ(run({"help", "bench", "layer"}).out, run({"bench", "layer", "--help"}).out);
  EXPECT_TRUE(has(run({"help", "bench", "layer"}).out, "--activations"));
}

TEST(HelpCommand, FitsTheTerminal) {
  constexpr std::size_t kColumns = 80;
  const Program program(commands());
  const auto expect_fits = [&](const std::vector<const char*>& words) {
    const auto shown = program.parse(words, kColumns);
    ASSERT_TRUE(shown && *shown) << words.at(1);
    for (const std::string_view line : split(**shown, '\n'))
      EXPECT_LE(line.size(), kColumns) << words.at(1) << ": " << line;
  };
  expect_fits({"fp4moe", "--help"});
  for (const Command& command : commands()) {
    const std::string name(command.name);
    expect_fits({"fp4moe", name.c_str(), "--help"});
  }
}

TEST(HelpCommand, RefusesWhatIsNoCommand) {
  EXPECT_EQ(run({"help", "frobnicate"}).status, 2);
  const Outcome outcome = run({"help", "bench", "everything"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_TRUE(has(outcome.err, "ceilings, formats")) << outcome.err;
}

TEST(HelpCommand, TellsProgramsWhatEveryCommandTakes) {
  const Result<Json> all = parse_json(run({"help", "--json"}).out);
  ASSERT_TRUE(all);
  ASSERT_EQ((*all)["commands"].size(), commands().size());
  for (const Json& command : (*all)["commands"]) {
    EXPECT_EQ(command, *option_facts(command["name"].string()));
    EXPECT_EQ(command["options"][0]["name"], "json");
  }
  const Result<Json> one = parse_json(run({"help", "bench", "plot", "--json"}).out);
  ASSERT_TRUE(one);
  EXPECT_EQ((*one)["commands"][0]["options"][0]["name"], "FILE");
}

// What a shell command prints; empty where it fails.
std::string said_by(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string said;
  for (int letter = 0; pipe && (letter = std::fgetc(pipe.get())) != EOF;)
    said += static_cast<char>(letter);
  return said;
}

class Completion : public ::testing::Test {
 protected:
  // Where the script for a shell lies.
  std::string script(const std::string& shell) const {
    const std::string path = folder_ / shell;
    tensor::testing::write_text(path, run({"completion", shell}).out);
    return path;
  }
  // What bash offers for the last of the words.
  std::string offered(const std::string& words) const {
    return said_by(
        "bash -c 'source " + script("bash") + "; COMP_WORDS=(" + words +
        "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _fp4moe; echo -n \"${COMPREPLY[*]}\"'");
  }
  TemporaryFolder folder_{};
};

TEST_F(Completion, OffersCommandsOptionsAndChoicesInBash) {
  EXPECT_EQ(offered("fp4moe unc"), "unconvert");
  EXPECT_EQ(offered("fp4moe convert --pla"), "--placement");
  EXPECT_EQ(offered("fp4moe convert --placement \"\""), "linear round-robin");
  EXPECT_EQ(offered("fp4moe convert --placement = ro"), "round-robin");
  EXPECT_EQ(offered("fp4moe bench la"), "layer");
  EXPECT_EQ(offered("fp4moe bench layer --act"), "--activations");
  EXPECT_EQ(offered("fp4moe bench layer --meg"), "--megabytes");  // of bench itself
  EXPECT_EQ(offered("fp4moe completion \"\""), "bash zsh fish");
  EXPECT_EQ(offered("fp4moe help tran"), "transcode");
  EXPECT_EQ(offered("fp4moe --ver"), "--version");
  EXPECT_EQ(offered("fp4moe explain --device h10"), "h100");
  EXPECT_EQ(offered("fp4moe convert x --backend MARL"), "MARLIN");
  EXPECT_EQ(offered("fp4moe list dev"), "devices");
  EXPECT_TRUE(has(offered("fp4moe \"\""), "demo inspect lint"));
}

TEST_F(Completion, OffersWordsThatAreNoChoices) {
  EXPECT_EQ(offered("fp4moe explain gpt"), "gpt-oss-20b gpt-oss-120b");
  EXPECT_EQ(offered("fp4moe explain --mode \"\""), "strict compat");
  EXPECT_EQ(offered("fp4moe explain --format mx"), "mxfp4");
  EXPECT_EQ(offered("fp4moe explain --activation gel"),
            "gelu gelu_tanh gelu_no_mul gelu_tanh_no_mul");
  EXPECT_EQ(offered("fp4moe explain --env VLLM_BATCH"), "VLLM_BATCH_INVARIANT=");
  EXPECT_EQ(offered("fp4moe explain --lib humm"), "humming");
  EXPECT_EQ(offered("fp4moe explain --all2all moon"), "moonep");
  EXPECT_EQ(offered("fp4moe lint x --fix inv"), "invert-global-scale");
  EXPECT_EQ(offered("fp4moe synth --defect nan"), "nan-scale");
  EXPECT_EQ(offered("fp4moe layouts marlin_"), "marlin_fp8.mxfp4");
  EXPECT_EQ(offered("fp4moe diff NATIVE_SM9"), "NATIVE_SM90");
  EXPECT_EQ(offered("fp4moe error scale.nan"), "scale.nan");
}

TEST_F(Completion, LeavesFilesToBash) {
  EXPECT_EQ(offered("fp4moe inspect \"\""), "");
  EXPECT_EQ(offered("fp4moe convert x -o \"\""), "");
  EXPECT_TRUE(has(run({"completion", "bash"}).out, "complete -o bashdefault -o default"));
}

TEST_F(Completion, IsUnderstoodByZshAndFishWhereTheyAre) {
  for (const std::string shell : {"zsh", "fish"})
    EXPECT_EQ(said_by("if command -v " + shell + " >/dev/null; then " + shell + " -n " +
                      script(shell) + " 2>&1; fi"),
              "");
  EXPECT_EQ(said_by("if command -v fish >/dev/null; then fish -c 'source " + script("fish") +
                    "; complete -C \"fp4moe convert --placement \"' 2>&1 | cut -f1; "
                    "else printf 'linear\\nround-robin\\n'; fi"),
            "linear\nround-robin\n");
}

TEST_F(Completion, KnowsNoOtherShell) {
  EXPECT_EQ(run({"completion", "tcsh"}).status, 2);
  EXPECT_EQ(run({"completion"}).status, 2);
}

}  // namespace
}  // namespace fp4moe::cli
