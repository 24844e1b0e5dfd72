#include "fp4moe/backends/marlin/maps.hpp"

#include <array>

#include <gtest/gtest.h>

#include "support/map_checks.hpp"

namespace fp4moe::backends::marlin {
namespace maps_test {

using namespace layout;  // NOLINT(google-build-using-namespace): words of a map

// Marlin's permutations as gathers over a row: out[i] <- in[source(i)].
template <class Source>
U place_after(U x, U block, const Source& source) {
  for (U i = 0; i < block; ++i)
    if (source(i) == x % block) return x / block * block + i;
  return ~U{0};
}

U g64(U x) {
  return place_after(x, 64, [](U i) { return 8 * (i % 8) + i / 8; });
}

U s32(U x) {
  constexpr std::array<U, 8> kFrom{0, 1, 8, 9, 16, 17, 24, 25};
  return place_after(x, 32, [&](U i) { return 2 * (i / 8) + kFrom[i % 8]; });
}

U f4(U x) {
  constexpr std::array<U, 4> kFrom{0, 2, 1, 3};
  return place_after(x, 4, [&](U i) { return kFrom[i]; });
}

U w4a16(U n, U k, U N, U) {
  const U kt = k / 16, kr = k % 16, nt = n / 64, nc = n % 64;
  const U w = (kt * (N / 64) + nt) * 128 + ((nc % 8) * 4 + (kr % 8) / 2) * 4 + nc / 16;
  const U p = 4 * (kr % 2) + 2 * ((nc % 16) / 8) + kr / 8;
  return 8 * w + p;
}

U w4a8(U n, U k, U N, U) {
  const U kt = k / 32, kr = k % 32, nt = n / 32, nc = n % 32;
  const U w = (kt * (N / 32) + nt) * 128 + ((nc % 8) * 4 + (kr % 16) / 4) * 4 + nc / 8;
  return 8 * w + 2 * (kr % 4) + kr / 16;
}

TEST(MarlinMaps, KeepTheLawsAndTheirFormulas) {
  check_maps({
      {.map = codes_w4a16(),
       .takes = {{64, 16}, {128, 48}, {192, 80}},
       .formula = w4a16,
       .refuses = {{{63, 16}, "64"}, {{64, 24}, "32"}}},
      {.map = codes_w4a8(),
       .takes = {{64, 32}, {192, 96}},
       .formula = w4a8,
       .refuses = {{{96, 32}, "128"}, {{64, 48}, "64"}}},
      {.map = scales(),
       .takes = {{64, 1}, {128, 5}, {64, 2}, {192, 3}},
       .formula = [](U n, U k, U N, U) { return k * N + f4(g64(n)); },
       .refuses = {{{32, 4}, "64"}}},
      {.map = scales_grouped(),
       .takes = {{64, 1}, {192, 3}, {64, 2}},
       .formula = [](U n, U k, U N, U) { return k * N + g64(n); },
       .refuses = {{{100, 4}, "128"}}},
      {.map = scales_single(),
       .takes = {{32, 1}, {96, 3}, {32, 2}, {192, 3}},
       .formula = [](U n, U k, U N, U) { return k * N + s32(n); },
       .refuses = {{{33, 1}, "64"}}},
      {.map = scales_single_exchanged(),
       .takes = {{32, 1}, {96, 3}, {32, 2}, {192, 3}},
       .formula = [](U n, U k, U N, U) { return k * N + f4(s32(n)); },
       .refuses = {{{1, 1}, "32"}}},
  });
}

TEST(MarlinMaps, HaveTheirKernelsShapes) {
  expect_shape(codes_w4a16(), {64, 32}, 2, {2, 2, 128}, {256, 128, 1});
}

}  // namespace maps_test
}  // namespace fp4moe::backends::marlin
