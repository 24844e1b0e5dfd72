#pragma once
#include "fp4moe/kernels/cpu/shuffle.hpp"

namespace fp4moe::kernels::cpu::avx2 {

// One for each of kShufflePatterns, in its order.
const ShuffleKernel* shuffles() noexcept;

}  // namespace fp4moe::kernels::cpu::avx2
