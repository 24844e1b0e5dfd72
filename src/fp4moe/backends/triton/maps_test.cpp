#include "fp4moe/backends/triton/maps.hpp"

#include <gtest/gtest.h>

#include "support/map_checks.hpp"

namespace fp4moe::backends::triton {
namespace maps_test {

using namespace layout;  // NOLINT(google-build-using-namespace): words of a map

// Bytes of a group of four become one word: byte i is register i, its nibbles the halves.
U recoded(U offset, U k) { return 8 * (offset / 4) + 4 * (k % 2) + offset % 4; }

U hopper_mma3(U n, U k, U, U K) {
  const U b = k / 2, r0 = n / 16, w0 = n / 8 % 2, t0 = n / 2 % 4, s0 = n % 2;
  const U r1 = b / 32, k1 = b / 8 % 4, w1 = b / 4 % 2, t1 = b % 4;
  const U C = 128 * r1 + 64 * s0 + 16 * t1 + 4 * k1 + 2 * w1 + w0;
  return recoded((4 * r0 + t0) * (4 * (K / 2)) + C, k);
}

U hopper_mma2(U n, U k, U, U K) {
  const U b = k / 2, r0 = n / 16, w0 = n / 8 % 2, t0 = n / 2 % 4, s0 = n % 2;
  const U r1 = b / 32, w1 = b / 16 % 2, t1 = b / 4 % 4, c1 = b % 4;
  const U C = 128 * r1 + 64 * s0 + 16 * t1 + 8 * w1 + 4 * w0 + c1;
  return recoded((4 * r0 + t0) * (4 * (K / 2)) + C, k);
}

template <U Warps>
U hopper_scale_offset(U n, U k, U, U K) {
  const U m0 = n / (32 * Warps), a = n / (16 * Warps) % 2, w = n / 16 % Warps, h = n / 8 % 2,
          r = n % 8, q = k / 2, p = k % 2;
  return (m0 * Warps + w) * (32 * K) + 64 * q + 32 * a + 4 * r + 2 * p + h;
}

template <U BlockK, U BlockN>
U blackwell_shuffled(U n, U b, U N, U) {
  const U tk = BlockK / 2;
  return ((b / tk) * (N / BlockN) + n / BlockN) * (BlockN * tk) + (n % BlockN) * tk + b % tk;
}

U blackwell_scale_offset(U n, U k, U, U K) {
  return (n / 128) * (128 * K) + (k / 4) * 512 + (n % 32) * 16 + ((n / 32) % 4) * 4 + k % 4;
}

template <U Width>
U gfx1250(U n, U k, U, U K) {
  return (n / 128) * (128 * K) + (k / Width) * (128 * Width) + (n % 32) * (4 * Width) +
         ((n / 32) % 4) * Width + k % Width;
}

TEST(TritonMaps, KeepTheLawsAndTheirFormulas) {
  check_maps({
      {.map = strided(), .takes = {{1, 1}, {6, 9}, {5, 7}, {16, 4}}, .formula = row_after_row},
      {.map = hopper_value(3, {16, 32}),
       .takes = {{16, 64}, {1, 1}, {40, 130}, {40, 100}, {64, 128}},
       .formula = hopper_mma3},
      {.map = hopper_value(3, {64, 64}), .takes = {{64, 128}, {65, 2}}, .formula = hopper_mma3},
      {.map = hopper_value(3, {256, 64}),
       .takes = {{256, 128}, {10, 160}, {40, 100}, {256, 256}},
       .formula = hopper_mma3},
      {.map = hopper_value(2, {16, 32}),
       .takes = {{16, 64}, {1, 1}, {40, 130}, {40, 100}, {64, 128}},
       .formula = hopper_mma2},
      {.map = hopper_value(2, {256, 64}), .takes = {{256, 128}, {10, 160}}, .formula = hopper_mma2},
      {.map = hopper_scale(4),
       .takes = {{128, 2}, {1, 1}, {130, 5}, {256, 4}},
       .formula = hopper_scale_offset<4>},
      {.map = hopper_scale(8),
       .takes = {{256, 2}, {1, 1}, {300, 3}, {300, 5}, {512, 4}},
       .formula = hopper_scale_offset<8>},
      {.map = hopper_scale(8, 4),
       .takes = {{256, 4}, {1, 1}, {300, 5}, {512, 4}},
       .formula = hopper_scale_offset<8>},
      {.map = hopper_scale(1), .takes = {{32, 2}, {33, 3}}, .formula = hopper_scale_offset<1>},
      {.map = blackwell_value(),
       .takes = {{1, 1}, {3, 128}, {5, 200}, {3, 130}, {16, 128}},
       .formula = row_after_row},
      {.map = blackwell_value(true), .takes = {{1, 1}, {3, 128}}, .formula = row_after_row},
      {.map = blackwell_value_shuffled(),
       .takes = {{256, 128}, {2, 1}, {258, 130}, {300, 130}},
       .formula = blackwell_shuffled<128, 256>,
       .refuses = {{{3, 4}, "4"}}},
      {.map = blackwell_value_shuffled(256, 128),
       .takes = {{128, 128}, {130, 3}, {130, 130}, {256, 128}},
       .formula = blackwell_shuffled<256, 128>,
       .refuses = {{{1, 1}, "2"}}},
      {.map = blackwell_scale(),
       .takes = {{128, 8}, {1, 1}, {130, 9}, {256, 8}},
       .formula = blackwell_scale_offset},
      {.map = cdna4_scale(false),
       .takes = {{32, 8}, {96, 24}},
       .formula = tiles_32x8,
       .refuses = {{{16, 8}, "32"}, {{32, 10}, "16"}}},
      {.map = cdna4_scale(true),
       .takes = {{32, 8}, {1, 1}, {33, 9}, {96, 24}},
       .formula = tiles_32x8},
      {.map = gfx1250_scale(4), .takes = {{128, 4}, {1, 4}, {130, 5}}, .formula = gfx1250<4>},
      {.map = gfx1250_scale(3), .takes = {{128, 3}, {1, 3}, {130, 3}}, .formula = gfx1250<3>},
      {.map = gfx1250_scale(1), .takes = {{128, 1}, {1, 1}, {130, 1}}, .formula = gfx1250<1>},
      {.map = gfx1250_scale(90), .takes = {{200, 90}}, .formula = gfx1250<4>},
      {.map = hopper_value(2, {64, 64}), .takes = {{40, 100}, {64, 256}}, .formula = hopper_mma2},
      {.map = gfx1250_scale(9), .takes = {{130, 9}, {256, 8}}, .formula = gfx1250<4>},
  });
}

TEST(TritonMaps, HaveTheirKernelsShapes) {
  expect_shape(strided(), {4, 6}, 3, {3, 6, 4}, {24, 1, 6});
  expect_shape(hopper_value(3, {64, 64}), {1, 2}, 2, {2, 256, 16}, {4096, 1, 256});
  expect_shape(hopper_scale(8), {1, 1}, 1, {1, 64, 8}, {512, 1, 64});
  expect_shape(blackwell_scale(), {130, 1}, 3, {1, 6, 2, 2, 256}, {6144, 1024, 512, 256, 1});
  const Result<IndexMap> hopper = IndexMap::bind(hopper_value(3, {16, 32}), {16, 64});
  ASSERT_TRUE(hopper);
  EXPECT_EQ(stored_shape(*hopper, 2), (std::vector<std::uint64_t>{2, 4, 128}));
}

}  // namespace maps_test
}  // namespace fp4moe::backends::triton
