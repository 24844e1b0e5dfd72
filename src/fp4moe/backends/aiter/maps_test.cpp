#include "fp4moe/backends/aiter/maps.hpp"

#include <gtest/gtest.h>

#include "support/map_checks.hpp"

namespace fp4moe::backends::aiter {
namespace maps_test {

using namespace layout;  // NOLINT(google-build-using-namespace): words of a map

U aiter_weight(U n, U b, U, U K2) {
  return (n / 16) * (16 * K2) + (b / 16) * 256 + (n % 16) * 16 + b % 16;
}

U aiter_n32k4(U n, U k, U, U Ks) {
  return (n / 32) * (32 * Ks) + (k / 4) * 128 + (n % 32) * 4 + k % 4;
}

TEST(AiterMaps, KeepTheLawsAndTheirFormulas) {
  check_maps({
      {.map = codes(),
       .takes = {{16, 64}, {48, 128}},
       .formula = aiter_weight,
       .refuses = {{{8, 64}, "16"}, {{16, 32}, "64"}}},
      {.map = codes(32),
       .takes = {{16, 32}, {48, 96}},
       .formula = aiter_weight,
       .refuses = {{{17, 32}, "32"}, {{16, 48}, "64"}}},
      {.map = scales(false),
       .takes = {{32, 8}, {96, 24}},
       .formula = tiles_32x8,
       .refuses = {{{32, 12}, "16"}, {{48, 8}, "64"}}},
      {.map = scales(true),
       .takes = {{32, 8}, {32, 1}, {96, 12}, {32, 5}, {96, 24}},
       .formula = tiles_32x8,
       .refuses = {{{16, 8}, "32"}}},
      {.map = scales_all_experts(),
       .takes = {{256, 8}, {1, 1}, {300, 9}},
       .formula = tiles_32x8,
       .joins_experts = true},
      {.map = scales_n32k4(),
       .takes = {{32, 4}, {96, 12}},
       .formula = aiter_n32k4,
       .refuses = {{{32, 6}, "8"}, {{40, 4}, "64"}}},
      {.map = triton_strided(), .takes = {{1, 1}, {5, 7}}, .formula = row_after_row},
      {.map = triton_scales(), .takes = {{32, 8}, {96, 24}}, .formula = tiles_32x8},
  });
}

TEST(AiterMaps, HaveTheirKernelsShapes) {
  expect_shape(scales(false), {32, 8}, 3, {96, 8}, {8, 1});
}

}  // namespace maps_test
}  // namespace fp4moe::backends::aiter
