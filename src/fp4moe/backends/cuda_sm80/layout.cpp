// The layout of our kernels for every NVIDIA GPU since Ampere. It has the bytes of native_sm90, so what
// was packed for one runs on the other.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/backends/tensor_core/layout_row.hpp"

namespace fp4moe::backends::cuda_sm80 {

std::vector<layout::Layout> layouts() {
  constexpr std::string_view kReads = "this library's SM80 kernels";
  return {tensor_core::layout_row("native_sm80.mxfp4", formats::WeightFormat::mxfp4, kReads),
          tensor_core::layout_row("native_sm80.nvfp4", formats::WeightFormat::nvfp4, kReads)};
}

}  // namespace fp4moe::backends::cuda_sm80
