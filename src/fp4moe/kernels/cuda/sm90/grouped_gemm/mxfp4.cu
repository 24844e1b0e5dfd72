// One kernel for each size of token tiles.
#include "fp4moe/kernels/cuda/sm90/grouped_gemm/kernel.cuh"

namespace fp4moe::kernels::cuda::sm90 {

extern "C" __global__ void __launch_bounds__(grouped_gemm_shape(32, false).threads, 1)
    fp4moe_sm90_grouped_gemm_n32_mxfp4(const __grid_constant__ GroupedGemmParams params) {
  grouped_gemm::run<grouped_gemm::Config<Mxfp4, 32>>(params);
}
extern "C" __global__ void __launch_bounds__(grouped_gemm_shape(64, false).threads, 1)
    fp4moe_sm90_grouped_gemm_n64_mxfp4(const __grid_constant__ GroupedGemmParams params) {
  grouped_gemm::run<grouped_gemm::Config<Mxfp4, 64>>(params);
}
extern "C" __global__ void __launch_bounds__(grouped_gemm_shape(88, false).threads, 1)
    fp4moe_sm90_grouped_gemm_n88_mxfp4(const __grid_constant__ GroupedGemmParams params) {
  grouped_gemm::run<grouped_gemm::Config<Mxfp4, 88>>(params);
}
extern "C" __global__ void __launch_bounds__(grouped_gemm_shape(128, false).threads, 1)
    fp4moe_sm90_grouped_gemm_n128_mxfp4(const __grid_constant__ GroupedGemmParams params) {
  grouped_gemm::run<grouped_gemm::Config<Mxfp4, 128>>(params);
}
extern "C" __global__ void __launch_bounds__(grouped_gemm_shape(192, false).threads, 1)
    fp4moe_sm90_grouped_gemm_n192_mxfp4(const __grid_constant__ GroupedGemmParams params) {
  grouped_gemm::run<grouped_gemm::Config<Mxfp4, 192>>(params);
}

}  // namespace fp4moe::kernels::cuda::sm90
