// Functions of device code by themselves, on arrays of arguments.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/params.hpp"

namespace fp4moe::kernels::cuda::sm90 {

enum class Tested : std::uint32_t { quantised, activated, finish_first, finish_second };

struct FunctionParams {
  Layer layer{};
  Tested which = Tested::quantised;
  std::uint32_t count = 0;
  const float* a = nullptr;  // [count]: value, gate, sum, sum
  const float* b = nullptr;  // [count]: amax, up, bias, bias
  const float* c = nullptr;  // [count]: global scale, -, -, weight
  float* to = nullptr;       // [count]
};

}  // namespace fp4moe::kernels::cuda::sm90
