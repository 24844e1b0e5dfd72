// Kernels for what most calls are, and one for all others.
#include "fp4moe/kernels/cuda/sm90/decode.cuh"

namespace fp4moe::kernels::cuda::sm90 {

extern "C" __global__ void __launch_bounds__(kDecodeThreads, 1)
    fp4moe_sm90_decode_plain_mxfp4(const __grid_constant__ DecodeParams params) {
  decode::run<Mxfp4>(plain(params), params);
}
extern "C" __global__ void __launch_bounds__(kDecodeThreads, 1)
    fp4moe_sm90_decode_quantised_mxfp4(const __grid_constant__ DecodeParams params) {
  decode::run<Mxfp4>(quantised(params), params);
}
extern "C" __global__ void __launch_bounds__(kDecodeThreads, 1)
    fp4moe_sm90_decode_mxfp4(const __grid_constant__ DecodeParams params) {
  decode::run<Mxfp4>(params, params);
}

}  // namespace fp4moe::kernels::cuda::sm90
