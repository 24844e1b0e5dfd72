#include "fp4moe/plan/split.hpp"

#include <string>

#include <gtest/gtest.h>

namespace fp4moe::plan {
namespace split_test {

using oracle::PolicyDate;

Model model(std::string_view name) {
  const checkpoint::ModelRow* row = checkpoint::find_model(name);
  EXPECT_NE(row, nullptr);
  return model_from_row(*row, {});
}

Result<Split> split(std::string_view name, const Ranks& ranks,
                    PolicyDate policy_date = PolicyDate::april_24) {
  return plan_split(model(name), ranks, policy_date);
}

bool says(const Split& result, std::string_view words) {
  for (const std::string& note : result.notes)
    if (note.find(words) != std::string::npos) return true;
  return false;
}

TEST(Split, OneRankHoldsEverything) {
  const auto result = split("gpt-oss-20b", {});

  ASSERT_TRUE(result);
  EXPECT_EQ(result->ranks, 1u);
  EXPECT_EQ(result->max_intermediate, 2880u);
  EXPECT_EQ(result->max_experts, 32u);
  EXPECT_TRUE(result->notes.empty());
}

// The table of 2880 over ranks: blocks per rank, ranges, divided size.
TEST(Split, GptOssHandsOutWholeBlocks) {
  struct Row {
    std::uint64_t tp, divided, max_intermediate, min_intermediate, empty;
  };
  for (const Row& row :
       {Row{1, 2880, 2880, 2880, 0}, Row{2, 1440, 1440, 1440, 0}, Row{4, 720, 736, 672, 0},
        Row{8, 360, 384, 192, 0}, Row{16, 180, 192, 0, 1}, Row{32, 90, 96, 0, 2}}) {
    const auto result = split("gpt-oss-120b", {.tp = row.tp});
    ASSERT_TRUE(result) << row.tp;
    EXPECT_EQ(result->divided, row.divided) << row.tp;
    EXPECT_EQ(result->max_intermediate, row.max_intermediate) << row.tp;
    EXPECT_EQ(result->min_intermediate, row.min_intermediate) << row.tp;
    EXPECT_EQ(result->empty_ranks, row.empty) << row.tp;
    EXPECT_EQ(says(*result, "padding alone"), row.empty > 0) << row.tp;
    EXPECT_EQ(says(*result, "handed out"), row.max_intermediate * row.tp != 2880) << row.tp;
  }
}

TEST(Split, OurOwnKernelsTakeTheBlocksAsTheyAreHandedOut) {
  EXPECT_EQ(split("gpt-oss-120b", {.tp = 8}, PolicyDate::native)->divided, 384u);
  EXPECT_TRUE(split("gpt-oss-120b", {.tp = 7}, PolicyDate::native));
}

TEST(Split, ASizeThatDoesNotDivideIsRefused) {
  const auto refused = split("gpt-oss-120b", {.tp = 7});

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "plan.divide");
  EXPECT_EQ(refused.why().code, ErrorCode::no_backend);
}

TEST(Split, ACutInsideABlockIsRefused) {
  const auto refused = split("qwen3-30b-a3b", {.tp = 32});  // 768 / 32 = 24, blocks of 16

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "plan.blocks");
  EXPECT_TRUE(split("qwen3-30b-a3b", {.tp = 24}));
  EXPECT_TRUE(split("qwen3-30b-a3b", {.tp = 48}));
}

TEST(Split, MoreRanksThanBlocksAreRefused) {
  EXPECT_EQ(split("qwen3-30b-a3b", {.tp = 96}).why().id, "plan.blocks");
}

TEST(Split, DataParallelRanksShareEveryExpertToo) {
  const auto result = split("qwen3-30b-a3b", {.tp = 2, .dp = 4});

  ASSERT_TRUE(result);
  EXPECT_EQ(result->ranks, 8u);
  EXPECT_EQ(result->max_intermediate, 96u);
  EXPECT_EQ(result->parallel.tp_size, 8);
}

TEST(Split, ExpertsAreDealtOutWholeAndTheFirstRanksHoldTheRest) {
  const auto even = split("gpt-oss-120b", {.ep = 8});
  EXPECT_EQ(even->max_experts, 16u);
  EXPECT_EQ(even->min_experts, 16u);
  EXPECT_EQ(even->max_intermediate, 2880u);
  EXPECT_EQ(even->ranks_with_max_experts, 8u);

  const auto uneven = split("gpt-oss-120b", {.ep = 6});
  ASSERT_TRUE(uneven);
  EXPECT_EQ(uneven->max_experts, 22u);
  EXPECT_EQ(uneven->min_experts, 21u);
  EXPECT_EQ(uneven->ranks_with_max_experts, 2u);
  EXPECT_TRUE(says(*uneven, "the first 2 hold 22"));
}

TEST(Split, ExchangesThatCountEvenlyAreWarnedAbout) {
  EXPECT_TRUE(
      says(*split("gpt-oss-120b", {.tp = 3, .dp = 2, .ep = 6, .all2all = "deepep_low_latency"}),
           "use a size that divides"));
  EXPECT_FALSE(
      says(*split("gpt-oss-120b", {.tp = 3, .dp = 2, .ep = 6}), "use a size that divides"));
}

TEST(Split, MoreRanksThanExpertsAreRefused) {
  const auto refused = split("gpt-oss-20b", {.ep = 64});

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "plan.experts");
}

TEST(Split, ExpertParallelCoversAllRanksOrNone) {
  EXPECT_TRUE(split("gpt-oss-20b", {.tp = 2, .dp = 2, .ep = 4}));
  const auto refused = split("gpt-oss-20b", {.tp = 2, .ep = 4});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "plan.ranks");
  EXPECT_EQ(refused.why().code, ErrorCode::no_backend);
}

TEST(Split, AbsurdNumbersOfRanksAreUsageErrors) {
  const std::uint64_t huge = ~std::uint64_t{0};
  EXPECT_EQ(split("gpt-oss-20b", {.tp = huge, .dp = huge}).why().code, ErrorCode::usage);
  EXPECT_EQ(split("gpt-oss-20b", {.tp = 0}).why().code, ErrorCode::usage);
  EXPECT_EQ(split("gpt-oss-20b", {.ep = huge}).why().code, ErrorCode::usage);
}

TEST(Split, NamesOfExchangesAreChecked) {
  EXPECT_EQ(split("gpt-oss-20b", {.ep = 4, .all2all = "deepep"}).why().id, "parallel.all2all");
  EXPECT_TRUE(says(*split("gpt-oss-20b", {.ep = 4, .all2all = "pplx"}), "has been removed"));
}

}  // namespace split_test
}  // namespace fp4moe::plan
