// One kernel for each size of token tiles.
#include "fp4moe/kernels/cuda/sm80/grouped_gemm/kernel.cuh"

namespace fp4moe::kernels::cuda::sm80 {

extern "C" __global__ void __launch_bounds__(kGemmThreads, 4)
    fp4moe_sm80_grouped_gemm_n32_nvfp4(const __grid_constant__ GroupedGemmParams params) {
  grouped_gemm::run<grouped_gemm::Config<sm90::Nvfp4, 32>>(params);
}
extern "C" __global__ void __launch_bounds__(kGemmThreads, 3)
    fp4moe_sm80_grouped_gemm_n64_nvfp4(const __grid_constant__ GroupedGemmParams params) {
  grouped_gemm::run<grouped_gemm::Config<sm90::Nvfp4, 64>>(params);
}
extern "C" __global__ void __launch_bounds__(kGemmThreads, 2)
    fp4moe_sm80_grouped_gemm_n128_nvfp4(const __grid_constant__ GroupedGemmParams params) {
  grouped_gemm::run<grouped_gemm::Config<sm90::Nvfp4, 128>>(params);
}

}  // namespace fp4moe::kernels::cuda::sm80
