#include "fp4moe/backends/vllm_cpu/maps.hpp"

#include <gtest/gtest.h>

#include "support/map_checks.hpp"

namespace fp4moe::backends::vllm_cpu {
namespace maps_test {

using namespace layout;  // NOLINT(google-build-using-namespace): words of a map

// Source byte (row i of a block, byte b), nibble d: p = 2 i + d; byte p % 32, low nibble below 32.
U cpu_weight(U n, U k, U, U K) {
  const U b = k / 2, p = 2 * (n % 32) + k % 2;
  const U byte = (n / 32) * 32 * (K / 2) + b * 32 + p % 32;
  return 2 * byte + (p < 32 ? 0 : 1);
}

U cpu_scale(U n, U k, U, U Ks) { return (n / 32) * (32 * Ks) + k * 32 + n % 32; }

TEST(VllmCpuMaps, KeepTheLawsAndTheirFormulas) {
  check_maps({
      {.map = codes(),
       .takes = {{32, 32}, {96, 64}},
       .formula = cpu_weight,
       .refuses = {{{16, 32}, "32"}, {{32, 48}, "64"}}},
      {.map = scales(),
       .takes = {{32, 1}, {96, 5}},
       .formula = cpu_scale,
       .refuses = {{{48, 1}, "64"}}},
  });
}

}  // namespace maps_test
}  // namespace fp4moe::backends::vllm_cpu
