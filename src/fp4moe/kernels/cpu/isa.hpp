// Instruction sets by the names that force them. Forcing one means: behave as if the
// machine had this and nothing better.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/platform/cpu.hpp"

namespace fp4moe::kernels::cpu {

using platform::CpuFeature;

enum class Architecture : std::uint8_t { any, aarch64, x86_64 };

struct Isa {
  std::string_view name;
  Architecture architecture;     // builds for another one do not have it
  EnumSet<CpuFeature> features;  // all that kernels may use when it is forced
};

std::span<const Isa> isas();

// The features that kernels may use: all of `present`, or those of the forced ISA. Errors: the name
// is unknown ("kernels.isa.unknown", usage), this build lacks it ("kernels.isa.build") or the
// machine does ("kernels.isa.machine", both ErrorCode::unavailable).
Result<EnumSet<CpuFeature>> usable_features(EnumSet<CpuFeature> present,
                                            std::optional<std::string_view> forced);

// The features that kernels may use on this machine with FP4MOE_CPU_ISA applied; read once. A
// setting that cannot be honored is the caller's to refuse: here it means portable kernels, which
// give the same bytes.
EnumSet<CpuFeature> machine_features();

// The first row of a list whose needs are met. Lists end with a row that needs nothing.
template <class Kernel>
const Kernel& pick(std::span<const Kernel> best_first, EnumSet<CpuFeature> usable) {
  for (const Kernel& kernel : best_first)
    if (usable.contains_all(kernel.needs)) return kernel;
  return best_first.back();
}

}  // namespace fp4moe::kernels::cpu
