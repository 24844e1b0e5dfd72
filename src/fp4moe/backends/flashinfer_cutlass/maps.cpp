#include "fp4moe/backends/flashinfer_cutlass/maps.hpp"

#include "fp4moe/layout/digits.hpp"

namespace fp4moe::backends::flashinfer_cutlass {

using namespace layout;          // NOLINT(google-build-using-namespace): words of a map
using namespace layout::digits;  // NOLINT(google-build-using-namespace): the notation of maps

Map sm90_codes(bool scattered) {
  // A word holds registers (row / 8, k / 8) of both halves of a pair of k. Nibbles from the lowest:
  // registers 0 and 1 even, 0 and 1 odd, then 2 and 3; scattered words count registers first.
  const std::uint32_t odd = scattered ? 4 : 2, upper = scattered ? 2 : 4;
  return {.name = scattered ? "sm90_weights_g3" : "sm90_weights_g2",
          .element = Element::nibble,
          .need_rows = 16,
          .need_cols = 64,
          .digits = {n(8, 2, at(1)), k(1, 2, at(odd)), k(8, 2, at(upper)), k(2, 4, at(8)),
                     k(32, 2, at(32)), k(64, 0, at(64)), n(1, 8, cols(1)), k(16, 2, cols(8)),
                     n(16, 0, cols(16))},
          .dims = {kExpertsDim, rows_dim(), cols_dim(1, 2)},
          .code = scattered ? &kHopperCode : nullptr};
}

Map sm90_scales() {
  return {.name = "sm90_scales",
          .need_cols = 4,
          .digits = {k(1, 4, at(1)), n(1, 0, at(4)), k(4, 0, rows(4))},
          .dims = {kExpertsDim, cols_dim(1, 4), rows_dim(4)}};
}

Map sm90_scales_folded() {
  return {.name = "sm90_scales_folded",
          .need_rows = 64,
          .need_cols = 4,
          .digits = {k(1, 4, at(1)), n(16, 4, at(4)), n(1, 16, at(16)), k(4, 0, at(256)),
                     n(64, 0, cols(64))},
          .dims = {kExpertsDim, rows_dim(1, 64), cols_dim(1, 4), of(16), of(16)}};
}

}  // namespace fp4moe::backends::flashinfer_cutlass
