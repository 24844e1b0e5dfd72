// vLLM's own CUTLASS kernels: all gates, then all ups, scales in tiles of 128 x 4.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/layout/maps.hpp"

namespace fp4moe::backends::vllm_cutlass {

namespace {

// Stored as [N, S], so the tiles must be whole; the backend's rounding sees to it.
layout::Layout mxfp4() {
  layout::Map scales = layout::scales_128x4();
  scales.need_rows = 128;
  scales.need_cols = 4;
  return {.id = "vllm_cutlass.mxfp4",
          .format = layout::WeightFormat::mxfp4,
          .codes = layout::plain(),
          .scales = scales,
          .reads = "vLLM CUTLASS kernels with MXFP4 activations on SM100, vLLM 0.33"};
}

}  // namespace

std::vector<layout::Layout> layouts() {
  return {{.id = "vllm_cutlass.nvfp4",
           .format = layout::WeightFormat::nvfp4,
           .gated_rows = 128,
           .codes = layout::plain(),
           .scales = layout::scales_128x4(),
           .scales_type = tensor::DType::f8_e4m3,
           .scalars = &layout::kAlphasPerExpert,
           .reads = "vLLM CUTLASS kernels on SM100 and SM120"},
          mxfp4()};
}

}  // namespace fp4moe::backends::vllm_cutlass
