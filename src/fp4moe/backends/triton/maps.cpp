#include "fp4moe/backends/triton/maps.hpp"

#include <algorithm>
#include <numeric>

#include "fp4moe/layout/digits.hpp"
#include "fp4moe/layout/maps.hpp"

namespace fp4moe::backends::triton {

using namespace layout;          // NOLINT(google-build-using-namespace): words of a map
using namespace layout::digits;  // NOLINT(google-build-using-namespace): the notation of maps

Map strided() { return named("triton_strided", column_major()); }

Map hopper_value(unsigned mma_version, Pads pads) {
  Map result{.name = mma_version == 3 ? "hopper_value" : "hopper_value_mma2",
             .element = Element::nibble,
             .pad_rows = pads.rows,
             .pad_cols = 2 * pads.bytes,
             .dims = {kExpertsDim, rows_dim(1, 4), cols_dim(2)},
             .is_column_major = true,
             .code = &kHopperCode};
  if (mma_version == 3)
    result.digits = {n(8, 2, at(1)),    k(8, 2, at(2)),   k(1, 2, at(4)),
                     k(16, 4, at(8)),   k(2, 4, at(32)),  n(1, 2, at(128)),
                     k(64, 0, at(256)), n(2, 4, cols(4)), n(16, 0, cols(16))};
  else
    result.digits = {k(2, 4, at(1)),    k(1, 2, at(4)),   n(8, 2, at(8)),
                     k(32, 2, at(16)),  k(8, 4, at(32)),  n(1, 2, at(128)),
                     k(64, 0, at(256)), n(2, 4, cols(4)), n(16, 0, cols(16))};
  return result;
}

Map hopper_scale(std::uint32_t warps, std::uint32_t pad_cols) {
  return {.name = "hopper_scale",
          .pad_rows = 32 * warps,
          .pad_cols = pad_cols,
          .digits = {n(8, 2, at(1)), k(1, 2, at(2)), n(1, 8, at(4)), n(16 * warps, 2, at(32)),
                     k(2, 0, at(64)), n(16, warps, cols(32)), n(32 * warps, 0, cols(32 * warps))},
          .dims = {kExpertsDim, rows_dim(1, 32), cols_dim(32)},
          .is_column_major = true};
}

Map blackwell_value(bool padding_is_unset) {
  Map result = plain(128);
  result.name = "blackwell_value";
  result.is_column_major = true;
  result.padding_is_unset = padding_is_unset;
  return result;
}

Map blackwell_value_shuffled(std::uint32_t block_k, std::uint32_t block_n) {
  const std::uint32_t bytes = block_k / 2;
  return {.name = "blackwell_value_shuffled",
          .pad_rows = block_n,
          .pad_cols = std::lcm(128u, bytes),
          .need_rows = 2,
          .digits = {k(1, bytes, at(1)), n(1, block_n, at(bytes)),
                     n(block_n, 0, at(block_n * bytes)), k(bytes, 0, rows(bytes))},
          .dims = {kExpertsDim, cols_dim(1, bytes), rows_dim(1, block_n), of(block_n), of(bytes)}};
}

Map blackwell_scale() {
  Map result = scales_128x4(8);
  result.name = "blackwell_scale";
  result.dims = {
      of(1), {.experts = true, .rows = true, .divide = 128}, cols_dim(1, 4), of(2), of(256)};
  return result;
}

Map cdna4_scale(bool pads) {
  Map result = named("cdna4_scale", scales_32x8(pads));
  result.dims = {kExpertsDim, rows_dim(1, 32), cols_dim(32)};
  result.is_column_major = true;
  return result;
}

Map gfx1250_scale(std::uint64_t columns) {
  const auto width = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(columns, 1, 4));
  return {.name = "gfx1250_scale",
          .pad_rows = 128,
          .pad_cols = width,
          .digits = {k(1, width, at(1)), n(32, 4, at(width)), n(1, 32, at(4 * width)),
                     k(width, 0, at(128 * width)), n(128, 0, cols(128))},
          .dims = {kExpertsDim, rows_dim(1, 128), cols_dim(128)},
          .is_column_major = true};
}

}  // namespace fp4moe::backends::triton
