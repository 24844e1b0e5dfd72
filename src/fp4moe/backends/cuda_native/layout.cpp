// The layout of our kernels for Hopper.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/backends/tensor_core/layout_row.hpp"

namespace fp4moe::backends::cuda_native {

std::vector<layout::Layout> layouts() {
  constexpr std::string_view kReads = "this library's SM90 kernels";
  return {tensor_core::layout_row("native_sm90.mxfp4", formats::WeightFormat::mxfp4, kReads),
          tensor_core::layout_row("native_sm90.nvfp4", formats::WeightFormat::nvfp4, kReads)};
}

}  // namespace fp4moe::backends::cuda_native
