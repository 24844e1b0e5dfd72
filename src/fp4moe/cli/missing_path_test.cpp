// One rule for all verbs: a path at which nothing is ends with status 1 and says what to do. A word
// that is no path, as of a model, is a usage error.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/synth/synth.hpp"
#include "support/command_line.hpp"
#include "support/files.hpp"

namespace fp4moe::cli {
namespace missing_path_test {

using tensor::testing::TemporaryFolder;
using testing::has;
using testing::Outcome;
using testing::run;

// The program's words in three lines: what, found or expected if there is more to say, do.
void expect_lines(const Outcome& outcome, const std::string& what) {
  const auto lines = std::ranges::count(outcome.err, '\n');
  EXPECT_TRUE(lines == 2 || lines == 3) << what << ": " << outcome.err;
  EXPECT_TRUE(has(outcome.err, "\n  do:    ")) << what << ": " << outcome.err;
}

TEST(MissingPath, HasOneStatusInEveryVerb) {
  const TemporaryFolder folder;
  checkpoint::SynthOptions options{.model = "gpt-oss-20b", .layers = 1};
  options.experts = 4;
  options.hidden = options.intermediate = 64;
  const std::string model = folder / "model", no = folder / "nothing", out = folder / "out";
  ASSERT_TRUE(checkpoint::synth(options, model));
  const std::vector<std::vector<std::string>> all{
      {"inspect", no},
      {"run", no},
      {"run", model, "--input", no},
      {"verify", no},
      {"merge", model, no, "-o", out},
      {"merge", no, model, "-o", out},
      {"lint", no},
      {"transcode", no, "--to", "gguf", "-o", out},
      {"unconvert", no, "-o", out},
      {"diff", "MARLIN", "TRITON", "--checkpoint", no},
      {"report", no, "-o", out},
      {"explain", no},
      {"explain", no + "/config.json"},
      {"explain", "--config", no + ".json"},
      {"explain", "--log", no},
      {"plan", no},
      {"plan", no + "/config.json"},
      {"convert", no, "--backend", "MARLIN", "--device", "h100", "-o", out},
      {"convert", model, "--layout", "marlin.mxfp4", "-o", no + "/a/b"},
      {"quantize", no, "--format", "mxfp4", "-o", out}};
  for (const std::vector<std::string>& words : all) {
    std::string what;
    for (const std::string& word : words) what += word + " ";
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.status, 1) << what << outcome.err;
    expect_lines(outcome, what);
    EXPECT_FALSE(std::filesystem::exists(out)) << what;
  }
}

// What is there and damaged: findings have the same three lines, and each says what to do.
TEST(DamagedPath, HasFindingsThatSayWhatToDo) {
  const TemporaryFolder folder;
  checkpoint::SynthOptions options{.model = "qwen3-30b-a3b", .layers = 1};
  options.experts = 4;
  options.hidden = 128, options.intermediate = 64;
  const std::string model = folder / "model", out = folder / "out";
  ASSERT_TRUE(checkpoint::synth(options, model));
  ASSERT_EQ(run({"convert", model, "--backend", "MARLIN", "--device", "h100", "-o", out}).status,
            0);
  std::filesystem::resize_file(out + "/experts-00000.safetensors", 100);
  const Outcome cut = run({"verify", out});
  EXPECT_EQ(cut.status, 5);
  EXPECT_TRUE(has(cut.out, "a file of the folder has another size [converted.file]\n  found: 100"))
      << cut.out;
  EXPECT_TRUE(has(cut.out, "\n  do:    ")) << cut.out;
  std::filesystem::remove(out + "/experts-00000.safetensors");
  const Outcome gone = run({"verify", out});
  EXPECT_TRUE(has(gone.out, "found: cannot open: No such file or directory; expected: "))
      << gone.out;
  EXPECT_FALSE(has(gone.out, "file.open")) << gone.out;
  EXPECT_TRUE(has(gone.out, "\n  do:    ")) << gone.out;

  options.defect = "wrong-shape";
  const std::string bad = folder / "bad";
  ASSERT_TRUE(checkpoint::synth(options, bad));
  const Outcome inspected = run({"inspect", bad}), linted = run({"lint", bad});
  EXPECT_TRUE(has(inspected.out, "[tensor.shape]\n           found: ")) << inspected.out;
  EXPECT_TRUE(has(inspected.out, "\n           do:    ")) << inspected.out;
  EXPECT_TRUE(has(linted.out, "\n    -> ")) << linted.out;
}

TEST(MissingPath, IsNoWordOfATable) {
  for (const char* verb : {"explain", "plan"}) {
    const Outcome outcome = run({verb, "no-such-model"});
    EXPECT_EQ(outcome.status, 2) << verb;
    EXPECT_TRUE(has(outcome.err, "give its checkpoint or config.json instead")) << outcome.err;
  }
  // synth takes no path.
  EXPECT_TRUE(
      has(run({"synth", "--model", "no-such-model", "-o", "x"}).err, "do:    fp4moe list models"));
}

}  // namespace missing_path_test
}  // namespace fp4moe::cli
