#include "fp4moe/kernels/cuda/sm90/activation.cuh"
#include "fp4moe/kernels/cuda/sm90/quantize.cuh"
#include "functions.hpp"

namespace fp4moe::kernels::cuda::sm90 {

extern "C" __global__ void fp4moe_test_functions(const __grid_constant__ FunctionParams p) {
  for (std::uint32_t i = blockIdx.x * 128 + threadIdx.x; i < p.count; i += gridDim.x * 128) {
    const float a = p.a[i], b = p.b[i], c = p.c[i];
    float result = 0;
    if (p.which == Tested::quantize_dequantize)
      result = quantize_dequantize(p.layer.quantization, a, b, c);
    if (p.which == Tested::activated) result = activated(p.layer, a, b);
    if (p.which == Tested::finish_gemm1) result = finish_gemm1(p.layer, a, b);
    if (p.which == Tested::finish_gemm2) result = finish_gemm2(p.layer, a, b, c);
    p.to[i] = result;
  }
}

}  // namespace fp4moe::kernels::cuda::sm90
