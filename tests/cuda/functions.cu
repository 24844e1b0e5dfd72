#include "fp4moe/kernels/cuda/sm90/activation.cuh"
#include "fp4moe/kernels/cuda/sm90/quantise.cuh"
#include "functions.hpp"

namespace fp4moe::kernels::cuda::sm90 {

extern "C" __global__ void fp4moe_test_functions(const __grid_constant__ FunctionParams p) {
  for (std::uint32_t i = blockIdx.x * 128 + threadIdx.x; i < p.count; i += gridDim.x * 128) {
    const float a = p.a[i], b = p.b[i], c = p.c[i];
    float made = 0;
    if (p.which == Tested::quantised) made = quantised(p.layer.quantise, a, b, c);
    if (p.which == Tested::activated) made = activated(p.layer, a, b);
    if (p.which == Tested::finish_first) made = finish_first(p.layer, a, b);
    if (p.which == Tested::finish_second) made = finish_second(p.layer, a, b, c);
    p.to[i] = made;
  }
}

}  // namespace fp4moe::kernels::cuda::sm90
