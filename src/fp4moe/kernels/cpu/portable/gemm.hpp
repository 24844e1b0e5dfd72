#pragma once
#include "fp4moe/kernels/cpu/gemm.hpp"

namespace fp4moe::kernels::cpu::portable {

extern const GemmFunctions kArmGemm, kX86Gemm;  // for tiles of 4 and of 16 rows

}  // namespace fp4moe::kernels::cpu::portable
