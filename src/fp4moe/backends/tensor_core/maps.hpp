// Maps of this library's kernels for tensor cores, see docs/layouts/native_sm90.mxfp4.md. Codes and
// scales lie in one tensor of records.
#pragma once
#include <cstdint>

#include "fp4moe/layout/index_map.hpp"

namespace fp4moe::backends::tensor_core {

layout::Map codes(std::uint32_t block);
layout::Map scales(std::uint32_t block);

}  // namespace fp4moe::backends::tensor_core
