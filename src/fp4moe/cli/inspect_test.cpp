#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "support/command_line.hpp"
#include "support/files.hpp"

namespace fp4moe::cli {
namespace {

using tensor::testing::TemporaryFolder;
using testing::has;
using testing::Outcome;
using testing::run;

void make(const std::string& path, checkpoint::SynthOptions options) {
  options.experts = 2;
  options.hidden = 64;
  options.intermediate = 64;
  const auto result = checkpoint::synth(options, path);
  ASSERT_TRUE(result) << text(result.why());
}

TEST(Inspect, SaysInALineEachWhatTheCheckpointIs) {
  const TemporaryFolder folder;
  make(folder / "m", {.model = "gpt-oss-20b", .layers = 3});
  const Outcome outcome = run({"inspect", folder / "m"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "dialect    gpt-oss, mxfp4, fused\n")) << outcome.out;
  EXPECT_TRUE(has(outcome.out,
                  "3 layers: 2 experts, hidden 64, intermediate 64, interleaved "
                  "w13, bias (model.layers.*.mlp. 0-2)"))
      << outcome.out;
  EXPECT_TRUE(has(outcome.out, "4.250 bits per weight")) << outcome.out;
  EXPECT_FALSE(has(outcome.out, "gate_up_proj"));
  EXPECT_TRUE(has(run({"inspect", folder / "m", "--tensors"}).out,
                  "model.layers.0.mlp.experts.gate_up_proj_blocks"));
}

TEST(Inspect, GivesTheSameFactsAsJson) {
  const TemporaryFolder folder;
  make(folder / "m", {.model = "qwen3-30b-a3b", .dialect = checkpoint::Dialect::modelopt});
  const Outcome outcome = run({"inspect", folder / "m", "--json", "--tensors"});
  EXPECT_EQ(outcome.status, 0);
  const auto json = parse_json(outcome.out);
  ASSERT_TRUE(json) << outcome.out;
  EXPECT_EQ((*json)["schema_version"], 1);
  EXPECT_EQ((*json)["dialect"], "modelopt");
  EXPECT_EQ((*json)["format"], "nvfp4");
  EXPECT_EQ((*json)["layers"][0]["experts"], 2);
  EXPECT_EQ((*json)["layers"][0]["row_order"], "halves");
  EXPECT_EQ((*json)["problems"].size(), 0u);
  EXPECT_GT((*json)["tensors"].size(), 20u);
  const std::uint64_t whole = (*json)["bytes"]["experts"].get<std::uint64_t>() +
                              (*json)["bytes"]["other"].get<std::uint64_t>();
  std::uint64_t tensors = 0;
  for (const Json& tensor : (*json)["tensors"]) tensors += tensor["bytes"].get<std::uint64_t>();
  EXPECT_EQ(whole, tensors);
}

TEST(Inspect, IsUsefulForWhatItDoesNotRecognize) {
  const TemporaryFolder folder;
  make(folder / "m", {.model = "qwen3-30b-a3b", .unquantized = checkpoint::Unquantized::own});
  const Outcome outcome = run({"inspect", folder / "m"});
  EXPECT_EQ(outcome.status, 3);
  EXPECT_TRUE(has(outcome.out, "not recognized"));
  EXPECT_TRUE(has(outcome.out, "BF16"));
  EXPECT_TRUE(has(outcome.out, "dialect.unquantized")) << outcome.out;
  const auto json = parse_json(run({"inspect", folder / "m", "--json"}).out);
  ASSERT_TRUE(json);
  EXPECT_EQ((*json)["recognized"], false);
  EXPECT_EQ((*json)["recognised"], false);
  EXPECT_EQ((*json)["problems"][0]["id"], "dialect.unquantized");
}

TEST(LintCommand, PassesAWholeCheckpoint) {
  const TemporaryFolder folder;
  make(folder / "m", {.model = "qwen3-30b-a3b", .dialect = checkpoint::Dialect::modelopt});
  const Outcome outcome = run({"lint", folder / "m", "--deep", "--threads", "2"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_TRUE(has(outcome.out, "0 errors, 0 warnings, 0 notes")) << outcome.out;
}

TEST(LintCommand, FindsAndRepairsMissingInputScales) {
  const TemporaryFolder folder;
  make(folder / "m", {.model = "qwen3-30b-a3b",
                      .dialect = checkpoint::Dialect::modelopt,
                      .defect = "missing-input-scale"});
  const Outcome before = run({"lint", folder / "m"});
  EXPECT_EQ(before.status, 3);
  EXPECT_TRUE(has(before.out, "error scale.input_missing (3)")) << before.out;
  EXPECT_TRUE(has(before.out, "--fix fill-input-scale")) << before.out;
  const Outcome fixed = run(
      {"lint", folder / "m", "--fix", "fill-input-scale,total-size", "-o", folder / "n", "--json"});
  EXPECT_EQ(fixed.status, 0) << fixed.err << fixed.out;
  const auto json = parse_json(fixed.out);
  ASSERT_TRUE(json) << fixed.out;
  EXPECT_EQ((*json)["fix"]["changes"].size(), 4u);
  EXPECT_EQ((*json)["errors"], 0);
  EXPECT_EQ((*json)["path"], folder / "n");
}

TEST(LintCommand, ShowsFiveOfACodeUnlessAskedForAll) {
  const TemporaryFolder folder;
  checkpoint::SynthOptions options{.model = "qwen3-30b-a3b",
                                   .dialect = checkpoint::Dialect::modelopt,
                                   .layers = 3,
                                   .defect = "missing-input-scale"};
  make(folder / "m", options);
  const auto lines = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  };
  const Outcome few = run({"lint", folder / "m"}), all = run({"lint", folder / "m", "--verbose"});
  EXPECT_LE(lines(few.out), lines(all.out));
  const auto json = parse_json(run({"lint", folder / "m", "--json"}).out);
  ASSERT_TRUE(json);
  EXPECT_EQ((*json)["findings"].size(), (*json)["errors"].get<std::size_t>());
}

TEST(LintCommand, RefusesARepairThatDestroysWeights) {
  const TemporaryFolder folder;
  make(folder / "m", {.model = "qwen3-30b-a3b",
                      .dialect = checkpoint::Dialect::modelopt,
                      .defect = "inverted-global-scale"});
  const Outcome before = run({"lint", folder / "m"});
  EXPECT_TRUE(has(before.out, "warning scale.global_inverted (1)")) << before.out;
  EXPECT_FALSE(has(before.out, "scale.global_mismatch")) << before.out;
  const std::vector<std::string> repair{"lint", folder / "m", "--fix", "reconcile-global-scale",
                                        "-o",   folder / "n"};
  const Outcome refused = run(repair);
  EXPECT_EQ(refused.status, 3);
  EXPECT_TRUE(has(refused.err, "[fix.harm]")) << refused.err;
  EXPECT_TRUE(has(refused.err, "--fix invert-global-scale")) << refused.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "n"));
  const Outcome right =
      run({"lint", folder / "m", "--fix", "invert-global-scale", "-o", folder / "n"});
  EXPECT_EQ(right.status, 0);
  EXPECT_TRUE(has(right.out, "0 errors, 0 warnings")) << right.out;
  std::vector<std::string> forced = repair;
  forced.back() = folder / "forced";
  forced.emplace_back("--force");
  EXPECT_TRUE(has(run(forced).out, " were rounded, weights changed by at most"));
}

TEST(LintCommand, NamesTheFileOfEveryFinding) {
  const TemporaryFolder folder;
  for (const checkpoint::SynthDefect& defect : checkpoint::synth_defects()) {
    const std::string path = folder / defect.name;
    const Outcome result = run({"synth", "--model", "qwen3-30b-a3b", "--experts", "4", "--layers",
                                "2", "--hidden", "128", "--intermediate", "64", "--shards", "2",
                                "--defect", std::string(defect.name), "-o", path});
    if (result.status != 0) continue;  // of another dialect
    const auto json = parse_json(run({"lint", path, "--deep", "--json"}).out);
    ASSERT_TRUE(json) << defect.name;
    EXPECT_FALSE((*json)["findings"].empty()) << defect.name;
    for (const Json& finding : (*json)["findings"])
      EXPECT_TRUE(finding["file"].string().starts_with(path)) << finding.dump();
  }
  const Outcome said = run({"lint", folder / "truncated-shard"});
  EXPECT_TRUE(has(said.out, ".safetensors")) << said.out;
}

TEST(LintCommand, RefusesPoliciesItDoesNotHave) {
  EXPECT_EQ(run({"lint", "/nonexistent", "--fix", "everything", "-o", "x"}).status, 2);
  EXPECT_EQ(run({"lint", "/nonexistent", "--fix", "total-size"}).status, 2);
  EXPECT_EQ(run({"lint", "/nonexistent", "-o", "x"}).status, 2);
  EXPECT_EQ(run({"lint", "/nonexistent"}).status, 1);
}

}  // namespace
}  // namespace fp4moe::cli
