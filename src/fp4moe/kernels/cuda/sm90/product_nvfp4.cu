// One kernel for each bound on the tokens of a tile.
#include "fp4moe/kernels/cuda/sm90/product.cuh"

namespace fp4moe::kernels::cuda::sm90 {

extern "C" __global__ void __launch_bounds__(product_shape(32, true).threads, 1)
    fp4moe_sm90_product32_nvfp4(const __grid_constant__ ProductParams params) {
  product::run<Nvfp4, 32>(params);
}
extern "C" __global__ void __launch_bounds__(product_shape(64, true).threads, 1)
    fp4moe_sm90_product64_nvfp4(const __grid_constant__ ProductParams params) {
  product::run<Nvfp4, 64>(params);
}
extern "C" __global__ void __launch_bounds__(product_shape(88, true).threads, 1)
    fp4moe_sm90_product88_nvfp4(const __grid_constant__ ProductParams params) {
  product::run<Nvfp4, 88>(params);
}
extern "C" __global__ void __launch_bounds__(product_shape(128, true).threads, 1)
    fp4moe_sm90_product128_nvfp4(const __grid_constant__ ProductParams params) {
  product::run<Nvfp4, 128>(params);
}
extern "C" __global__ void __launch_bounds__(product_shape(192, true).threads, 1)
    fp4moe_sm90_product192_nvfp4(const __grid_constant__ ProductParams params) {
  product::run<Nvfp4, 192>(params);
}

}  // namespace fp4moe::kernels::cuda::sm90
