#include "fp4moe/kernels/cpu/translation.hpp"

#include <algorithm>

namespace fp4moe::kernels::cpu {
namespace {

bool group(Translation& result) {
  for (unsigned g = 0; g < 32; ++g) {
    const std::uint8_t* codes = result.table + 8 * g;
    if (g % 16 == 0) {
      std::copy_n(codes, 8, result.small + g / 2);
      continue;
    }
    result.base[g] = codes[0];
    result.mask[g] = codes[1] == codes[0] ? 0 : 7;
    for (unsigned m = 0; m < 8; ++m)
      if (codes[m] != static_cast<std::uint8_t>(codes[0] + (m & result.mask[g]))) return false;
  }
  return true;
}

bool separate(Translation& result) {
  for (unsigned n = 0; n < 16; ++n) {
    result.low[n] = result.table[n];
    result.high[n] = result.table[16 * n];
  }
  for (unsigned code = 0; code < 256; ++code)
    if (result.table[code] != (result.low[code % 16] | result.high[code / 16])) return false;
  return true;
}

}  // namespace

Translation make_translation(const std::array<std::uint8_t, 256>& table) {
  Translation result;
  std::ranges::copy(table, result.table);
  result.kind = group(result)      ? Translation::Kind::grouped
                : separate(result) ? Translation::Kind::separable
                                   : Translation::Kind::any;
  return result;
}

}  // namespace fp4moe::kernels::cpu
