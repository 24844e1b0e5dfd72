#include "fp4moe/tensor/files/write_ledger.hpp"

#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

#include "fp4moe/base/parallel.hpp"

namespace fp4moe::tensor {
namespace write_ledger_test {

using Pieces = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

bool is_tiled(const Pieces& pieces, std::uint64_t size) {
  WriteLedger ledger(1);
  for (const auto& [begin, end] : pieces) ledger.record(0, begin, end);
  return ledger.is_tiled(0, size);
}

TEST(WriteLedger, KnowsATensorWrittenOnce) {
  EXPECT_TRUE(is_tiled({{0, 8}}, 8));
  EXPECT_TRUE(is_tiled({{4, 8}, {0, 4}}, 8));
  EXPECT_TRUE(is_tiled({{3, 4}, {0, 1}, {1, 3}, {2, 2}}, 4));
  EXPECT_TRUE(is_tiled({}, 0));
}

TEST(WriteLedger, KnowsGapsAndOverlaps) {
  EXPECT_FALSE(is_tiled({}, 8));
  EXPECT_FALSE(is_tiled({{0, 4}}, 8));
  EXPECT_FALSE(is_tiled({{0, 8}, {0, 4}}, 8));
  EXPECT_FALSE(is_tiled({{0, 4}, {0, 4}}, 8)) << "an overlap hides a gap of the same size";
  EXPECT_FALSE(is_tiled({{0, 3}, {2, 5}, {6, 8}}, 8));
  EXPECT_FALSE(is_tiled({{0, 4}, {4, 8}, {2, 6}}, 12));
}

// All ways to write 6 bytes in 3 pieces, against a bitmap.
TEST(WriteLedger, AgreesWithABitmap) {
  Pieces all;
  for (std::uint64_t begin = 0; begin < 6; ++begin)
    for (std::uint64_t end = begin; end <= 6; ++end) all.emplace_back(begin, end);
  for (const auto& a : all)
    for (const auto& b : all)
      for (const auto& c : all) {
        std::vector<int> times(6);
        for (const auto& [begin, end] : {a, b, c})
          for (std::uint64_t i = begin; i < end; ++i) ++times[i];
        const bool once = std::ranges::all_of(times, [](int t) { return t == 1; });
        ASSERT_EQ(is_tiled({a, b, c}, 6), once);
      }
}

TEST(WriteLedger, CountsFromManyThreads) {
  WriteLedger ledger(3);
  ASSERT_TRUE(parallel_for(8, 30'000, [&](std::size_t i) -> Result<Done> {
    ledger.record(i % 3, i / 3 * 5, i / 3 * 5 + 5);
    return Done{};
  }));
  for (std::size_t tensor = 0; tensor < 3; ++tensor) {
    EXPECT_EQ(ledger.bytes(tensor), 50'000u);
    EXPECT_TRUE(ledger.is_tiled(tensor, 50'000));
  }
}

}  // namespace write_ledger_test
}  // namespace fp4moe::tensor
