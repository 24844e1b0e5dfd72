#include "fp4moe/backends/vllm_cpu/maps.hpp"

#include "fp4moe/layout/digits.hpp"

namespace fp4moe::backends::vllm_cpu {

using namespace layout;          // NOLINT(google-build-using-namespace): words of a map
using namespace layout::digits;  // NOLINT(google-build-using-namespace): the notation of maps

Map codes() {
  return {.name = "vllm_cpu_weights",
          .element = Element::nibble,
          .need_rows = 32,
          .need_cols = 32,
          .digits = {n(16, 2, at(1)), k(1, 2, at(2)), n(1, 16, at(4)), k(2, 0, at(64)),
                     n(32, 0, cols(32))},
          .dims = {kExpertsDim, rows_dim(), cols_dim(1, 2)}};
}

Map scales() {
  return {.name = "vllm_cpu_scales",
          .need_rows = 32,
          .digits = {n(1, 32, at(1)), k(1, 0, at(32)), n(32, 0, cols(32))},
          .dims = {kExpertsDim, rows_dim(), cols_dim()}};
}

}  // namespace fp4moe::backends::vllm_cpu
