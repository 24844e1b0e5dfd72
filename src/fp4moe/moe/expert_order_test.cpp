#include "fp4moe/moe/expert_order.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"

namespace fp4moe::moe {
namespace expert_order_test {

// By a stable sort of (expert, number).
void expect_sorted(const ExpertsCall& call, std::uint64_t experts, std::uint64_t begin,
                   std::uint64_t end) {
  std::vector<std::pair<std::int64_t, std::size_t>> expected;
  const std::uint64_t top_k = call.in.top_k;
  for (std::size_t i = 0; i < (end - begin) * top_k; ++i)
    if (const auto expert = local_position(call, experts, call.in.ids[begin * top_k + i]);
        expert >= 0)
      expected.emplace_back(expert, i);
  std::ranges::stable_sort(expected, {}, [](const auto& pair) { return pair.first; });
  ExpertOrder order;
  order.sort(call, experts, begin, end);
  ASSERT_EQ(order.size(), expected.size());
  ASSERT_EQ(order.begins.size(), experts + 1);
  ASSERT_EQ(order.positions.size(), (end - begin) * top_k);
  std::vector<std::uint32_t> positions(order.positions.size(), ExpertOrder::kNone);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    positions[expected[i].second] = static_cast<std::uint32_t>(i);
    EXPECT_GE(i, order.begins[static_cast<std::size_t>(expected[i].first)]);
    EXPECT_LT(i, order.begins[static_cast<std::size_t>(expected[i].first) + 1]);
  }
  EXPECT_EQ(order.positions, positions);
}

TEST(ExpertOrder, IsAStableSortByExpert) {
  SplitMix64 random(7);
  for (const std::uint64_t top_k : {1u, 2u, 5u})
    for (const std::uint64_t rows : {0u, 1u, 3u, 100u}) {
      std::vector<std::int32_t> ids(rows * top_k);
      for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.next() % 9) - 1;
      const std::vector<std::int32_t> map{2, -1, 0, 7, 1, 0, 3};
      Prepared in;
      in.ids = ids;
      in.top_k = top_k;
      ExpertsCall call{.in = in};
      for (const std::uint64_t experts : {1u, 4u, 7u}) {
        call.expert_map = {};
        expect_sorted(call, experts, 0, rows);
        expect_sorted(call, experts, rows / 3, rows - rows / 4);
        call.expert_map = map;
        expect_sorted(call, experts, 0, rows);
      }
    }
}

TEST(ExpertOrder, IdsOfNoExpertHaveNoPosition) {
  const std::vector<std::int32_t> map{1, -1, 5};
  const Prepared in;
  ExpertsCall call{.in = in};
  EXPECT_EQ(local_position(call, 3, -1), -1);
  EXPECT_EQ(local_position(call, 3, 2), 2);
  EXPECT_EQ(local_position(call, 3, 3), -1);
  call.expert_map = map;
  EXPECT_EQ(local_position(call, 3, 0), 1);
  EXPECT_EQ(local_position(call, 3, 1), -1);
  EXPECT_EQ(local_position(call, 3, 2), -1) << "mapped beyond the experts";
  EXPECT_EQ(local_position(call, 3, 3), -1) << "beyond the map";
}

TEST(ExpertOrder, OccupiedRowsOfBatchesAreCountedThrough) {
  const std::vector<std::int32_t> counts{2, 0, 3, 1};
  Prepared in;
  in.counts = counts;
  in.capacity = 4;
  EXPECT_EQ(occupied(in), 6u);
  const std::vector<std::pair<std::size_t, std::uint64_t>> all{{0, 0}, {0, 1},  {2, 8},
                                                               {2, 9}, {2, 10}, {3, 12}};
  for (std::size_t begin = 0; begin <= all.size(); ++begin)
    for (std::size_t end = begin; end <= all.size(); ++end) {
      std::vector<std::pair<std::size_t, std::uint64_t>> found;
      std::size_t experts = 0;
      for_each_occupied(
          in, begin, end,
          [&](std::size_t expert, std::uint64_t row) {
            EXPECT_EQ(expert, experts);
            found.emplace_back(expert, row);
          },
          [&] { ++experts; });
      EXPECT_EQ(experts, counts.size());
      EXPECT_TRUE(std::ranges::equal(found, std::span(all).subspan(begin, end - begin)))
          << begin << " to " << end;
    }
}

}  // namespace expert_order_test
}  // namespace fp4moe::moe
