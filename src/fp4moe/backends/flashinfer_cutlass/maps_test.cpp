#include "fp4moe/backends/flashinfer_cutlass/maps.hpp"

#include <array>

#include <gtest/gtest.h>

#include "support/map_checks.hpp"

namespace fp4moe::backends::flashinfer_cutlass {
namespace maps_test {

using namespace layout;  // NOLINT(google-build-using-namespace): words of a map

struct Sm90 {
  U word, reg, odd;
};

Sm90 sm90(U n, U k, U K) {
  const U P = k / 64, m = (k % 64) / 16, t = k % 16, r = n % 8;
  const U row = 16 * (n / 16) + r + 8 * (m % 2);
  const U byte = 32 * P + 16 * (m / 2) + 4 * ((t % 8) / 2);
  return {(row * (K / 2) + byte) / 4, 2 * (t / 8) + (n % 16) / 8, t % 2};
}

U sm90_g2(U n, U k, U, U K) {
  constexpr std::array<U, 4> kNibble{0, 1, 4, 5};
  const Sm90 at = sm90(n, k, K);
  return 8 * at.word + kNibble[at.reg] + 2 * at.odd;
}

U sm90_g3(U n, U k, U, U K) {
  const Sm90 at = sm90(n, k, K);
  return 8 * at.word + 4 * at.odd + at.reg;
}

U sm90_scale(U r, U c, U R, U) { return (c / 4) * 4 * R + 4 * r + c % 4; }

U sm90_folded(U r, U c, U, U C) {
  return ((r / 64 * (C / 4) + c / 4) * 16 + r % 16) * 16 + 4 * ((r % 64) / 16) + c % 4;
}

TEST(FlashinferMaps, KeepTheLawsAndTheirFormulas) {
  check_maps({
      {.map = sm90_codes(false),
       .takes = {{16, 64}, {48, 192}},
       .formula = sm90_g2,
       .refuses = {{{24, 64}, "32"}, {{16, 96}, "128"}}},
      {.map = sm90_codes(true),
       .takes = {{16, 64}, {48, 192}},
       .formula = sm90_g3,
       .refuses = {{{8, 64}, "16"}, {{16, 32}, "64"}}},
      {.map = sm90_scales(),
       .takes = {{1, 4}, {64, 12}, {5, 4}},
       .formula = sm90_scale,
       .refuses = {{{64, 6}, "8"}}},
      {.map = sm90_scales_folded(),
       .takes = {{64, 4}, {192, 12}},
       .formula = sm90_folded,
       .refuses = {{{65, 4}, "128"}, {{64, 5}, "8"}}},
  });
}

}  // namespace maps_test
}  // namespace fp4moe::backends::flashinfer_cutlass
