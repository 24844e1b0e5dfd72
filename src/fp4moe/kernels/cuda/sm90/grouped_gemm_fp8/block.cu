// Tokens have a scale for every 128 columns.
#include "fp4moe/kernels/cuda/sm90/grouped_gemm_fp8/kernel.cuh"

namespace fp4moe::kernels::cuda::sm90 {

extern "C" __global__ void __launch_bounds__(grouped_gemm_fp8::shape(160, true).threads, 1)
    fp4moe_sm90_grouped_gemm_fp8_block_n160(const __grid_constant__ GroupedGemmParams params) {
  grouped_gemm_fp8::run<grouped_gemm_fp8::Fp8Config<160, true>>(params);
}

}  // namespace fp4moe::kernels::cuda::sm90
