// Intel's grouped GEMM reads the checkpoint's own rows.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/layout/maps.hpp"

namespace fp4moe::backends::xpu {

std::vector<layout::Layout> layouts() {
  return {{.id = "xpu.mxfp4",
           .format = layout::WeightFormat::mxfp4,
           .order = {.as_loaded = true},
           .codes = layout::plain(),
           .scales = layout::plain(),
           .reads = "vLLM's XPU kernels",
           .note = "The kernel reads scale byte 0 as 0 and 255 as infinity."}};
}

}  // namespace fp4moe::backends::xpu
