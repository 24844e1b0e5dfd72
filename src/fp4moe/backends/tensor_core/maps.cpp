#include "fp4moe/backends/tensor_core/maps.hpp"

#include "fp4moe/layout/digits.hpp"

namespace fp4moe::backends::tensor_core {

using namespace layout;          // NOLINT(google-build-using-namespace): words of a map
using namespace layout::digits;  // NOLINT(google-build-using-namespace): the notation of maps

// A record: 64 rows x 64 k, 2048 bytes of codes, then 64 * (64 / block) bytes of scales.
Map codes(std::uint32_t block) {
  const std::uint32_t bytes = 2048 + 64 * (64 / block);
  return {.name = block == 32 ? "native_sm90_codes" : "native_sm90_codes_16",
          .element = Element::nibble,
          .pad_rows = 64,
          .pad_cols = 64,
          .digits = {n(8, 2, at(1)), k(8, 2, at(2)), k(1, 2, at(4)), k(16, 4, at(8)),
                     k(2, 4, at(32)), n(1, 8, at(128)), n(16, 4, at(1024)), k(64, 0, at(2 * bytes)),
                     n(64, 0, cols(bytes / 32))},
          .dims = {kExpertsDim, rows_dim(1, 64), cols_dim(1, 64), of(bytes)},
          .code = &kNativeCode,
          .record = 2 * bytes,
          .of = 4096};
}

// Per 16-row block and pair of rows (g, g + 8): the scales of a k-group for both rows, group after
// group.
Map scales(std::uint32_t block) {
  const std::uint32_t groups = 64 / block, bytes = 2048 + 64 * groups;
  return {.name = block == 32 ? "native_sm90_scales" : "native_sm90_scales_16",
          .pad_rows = 64,
          .pad_cols = groups,
          .digits = {n(8, 2, at(1)), k(1, groups, at(2)), n(1, 8, at(2 * groups)),
                     n(16, 4, at(16 * groups)), k(groups, 0, at(bytes)),
                     n(64, 0, cols(bytes / groups))},
          .dims = {kExpertsDim, rows_dim(1, 64), cols_dim(1, groups), of(bytes)},
          .begin = 2048,
          .record = bytes,
          .of = 64 * groups};
}

}  // namespace fp4moe::backends::tensor_core
