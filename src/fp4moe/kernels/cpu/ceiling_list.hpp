// The ceiling loops of this build. A benchmark runs every row whose needs are met and takes the
// best.
#pragma once
#include <span>
#include <string_view>

#include "fp4moe/kernels/cpu/ceiling.hpp"
#include "fp4moe/platform/cpu.hpp"

namespace fp4moe::kernels::cpu {

enum class Operands : std::uint8_t { int8, bf16 };

struct CeilingKernel {
  std::string_view name;  // <isa>/<instruction>
  EnumSet<platform::CpuFeature> needs;
  Operands operands;       // bf16 rows may compute in float32 where that is faster
  std::size_t operations;  // of one round; a multiply-add counts 2
  MultiplyAdds run;
};

struct ReadKernel {
  std::string_view name;
  EnumSet<platform::CpuFeature> needs;
  ReadMemory run;
};

std::span<const CeilingKernel> ceiling_kernels();
std::span<const ReadKernel> read_kernels();  // best first, the last needs nothing

}  // namespace fp4moe::kernels::cpu
