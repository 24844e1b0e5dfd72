// Maps of this library's CPU kernels, see docs/layouts/cpu_native.mxfp4.md.
#pragma once
#include <cstdint>

#include "fp4moe/layout/index_map.hpp"

namespace fp4moe::backends::cpu_native {

layout::Map arm_codes();
layout::Map arm_scales(std::uint32_t block);
enum class X86Form : std::uint8_t { bf16, int8 };
layout::Map x86_codes(X86Form form);
layout::Map x86_scales(std::uint32_t block);

}  // namespace fp4moe::backends::cpu_native
