#include "fp4moe/checkpoint/slice.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include <gtest/gtest.h>

namespace fp4moe::checkpoint {
namespace slice_test {

std::vector<std::uint64_t> sizes(std::uint64_t intermediate, std::uint64_t ranks, SplitRule rule) {
  std::vector<std::uint64_t> result;
  std::uint64_t end = 0;
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    const auto range = split_intermediate(intermediate, 32, {rank, ranks}, rule);
    EXPECT_TRUE(range) << text(range.why());
    if (!range) return {};
    EXPECT_EQ(range->begin, end);
    end = range->end;
    result.push_back(range->size());
  }
  EXPECT_EQ(end, intermediate);
  return result;
}

using Sizes = std::vector<std::uint64_t>;

TEST(Slice, CutsGptOssAsItsLoaderDoes) {
  EXPECT_EQ(sizes(2880, 1, SplitRule::ceil_blocks), (Sizes{2880}));
  EXPECT_EQ(sizes(2880, 2, SplitRule::ceil_blocks), (Sizes{1440, 1440}));
  EXPECT_EQ(sizes(2880, 4, SplitRule::ceil_blocks), (Sizes{736, 736, 736, 672}));
  EXPECT_EQ(sizes(2880, 8, SplitRule::ceil_blocks),
            (Sizes{384, 384, 384, 384, 384, 384, 384, 192}));
}

TEST(Slice, LeavesTheLastRanksEmptyWhenBlocksRunOut) {
  EXPECT_EQ(sizes(96, 4, SplitRule::ceil_blocks), (Sizes{32, 32, 32, 0}));
  EXPECT_EQ(sizes(160, 4, SplitRule::ceil_blocks), (Sizes{64, 64, 32, 0}));
}

TEST(Slice, SurvivesRanksNearTheEndOfTheNumbers) {
  constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();
  const auto range = split_intermediate(2880, 32, {kHuge - 1, kHuge}, SplitRule::ceil_blocks);
  ASSERT_TRUE(range);
  EXPECT_EQ(*range, (Range{2880, 2880}));
}

TEST(Slice, CutsEquallyWhereBlocksDivide) {
  EXPECT_EQ(sizes(768, 4, SplitRule::equal), (Sizes{192, 192, 192, 192}));
}

TEST(Slice, RefusesAnUnevenSplitAndNamesTheNearestPossibleOnes) {
  const auto range = split_intermediate(2880, 32, {0, 4}, SplitRule::equal);
  ASSERT_FALSE(range);
  EXPECT_EQ(range.why().id, "slice.uneven");
  EXPECT_NE(range.why().remedy.find("3 and 5"), std::string::npos) << range.why().remedy;
}

TEST(Slice, NamesOnlyTheLargestWhenThereIsNoneAbove) {
  const auto range = split_intermediate(64, 32, {0, 7}, SplitRule::equal);
  ASSERT_FALSE(range);
  EXPECT_NE(range.why().remedy.find("Possible is 2"), std::string::npos) << range.why().remedy;
}

TEST(Slice, RefusesPartBlocksButNotWhenNothingIsCut) {
  EXPECT_EQ(split_intermediate(100, 32, {0, 2}, SplitRule::ceil_blocks).why().id, "slice.blocks");
  EXPECT_EQ(*split_intermediate(100, 32, {0, 1}, SplitRule::equal), (Range{0, 100}));
}

TEST(Slice, RefusesRanksOutsideTheirGroup) {
  EXPECT_EQ(split_intermediate(64, 32, {2, 2}, SplitRule::equal).why().id, "slice.rank");
  EXPECT_EQ(split_intermediate(64, 32, {0, 0}, SplitRule::equal).why().id, "slice.rank");
  EXPECT_EQ(local_experts(8, {3, 3}, Placement::linear).why().id, "slice.rank");
}

TEST(Slice, GivesTheRemainderOfExpertsToTheFirstRanks) {
  EXPECT_EQ(*local_experts(10, {0, 4}, Placement::linear), (Sizes{0, 1, 2}));
  EXPECT_EQ(*local_experts(10, {1, 4}, Placement::linear), (Sizes{3, 4, 5}));
  EXPECT_EQ(*local_experts(10, {2, 4}, Placement::linear), (Sizes{6, 7}));
  EXPECT_EQ(*local_experts(10, {3, 4}, Placement::linear), (Sizes{8, 9}));
  EXPECT_EQ(*local_experts(10, {1, 4}, Placement::round_robin), (Sizes{1, 5, 9}));
  EXPECT_EQ(*local_experts(10, {3, 4}, Placement::round_robin), (Sizes{3, 7}));
}

TEST(Slice, EveryExpertHasOneOwnerAndOwnershipAgreesWithTheList) {
  for (const Placement placement : {Placement::linear, Placement::round_robin}) {
    for (const std::uint64_t ranks : {1u, 3u, 7u, 40u}) {
      std::vector<int> owners(32, 0);
      for (std::uint64_t rank = 0; rank < ranks; ++rank) {
        const auto owned = local_experts(32, {rank, ranks}, placement);
        ASSERT_TRUE(owned);
        EXPECT_TRUE(std::is_sorted(owned->begin(), owned->end()));
        for (std::uint64_t expert = 0; expert < 34; ++expert) {
          const bool listed = std::find(owned->begin(), owned->end(), expert) != owned->end();
          EXPECT_EQ(owns_expert(32, {rank, ranks}, placement, expert), listed);
        }
        for (const std::uint64_t expert : *owned) ++owners[expert];
      }
      EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), 32);
    }
  }
}

}  // namespace slice_test
}  // namespace fp4moe::checkpoint
