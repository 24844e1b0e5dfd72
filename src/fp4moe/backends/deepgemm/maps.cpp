#include "fp4moe/backends/deepgemm/maps.hpp"

#include "fp4moe/layout/digits.hpp"

namespace fp4moe::backends::deepgemm {

using namespace layout;          // NOLINT(google-build-using-namespace): words of a map
using namespace layout::digits;  // NOLINT(google-build-using-namespace): the notation of maps

Map scales() {
  return {.name = "deepgemm_scales",
          .pad_rows = 4,
          .pad_cols = 4,
          .digits = {k(1, 4, at(1)), n(1, 0, at(4)), k(4, 0, rows(4))},
          .dims = {kExpertsDim, cols_dim(1, 4), rows_dim()},
          .is_column_major = true,
          .reports_logical_rows = true,
          .padding_is_unset = true};
}

}  // namespace fp4moe::backends::deepgemm
