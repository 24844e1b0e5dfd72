// Functions of device code by themselves, on arrays of arguments.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90 {

enum class Tested : std::uint32_t { quantize_dequantize, activated, finish_gemm1, finish_gemm2 };

struct FunctionParams {
  LayerParams layer{};
  Tested which = Tested::quantize_dequantize;
  std::uint32_t count = 0;
  const float* a = nullptr;  // [count]: value, gate, sum, sum
  const float* b = nullptr;  // [count]: amax, up, bias, bias
  const float* c = nullptr;  // [count]: global scale, -, -, weight
  float* to = nullptr;       // [count]
};

}  // namespace fp4moe::kernels::cuda::sm90
