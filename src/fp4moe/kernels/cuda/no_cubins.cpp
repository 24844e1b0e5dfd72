// A build without nvcc: everything but the kernels is there.
#include "fp4moe/kernels/cuda/driver.hpp"

namespace fp4moe::kernels::cuda {

std::span<const Cubin> cubins() { return {}; }

}  // namespace fp4moe::kernels::cuda
