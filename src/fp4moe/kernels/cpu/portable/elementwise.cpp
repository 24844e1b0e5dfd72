#include "fp4moe/kernels/cpu/elementwise_loops.hpp"

namespace fp4moe::kernels::cpu::portable {

extern const ElementwiseFunctions kElementwise;
constexpr ElementwiseFunctions kElementwise = kElementwiseLoops;

}  // namespace fp4moe::kernels::cpu::portable
