// The elementwise kernels of this build, one row per instruction set.
#pragma once
#include <span>
#include <string_view>

#include "fp4moe/kernels/cpu/elementwise.hpp"
#include "fp4moe/platform/cpu.hpp"

namespace fp4moe::kernels::cpu {

using platform::CpuFeature;

struct ElementwiseKernel {
  std::string_view name;  // <isa>/elementwise
  EnumSet<CpuFeature> needs;
  const ElementwiseFunctions* functions;
};

// Best first; the last row is portable C++ and needs nothing. `pick` of isa.hpp chooses.
std::span<const ElementwiseKernel> elementwise_kernels();

}  // namespace fp4moe::kernels::cpu
