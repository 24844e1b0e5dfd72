#include <nvtx3/nvToolsExt.h>

#include "fp4moe/moe/cuda/ranges.hpp"

namespace fp4moe::moe::cuda {

Range::Range(const char* name) { nvtxRangePushA(name); }
Range::~Range() { nvtxRangePop(); }

}  // namespace fp4moe::moe::cuda
