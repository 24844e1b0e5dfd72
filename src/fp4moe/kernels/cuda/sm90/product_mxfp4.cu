// One kernel for each bound on the tokens of a tile.
#include "fp4moe/kernels/cuda/sm90/product.cuh"

namespace fp4moe::kernels::cuda::sm90 {

extern "C" __global__ void __launch_bounds__(product_shape(32, false).threads, 1)
    fp4moe_sm90_product32_mxfp4(const __grid_constant__ ProductParams params) {
  product::run<Mxfp4, 32>(params);
}
extern "C" __global__ void __launch_bounds__(product_shape(64, false).threads, 1)
    fp4moe_sm90_product64_mxfp4(const __grid_constant__ ProductParams params) {
  product::run<Mxfp4, 64>(params);
}
extern "C" __global__ void __launch_bounds__(product_shape(88, false).threads, 1)
    fp4moe_sm90_product88_mxfp4(const __grid_constant__ ProductParams params) {
  product::run<Mxfp4, 88>(params);
}
extern "C" __global__ void __launch_bounds__(product_shape(128, false).threads, 1)
    fp4moe_sm90_product128_mxfp4(const __grid_constant__ ProductParams params) {
  product::run<Mxfp4, 128>(params);
}
extern "C" __global__ void __launch_bounds__(product_shape(192, false).threads, 1)
    fp4moe_sm90_product192_mxfp4(const __grid_constant__ ProductParams params) {
  product::run<Mxfp4, 192>(params);
}

}  // namespace fp4moe::kernels::cuda::sm90
