#include "fp4moe/backends/cpu_native/maps.hpp"

#include <gtest/gtest.h>

#include "support/map_checks.hpp"

namespace fp4moe::backends::cpu_native {
namespace maps_test {

using namespace layout;  // NOLINT(google-build-using-namespace): words of a map

// 16 bytes: a pair of rows, eight bytes each; low nibble k ... k + 7, high nibble k + 8 ... k + 15.
U arm_code(U n, U k, U, U K) {
  const U tile = (n / 4) * (K / 32) + k / 32;
  const U unit = 2 * ((n % 4) / 2) + (k % 32) / 16;
  return 2 * (tile * 64 + unit * 16 + 8 * (n % 2) + k % 8) + (k / 8) % 2;
}

U arm_scale(U n, U c, U, U C) { return (n / 4) * 4 * C + 4 * c + n % 4; }

// A register of 64 bytes holds eight k of 16 rows.
U x86_register(U n, U k, U K) { return ((n / 16) * (K / 32) + k / 32) * 256 + (k % 32) / 8 * 64; }

// 16-bit lanes 2 j and 2 j + 1 belong to row j: even k and odd k.
U x86_bf16(U n, U k, U, U K) {
  return 2 * (x86_register(n, k, K) + 4 * (n % 16) + 2 * (k % 2)) + (k % 8) / 2;
}

// 32-bit lane j: four bytes, low nibbles k ... k + 3, high nibbles k + 4 ... k + 7.
U x86_int8(U n, U k, U, U K) {
  return 2 * (x86_register(n, k, K) + 4 * (n % 16) + k % 4) + (k % 8) / 4;
}

U x86_scale(U n, U c, U, U C) { return (n / 16) * 16 * C + 16 * c + n % 16; }

TEST(CpuNativeMaps, KeepTheLawsAndTheirFormulas) {
  check_maps({
      {.map = arm_codes(), .takes = {{8, 32}, {1, 1}, {13, 70}}, .formula = arm_code},
      {.map = arm_scales(32), .takes = {{8, 1}, {1, 1}, {13, 3}, {8, 2}}, .formula = arm_scale},
      {.map = arm_scales(16), .takes = {{8, 2}, {1, 1}, {13, 5}}, .formula = arm_scale},
      {.map = x86_codes(X86Form::bf16), .takes = {{16, 32}, {1, 1}, {20, 70}}, .formula = x86_bf16},
      {.map = x86_codes(X86Form::int8), .takes = {{16, 32}, {1, 1}, {20, 70}}, .formula = x86_int8},
      {.map = x86_scales(32), .takes = {{16, 1}, {1, 1}, {20, 3}, {16, 2}}, .formula = x86_scale},
      {.map = x86_scales(16), .takes = {{16, 2}, {1, 1}, {20, 5}}, .formula = x86_scale},
  });
}

}  // namespace maps_test
}  // namespace fp4moe::backends::cpu_native
