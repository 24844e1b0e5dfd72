#include "fp4moe/backends/marlin/maps.hpp"

#include "fp4moe/layout/digits.hpp"

namespace fp4moe::backends::marlin {

using namespace layout;          // NOLINT(google-build-using-namespace): words of a map
using namespace layout::digits;  // NOLINT(google-build-using-namespace): the notation of maps

Map codes_w4a16() {
  return {.name = "marlin_w4a16",
          .element = Element::nibble,
          .need_rows = 64,
          .need_cols = 16,
          .digits = {k(8, 2, at(1)), n(8, 2, at(2)), k(1, 2, at(4)), n(16, 4, at(8)),
                     k(2, 4, at(32)), n(1, 8, at(128)), n(64, 0, at(1024)), k(16, 0, rows(16))},
          .dims = {kExpertsDim, cols_dim(1, 16), rows_dim(2)}};
}

Map codes_w4a8() {
  return {.name = "marlin_w4a8",
          .element = Element::nibble,
          .need_rows = 64,
          .need_cols = 32,
          .digits = {k(16, 2, at(1)), k(1, 4, at(2)), n(8, 4, at(8)), k(4, 4, at(32)),
                     n(1, 8, at(128)), n(32, 0, at(1024)), k(32, 0, rows(32))},
          .dims = {kExpertsDim, cols_dim(1, 16), rows_dim(2)}};
}

Map scales() {
  return {.name = "marlin_scales",
          .need_rows = 64,
          .digits = {n(16, 2, at(1)), n(8, 2, at(2)), n(32, 2, at(4)), n(1, 8, at(8)),
                     n(64, 0, at(64)), k(1, 0, rows(1))},
          .dims = {kExpertsDim, cols_dim(), rows_dim()}};
}

Map scales_grouped() {
  return {.name = "marlin_scales_grouped",
          .need_rows = 64,
          .digits = {n(8, 8, at(1)), n(1, 8, at(8)), n(64, 0, at(64)), k(1, 0, rows(1))},
          .dims = {kExpertsDim, cols_dim(), rows_dim()}};
}

Map scales_single() {
  return {.name = "marlin_scales_single",
          .need_rows = 32,
          .digits = {n(1, 2, at(1)), n(8, 4, at(2)), n(2, 4, at(8)), n(32, 0, at(32)),
                     k(1, 0, rows(1))},
          .dims = {kExpertsDim, cols_dim(), rows_dim()}};
}

Map scales_single_exchanged() {
  return {.name = "marlin_scales_single_exchanged",
          .need_rows = 32,
          .digits = {n(8, 2, at(1)), n(1, 2, at(2)), n(16, 2, at(4)), n(2, 4, at(8)),
                     n(32, 0, at(32)), k(1, 0, rows(1))},
          .dims = {kExpertsDim, cols_dim(), rows_dim()}};
}

}  // namespace fp4moe::backends::marlin
