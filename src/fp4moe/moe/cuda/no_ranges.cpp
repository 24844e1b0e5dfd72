#include "fp4moe/moe/cuda/ranges.hpp"

namespace fp4moe::moe::cuda {

Range::Range(const char* /*name*/) {}
Range::~Range() = default;

}  // namespace fp4moe::moe::cuda
