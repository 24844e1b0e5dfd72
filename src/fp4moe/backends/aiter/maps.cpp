#include "fp4moe/backends/aiter/maps.hpp"

#include "fp4moe/layout/digits.hpp"
#include "fp4moe/layout/maps.hpp"

namespace fp4moe::backends::aiter {

using namespace layout;          // NOLINT(google-build-using-namespace): words of a map
using namespace layout::digits;  // NOLINT(google-build-using-namespace): the notation of maps

Map codes(std::uint32_t need_bytes) {
  return {.name = "aiter_weights",
          .need_rows = 16,
          .need_cols = need_bytes,
          .digits = {k(1, 16, at(1)), n(1, 16, at(16)), k(16, 0, at(256)), n(16, 0, cols(16))}};
}

Map scales(bool pads) {
  Map result = named("aiter_scales", scales_32x8(false));
  result.dims = {{.experts = true, .rows = true}, cols_dim()};
  if (pads) {
    result.need_cols = 1;
    result.pad_cols = 8;
    result.padding = 0x7F;
  }
  return result;
}

Map scales_all_experts() {
  Map result = named("aiter_scales_all_experts", scales_32x8(true));
  result.pad_rows = 256;
  result.dims = {rows_dim(), cols_dim()};
  result.padding_is_unset = true;
  return result;
}

Map scales_n32k4() {
  return {.name = "aiter_scales_n32k4",
          .need_rows = 32,
          .need_cols = 4,
          .digits = {k(1, 4, at(1)), n(1, 32, at(4)), k(4, 0, at(128)), n(32, 0, cols(32))},
          .dims = {kExpertsDim, rows_dim(1, 32), cols_dim(32)}};
}

Map triton_strided() { return named("triton_strided", column_major()); }

Map triton_scales() {
  Map result = named("cdna4_scale", scales_32x8(false));
  result.dims = {kExpertsDim, rows_dim(1, 32), cols_dim(32)};
  result.is_column_major = true;
  return result;
}

}  // namespace fp4moe::backends::aiter
