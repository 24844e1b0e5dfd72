// vLLM's own CUTLASS kernels: rows as they come, scales in tiles of 128 x 4.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/layout/maps.hpp"

namespace fp4moe::backends::vllm_cutlass {

std::vector<layout::Layout> layouts() {
  return {{.id = "vllm_cutlass.nvfp4",
           .format = layout::WeightFormat::nvfp4,
           .gated_rows = 128,
           .codes = layout::plain(),
           .scales = layout::scales_128x4(),
           .scales_type = tensor::DType::f8_e4m3,
           .scalars = layout::ScalarRule::alphas_per_expert,
           .reads = "vLLM CUTLASS kernels on SM100 and SM120"}};
}

}  // namespace fp4moe::backends::vllm_cutlass
