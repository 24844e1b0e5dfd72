// vLLM's CPU kernels (AMX): blocks of 32 rows, a byte of two rows' nibbles for each.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/backends/vllm_cpu/maps.hpp"

namespace fp4moe::backends::vllm_cpu {

std::vector<layout::Layout> layouts() {
  return {{.id = "vllm_cpu.mxfp4",
           .format = layout::WeightFormat::mxfp4,
           .order = {.as_loaded = true},
           .codes = vllm_cpu::codes(),
           .scales = vllm_cpu::scales(),
           .bias_type = layout::BiasType::f32,
           .reads = "vLLM's CPU kernels with AMX, August 2026"}};
}

}  // namespace fp4moe::backends::vllm_cpu
