// Two specialized kernels, see decode/params.hpp, and one for all other calls.
#include "fp4moe/kernels/cuda/sm90/decode/kernel.cuh"

namespace fp4moe::kernels::cuda::sm90 {

extern "C" __global__ void __launch_bounds__(kDecodeThreads, 1)
    fp4moe_sm90_decode_bf16_mxfp4(const __grid_constant__ DecodeParams params) {
  decode::run<Mxfp4>(bf16_specialization(params), params);
}
extern "C" __global__ void __launch_bounds__(kDecodeThreads, 1)
    fp4moe_sm90_decode_quantized_mxfp4(const __grid_constant__ DecodeParams params) {
  decode::run<Mxfp4>(quantized_specialization(params), params);
}
extern "C" __global__ void __launch_bounds__(kDecodeThreads, 1)
    fp4moe_sm90_decode_generic_mxfp4(const __grid_constant__ DecodeParams params) {
  decode::run<Mxfp4>(params, params);
}

}  // namespace fp4moe::kernels::cuda::sm90
