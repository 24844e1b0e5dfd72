#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "support/command_line.hpp"
#include "support/files.hpp"
#include "support/page.hpp"

namespace fp4moe::cli {
namespace {

namespace fs = std::filesystem;
using tensor::testing::TemporaryFolder;
using testing::has;
using testing::Outcome;
using testing::run;

TEST(LoraPage, IsShownByThePageAsItIs) { testing::expect_page_shows("lora.md", 3); }

class MergeCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(run({"synth", "--model", "qwen3-30b-a3b", "--experts", "3", "--hidden", "64",
                   "--intermediate", "64", "--layers", "2", "-o", source_})
                  .status,
              0);
    ASSERT_EQ(run({"synth", "--adapter-for", source_, "--rank", "3", "--adapter-form", "stacked",
                   "-o", adapter_})
                  .status,
              0);
  }
  Outcome merge(std::vector<std::string> words) const {
    words.insert(words.begin(), {"merge", source_, adapter_});
    return run(words);
  }

  TemporaryFolder folder_{};
  std::string source_ = folder_ / "source", adapter_ = folder_ / "adapter";
  std::string out_ = folder_ / "out";
};

TEST_F(MergeCommand, ReportsEveryLayerAndWhatRoundingAdds) {
  const Outcome outcome = merge({"-o", out_, "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json json = *parse_json(outcome.out);
  EXPECT_EQ(json["command"], "merge");
  EXPECT_EQ(json["dialect"], "modelopt");
  EXPECT_EQ(json["experts"], 6);
  ASSERT_EQ(json["layers"].size(), 2u);
  EXPECT_GT(json["layers"][1]["rounding_rms"].get<double>(), 0);
  EXPECT_GT(json["change_rms"].get<double>(), 0);
  EXPECT_EQ(run({"lint", out_}).status, 0);
}

TEST_F(MergeCommand, DryRunsWriteNothing) {
  const Outcome words = merge({"--dry-run"});
  EXPECT_EQ(words.status, 0) << words.err;
  EXPECT_TRUE(has(words.out, "6 of 6 experts in 2 layers")) << words.out;
  EXPECT_TRUE(has(words.out, "nothing was written"));
  const Json json = *parse_json(merge({"--dry-run", "--json"}).out);
  EXPECT_EQ(json["dry_run"], true);
  EXPECT_FALSE(json.contains("rounding_rms"));
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(MergeCommand, RefusalsNameTheirReason) {
  const auto id = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all = words;
    all.emplace_back("--json");
    const Outcome outcome = merge(all);
    EXPECT_NE(outcome.status, 0);
    EXPECT_FALSE(fs::exists(out_));
    const Result<Json> json = parse_json(outcome.out);
    return json ? (*json)["error"]["id"].string() : outcome.out + outcome.err;
  };
  EXPECT_EQ(id({}), "merge.out");
  EXPECT_EQ(id({"-o", out_, "--rule", "never"}), "merge.rule");
  EXPECT_EQ(id({"-o", out_, "--rule", "no_global"}), "merge.rule");
  EXPECT_EQ(id({"-o", out_, "--max-memory", "1MB"}), "merge.memory");
  fs::remove(adapter_ + "/adapter_config.json");
  EXPECT_EQ(id({"-o", out_}), "adapter.missing");
}

}  // namespace
}  // namespace fp4moe::cli
