#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "support/command_line.hpp"
#include "support/files.hpp"
#include "support/page.hpp"

namespace fp4moe::cli {
namespace {

using tensor::testing::TemporaryFolder;
using testing::has;
using testing::Outcome;

Outcome plan_for(std::vector<std::string> words) {
  words.insert(words.begin(), "plan");
  return testing::run(words);
}

const std::vector<std::string> kH100{"--model",  "gpt-oss-120b", "--device", "h100",
                                     "--policy", "2026-08-22",   "--tp",     "8"};

std::vector<std::string> and_words(std::vector<std::string> words,
                                   const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(PlanCommand, SaysTheChoiceAndItsTotalsFirst) {
  const Outcome outcome = plan_for(kH100);

  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(
      outcome.out.starts_with("gpt-oss-120b: 36 MoE layers, 128 experts of 2880 x 2880, mxfp4\n"))
      << outcome.out;
  EXPECT_TRUE(has(outcome.out, "8 ranks, every expert in parts of 384, the last 192"));
  EXPECT_TRUE(has(outcome.out, "2880 / 8 = 360 is not made of whole blocks of 32"));
  EXPECT_TRUE(has(outcome.out, "TRITON (chosen)"));
  EXPECT_TRUE(has(outcome.out, "w13_weight_scale")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "intermediate 360 -> 384 (+6.7 % over all ranks)")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "3072 x 384")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "do not run here: --backend all")) << outcome.out;
  EXPECT_FALSE(has(outcome.out, "AITER"));
}

TEST(PlanCommand, ShowsOneBackendOrATableOfAll) {
  const Outcome marlin = plan_for(and_words(kH100, {"--backend", "MARLIN"}));
  EXPECT_EQ(marlin.status, 0);
  EXPECT_TRUE(has(marlin.out, "MARLIN (would run)"));
  EXPECT_FALSE(has(marlin.out, "TRITON"));

  const Outcome all = plan_for(and_words(kH100, {"--backend", "all"}));
  EXPECT_TRUE(has(all.out, "MARLIN"));
  EXPECT_FALSE(has(all.out, "w13_weight"));
  EXPECT_TRUE(has(all.out, "needs rocm; this is cuda")) << all.out;
  EXPECT_TRUE(has(all.out, "impossible: a rank's part")) << all.out;

  const Outcome refused = plan_for(and_words(kH100, {"--backend", "XPU"}));
  EXPECT_EQ(refused.status, 0);
  EXPECT_TRUE(has(refused.out, "XPU (does not run here)"));
}

TEST(PlanCommand, PrintsOneJsonObject) {
  const Outcome outcome = plan_for(and_words(kH100, {"--backend", "MARLIN", "--json"}));

  EXPECT_EQ(outcome.status, 0);
  const Result<Json> json = parse_json(outcome.out);
  ASSERT_TRUE(json);
  EXPECT_TRUE(json->contains("schema_version"));
  ASSERT_EQ((*json)["backends"].size(), 1u);
  EXPECT_EQ((*json)["backends"][0]["backend"], "MARLIN");
  EXPECT_EQ((*json)["backends"][0]["after"]["intermediate"], 384);
}

TEST(PlanCommand, RefusesImpossibleSplitsWithTheNearest) {
  const Outcome outcome = plan_for(
      {"--model", "gpt-oss-120b", "--tp", "7", "--policy", "2026-08-22", "--device", "h100"});
  EXPECT_EQ(outcome.status, 4);
  EXPECT_TRUE(has(outcome.err, "do:    use --tp 4, --tp 8 or --ep 7")) << outcome.err;

  EXPECT_EQ(plan_for({"--model", "gpt-oss-20b", "--ep", "64", "--device", "h100"}).status, 4);
  EXPECT_EQ(
      plan_for({"--model", "gpt-oss-20b", "--tp", "2", "--ep", "8", "--device", "h100"}).status, 4);
  EXPECT_EQ(plan_for(and_words(kH100, {"--backend", "B12X_MXFP4_BF16"})).status, 4);
  const Outcome chosen = plan_for(
      {"--model", "qwen3-30b-a3b", "--tp", "8", "--device", "b200", "--policy", "2026-04-24"});
  EXPECT_EQ(chosen.status, 4);
  EXPECT_TRUE(has(chosen.out, "do:    use --tp 4 or --ep 8")) << chosen.out;
}

TEST(PlanCommand, RefusesWrongWordsWithTheRightOnes) {
  const auto expect_usage = [](const std::vector<std::string>& words, std::string_view near) {
    const Outcome outcome = plan_for(words);
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_TRUE(has(outcome.err, near)) << outcome.err;
  };
  expect_usage({}, "either PATH or --model");
  expect_usage({"somewhere", "--model", "gpt-oss-20b"}, "both");
  expect_usage({"--model", "gpt-oss-20c"}, "gpt-oss-20b");
  expect_usage({"--model", "gpt-oss-20b", "--format", "fp4"}, "one of mxfp4, nvfp4");
  expect_usage({"--model", "gpt-oss-20b", "--policy", "2026-08-21"}, "2026-08-22");
  expect_usage({"--model", "gpt-oss-20b", "--device", "h101"}, "h100");
  expect_usage(and_words(kH100, {"--backend", "MARLYN"}), "MARLIN");
  expect_usage({"--model", "gpt-oss-20b", "--ep", "2", "--all2all", "mory", "--device", "h100",
                "--policy", "2026-04-24"},
               "mori");
  expect_usage({"--model", "gpt-oss-20b", "--tp", "0"}, "--tp");
}

TEST(PlanCommand, ReadsACheckpoint) {
  const TemporaryFolder folder;
  checkpoint::SynthOptions options{.model = "gpt-oss-20b", .layers = 2};
  options.experts = 4;
  options.hidden = options.intermediate = 64;
  ASSERT_TRUE(checkpoint::synth(options, folder / "m"));

  const Outcome outcome = plan_for({folder / "m", "--device", "a100", "--policy", "2026-04-24"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "2 MoE layers, 4 experts of 64 x 64, mxfp4")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "MARLIN (chosen)"));
  EXPECT_TRUE(has(outcome.out, "hidden 64 -> 256"));

  EXPECT_NE(plan_for({folder / "nothing"}).status, 0);
}

TEST(PlanCommand, SaysWhenWeightsDoNotFit) {
  const Outcome outcome =
      plan_for({"--model", "deepseek-v3", "--device", "h100", "--policy", "2026-04-24"});

  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "DOES NOT FIT")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "--ep 8")) << outcome.out;
}

TEST(PlanCommand, IsShownByThePageAsItIs) { testing::expect_page_shows("plan.md", 3); }

TEST(PlanCommand, PlansForThisMachineByDefault) {
  const Outcome outcome = plan_for({"--model", "gpt-oss-20b"});

  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "policy native")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "(chosen)")) << outcome.out;
}

TEST(PlanCommand, SaysWhatTravelsBetweenRanks) {
  const std::vector<std::string> experts{
      "--model",  "deepseek-v3", "--device", "h100",      "--dp",
      "8",        "--ep",        "8",        "--all2all", "deepep_high_throughput",
      "--policy", "2026-08-22"};
  const Outcome outcome = plan_for(experts);
  EXPECT_TRUE(has(outcome.out, "sent per token, rank and layer (routing even over 256 experts"))
      << outcome.out << outcome.err;
  EXPECT_TRUE(has(outcome.out, "all_to_all_batched  nvfp4")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "this deployment")) << outcome.out;

  const Outcome alone = plan_for({"--model", "gpt-oss-20b", "--device", "h100"});
  EXPECT_FALSE(has(alone.out, "sent per token"));
  const Outcome one = plan_for(and_words(kH100, {"--backend", "MARLIN", "--json"}));
  const Result<Json> json = parse_json(one.out);
  ASSERT_TRUE(json);
  EXPECT_EQ((*json)["wire"][0]["exchange"], "all_reduce");
  EXPECT_EQ((*json)["wire"][0]["combine_bytes"], 10080.0);
}

}  // namespace
}  // namespace fp4moe::cli
