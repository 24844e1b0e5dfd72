// Maps of vLLM's CPU kernels: blocks of 32 rows, nibbles of two rows in a byte.
#pragma once
#include "fp4moe/layout/index_map.hpp"

namespace fp4moe::backends::vllm_cpu {

layout::Map codes();
layout::Map scales();

}  // namespace fp4moe::backends::vllm_cpu
