// A positive E4M3 code, subnormal or not, as (1 + fraction / 8) * 2^exponent.
#pragma once
#include <bit>

namespace fp4moe::formats {

struct E4m3Parts {
  int exponent = 0;
  int fraction = 0;
};

constexpr E4m3Parts e4m3_parts(int code) {
  const int exponent = code >> 3, fraction = code & 7;
  if (exponent > 0) return {exponent - 7, fraction};
  const int top =
      static_cast<int>(std::bit_width(static_cast<unsigned>(fraction))) - 1;  // fraction * 2^-9
  return {top - 9, (fraction << (3 - top)) & 7};
}
static_assert(e4m3_parts(0x38).exponent == 0 && e4m3_parts(1).exponent == -9 &&
              e4m3_parts(3).fraction == 4);

}  // namespace fp4moe::formats
