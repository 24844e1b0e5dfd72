#include "fp4moe/kernels/cuda/sm90/product.cuh"

namespace fp4moe::kernels::cuda::sm90 {

extern "C" __global__ void __launch_bounds__(kProductThreads, 1)
    fp4moe_sm90_product_mxfp4(const __grid_constant__ ProductParams params) {
  product::run<Mxfp4, kTileTokens>(params);
}

// The same for tiles of at most 32 tokens.
extern "C" __global__ void __launch_bounds__(kProductThreads, 1)
    fp4moe_sm90_product_few_mxfp4(const __grid_constant__ ProductParams params) {
  product::run<Mxfp4, kFewTokens>(params);
}

}  // namespace fp4moe::kernels::cuda::sm90
