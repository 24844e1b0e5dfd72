#include "fp4moe/layout/maps.hpp"

#include <gtest/gtest.h>

#include "support/map_checks.hpp"

namespace fp4moe::layout {
namespace maps_test {

U swizzle_128x4(U r, U c, U, U C) {
  return ((r / 128) * (C / 4) + c / 4) * 512 + (r % 32) * 16 + ((r % 128) / 32) * 4 + c % 4;
}

TEST(Maps, KeepTheLawsAndTheirFormulas) {
  check_maps({
      {.map = plain(),
       .takes = {{1, 1}, {7, 5}, {32, 3}, {3, 5}, {8, 1}},
       .formula = row_after_row,
       .refuses = {{{0, 4}, "1"}, {{4, 0}, "1"}}},
      {.map = plain(16),
       .takes = {{1, 1}, {3, 16}, {5, 33}, {3, 5}, {2, 40}},
       .formula = row_after_row},
      {.map = column_major(), .takes = {{1, 1}, {6, 9}, {5, 7}, {16, 4}}, .formula = row_after_row},
      {.map = column_major(Element::nibble),
       .takes = {{1, 2}, {6, 10}},
       .formula = row_after_row,
       .refuses = {{{1, 1}, "2"}}},
      {.map = scales_128x4(),
       .takes = {{128, 4}, {1, 1}, {130, 5}, {256, 12}, {256, 8}},
       .formula = swizzle_128x4},
      {.map = scales_128x4(8),
       .takes = {{128, 8}, {129, 9}, {130, 5}, {256, 16}},
       .formula = swizzle_128x4},
      {.map = scales_32x8(false),
       .takes = {{32, 8}, {96, 24}},
       .formula = tiles_32x8,
       .refuses = {{{16, 8}, "32"}, {{32, 10}, "16"}}},
      {.map = scales_32x8(true),
       .takes = {{32, 8}, {1, 1}, {33, 9}, {96, 24}},
       .formula = tiles_32x8},
  });
}

TEST(Maps, HaveTheirKernelsShapes) {
  expect_shape(plain(), {4, 6}, 3, {3, 4, 6}, {24, 6, 1});
  expect_shape(column_major(), {4, 6}, 3, {3, 6, 4}, {24, 1, 6});
}

}  // namespace maps_test
}  // namespace fp4moe::layout
