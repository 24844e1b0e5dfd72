#include "fp4moe/layout/layout.hpp"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace fp4moe::layout {
namespace layout_test {

// Where gates 0, 1, ... and then ups 0, 1, ... go.
std::vector<std::uint64_t> rows(const Layout& layout, Sizes real, Sizes padded,
                                bool is_interleaved = false) {
  std::vector<std::uint64_t> result;
  for (const unsigned which : {0u, 1u})
    for (std::uint64_t i = 0; i < real.intermediate; ++i)
      result.push_back(w13_row(layout, real, padded, is_interleaved, which, i));
  return result;
}

using Offsets = std::vector<std::uint64_t>;

TEST(W13Rows, HalvesBeginWhereThePaddedHalfEnds) {
  EXPECT_EQ(rows({}, {8, 3}, {8, 4}), (Offsets{0, 1, 2, 4, 5, 6}));
  EXPECT_EQ(rows({.order = {.up_first = true}}, {8, 3}, {8, 4}), (Offsets{4, 5, 6, 0, 1, 2}));
}

TEST(W13Rows, BlocksAreInterleaved) {
  EXPECT_EQ(rows({.order = {.block = 1}}, {8, 3}, {8, 4}), (Offsets{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(rows({.order = {.block = 1, .up_first = true}}, {8, 3}, {8, 3}),
            (Offsets{1, 3, 5, 0, 2, 4}));
  EXPECT_EQ(rows({.order = {.block = 2}}, {8, 4}, {8, 4}), (Offsets{0, 1, 4, 5, 2, 3, 6, 7}));
}

TEST(W13Rows, AsLoadedIsTheCheckpointsOwnOrder) {
  const Layout layout{.order = {.as_loaded = true}};
  EXPECT_EQ(rows(layout, {8, 3}, {8, 4}, true), (Offsets{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(rows(layout, {8, 3}, {8, 4}, false), (Offsets{0, 1, 2, 4, 5, 6}));
}

// Both halves lie together, and what follows them is padding: interleaved, the halves of all rows
// are taken, wherever gate and up meet. Nothing changes where nothing is padded.
TEST(W13Rows, PaddingAtTheEndPairsOtherRows) {
  Layout layout{.order = {.block = 1, .up_first = true}, .is_padded_at_end = true};
  // ups 0 1 2, gates 3 4 5, padding 6 7; the first half of the 8 rows goes to even rows.
  EXPECT_EQ(rows(layout, {8, 3}, {8, 4}), (Offsets{6, 1, 3, 0, 2, 4}));
  EXPECT_EQ(rows(layout, {8, 3}, {8, 3}), (Offsets{1, 3, 5, 0, 2, 4}));
  layout.order.block = 0;
  EXPECT_EQ(rows(layout, {8, 3}, {8, 4}), (Offsets{3, 4, 5, 0, 1, 2}));
}

TEST(W13Rows, GatesAndUpsHaveDifferentRows) {
  for (const bool as_loaded : {false, true})
    for (const std::uint32_t block : {0u, 1u, 8u, 16u, 64u})
      for (const bool up_first : {false, true})
        for (const bool at_end : {false, true})
          for (const bool is_interleaved : {false, true})
            for (const Sizes real : {Sizes{64, 1}, Sizes{64, 96}, Sizes{64, 128}}) {
              const Sizes padded{64, 128};
              const Layout layout{
                  .order = {.as_loaded = as_loaded, .block = block, .up_first = up_first},
                  .is_padded_at_end = at_end};
              std::set<std::uint64_t> taken;
              for (const std::uint64_t row : rows(layout, real, padded, is_interleaved)) {
                EXPECT_LT(row, 2 * padded.intermediate);
                EXPECT_TRUE(taken.insert(row).second) << row;
              }
            }
}

TEST(ShuffledRows, MoveWithinBlocksOf32AndBack) {
  // out[32 B + a + 8 b] <- in[32 B + 4 a + b]
  for (std::uint64_t block = 0; block < 3; ++block)
    for (std::uint64_t a = 0; a < 8; ++a)
      for (std::uint64_t b = 0; b < 4; ++b) {
        EXPECT_EQ(shuffled_row(32 * block + 4 * a + b), 32 * block + a + 8 * b);
        EXPECT_EQ(unshuffled_row(32 * block + a + 8 * b), 32 * block + 4 * a + b);
      }
}

TEST(FindLayout, TakesTheFirstOfAnIdWhenNoGenerationIsNamed) {
  const std::vector<Layout> all{
      {.id = "a", .generation = "new"}, {.id = "a", .generation = "old"}, {.id = "b"}};
  EXPECT_EQ(find_layout(all, "a", ""), &all[0]);
  EXPECT_EQ(find_layout(all, "a", "old"), &all[1]);
  EXPECT_EQ(find_layout(all, "b", ""), &all[2]);
  EXPECT_EQ(find_layout(all, "a", "older"), nullptr);
  EXPECT_EQ(find_layout(all, "c", ""), nullptr);
}

}  // namespace layout_test
}  // namespace fp4moe::layout
