#include "fp4moe/kernels/cpu/translation.hpp"

#include <algorithm>

namespace fp4moe::kernels::cpu {
namespace {

bool group(Translation& made) {
  for (unsigned g = 0; g < 32; ++g) {
    const std::uint8_t* codes = made.table + 8 * g;
    if (g % 16 == 0) {
      std::copy_n(codes, 8, made.small + g / 2);
      continue;
    }
    made.base[g] = codes[0];
    made.mask[g] = codes[1] == codes[0] ? 0 : 7;
    for (unsigned m = 0; m < 8; ++m)
      if (codes[m] != static_cast<std::uint8_t>(codes[0] + (m & made.mask[g]))) return false;
  }
  return true;
}

bool separate(Translation& made) {
  for (unsigned n = 0; n < 16; ++n) {
    made.low[n] = made.table[n];
    made.high[n] = made.table[16 * n];
  }
  for (unsigned code = 0; code < 256; ++code)
    if (made.table[code] != (made.low[code % 16] | made.high[code / 16])) return false;
  return true;
}

}  // namespace

Translation make_translation(const std::array<std::uint8_t, 256>& table) {
  Translation made;
  std::ranges::copy(table, made.table);
  made.kind = group(made)      ? Translation::Kind::grouped
              : separate(made) ? Translation::Kind::separable
                               : Translation::Kind::any;
  return made;
}

}  // namespace fp4moe::kernels::cpu
