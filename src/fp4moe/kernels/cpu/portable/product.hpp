#pragma once
#include "fp4moe/kernels/cpu/product.hpp"

namespace fp4moe::kernels::cpu::portable {

extern const ProductFunctions kArmProduct, kX86Product;  // for tiles of 4 and of 16 rows

}  // namespace fp4moe::kernels::cpu::portable
