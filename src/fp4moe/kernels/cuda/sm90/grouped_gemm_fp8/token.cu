// One kernel for each size of token tiles; tokens have one scale each.
#include "fp4moe/kernels/cuda/sm90/grouped_gemm_fp8/kernel.cuh"

namespace fp4moe::kernels::cuda::sm90 {

extern "C" __global__ void __launch_bounds__(grouped_gemm_fp8::shape(64, false).threads, 1)
    fp4moe_sm90_grouped_gemm_fp8_token_n64(const __grid_constant__ GroupedGemmParams params) {
  grouped_gemm_fp8::run<grouped_gemm_fp8::Fp8Config<64, false>>(params);
}
extern "C" __global__ void __launch_bounds__(grouped_gemm_fp8::shape(160, false).threads, 1)
    fp4moe_sm90_grouped_gemm_fp8_token_n160(const __grid_constant__ GroupedGemmParams params) {
  grouped_gemm_fp8::run<grouped_gemm_fp8::Fp8Config<160, false>>(params);
}

}  // namespace fp4moe::kernels::cuda::sm90
