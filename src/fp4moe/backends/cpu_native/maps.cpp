#include "fp4moe/backends/cpu_native/maps.hpp"

#include "fp4moe/layout/digits.hpp"

namespace fp4moe::backends::cpu_native {

using namespace layout;          // NOLINT(google-build-using-namespace): words of a map
using namespace layout::digits;  // NOLINT(google-build-using-namespace): the notation of maps

// Tiles of 4 rows x 32 k along the rows: a pair of rows and 16 k make 16 bytes, eight k of each row
// in the low nibbles, the next eight in the high ones.
Map arm_codes() {
  return {.name = "cpu_arm_codes",
          .element = Element::nibble,
          .pad_rows = 8,
          .pad_cols = 32,
          .digits = {k(8, 2, at(1)), k(1, 8, at(2)), n(1, 2, at(16)), k(16, 2, at(32)),
                     n(2, 2, at(64)), k(32, 0, at(128)), n(4, 0, cols(4))},
          .dims = {kExpertsDim, rows_dim(1, 4), cols_dim(1, 32), of(64)}};
}

// The four rows' scales of one k-group together.
Map arm_scales(std::uint32_t block) {
  const std::uint32_t groups = 32 / block;
  return {.name = "cpu_arm_scales",
          .pad_rows = 8,
          .pad_cols = groups,
          .digits = {n(1, 4, at(1)), k(1, 0, at(4)), n(4, 0, cols(4))},
          .dims = {kExpertsDim, rows_dim(1, 4), cols_dim(1, groups), of(4 * groups)}};
}

// Tiles of 16 rows x 32 k: a row's eight k fill 32 bits of a 64-byte register. For BF16 gemms
// the even k are in one 16-bit lane and the odd ones in the next; for INT8 gemms four bytes hold
// k to k + 3 in their low and k + 4 to k + 7 in their high nibbles.
Map x86_codes(X86Form form) {
  Map result{.name = form == X86Form::bf16 ? "cpu_x86_codes_bf16" : "cpu_x86_codes_int8",
             .element = Element::nibble,
             .pad_rows = 16,
             .pad_cols = 32,
             .dims = {kExpertsDim, rows_dim(1, 16), cols_dim(1, 32), of(256)}};
  if (form == X86Form::bf16)
    result.digits = {k(2, 4, at(1)), k(1, 2, at(4)), n(1, 16, at(8)), k(8, 0, at(128)),
                     n(16, 0, cols(16))};
  else
    result.digits = {k(4, 2, at(1)), k(1, 4, at(2)), n(1, 16, at(8)), k(8, 0, at(128)),
                     n(16, 0, cols(16))};
  return result;
}

Map x86_scales(std::uint32_t block) {
  const std::uint32_t groups = 32 / block;
  return {.name = "cpu_x86_scales",
          .pad_rows = 16,
          .pad_cols = groups,
          .digits = {n(1, 16, at(1)), k(1, 0, at(16)), n(16, 0, cols(16))},
          .dims = {kExpertsDim, rows_dim(1, 16), cols_dim(1, groups), of(16 * groups)}};
}

}  // namespace fp4moe::backends::cpu_native
