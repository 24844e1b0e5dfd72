// The shuffle kernels of this build, one row per instruction set, and the choice among them.
#pragma once
#include <cstddef>
#include <span>
#include <string_view>

#include "fp4moe/kernels/cpu/shuffle.hpp"
#include "fp4moe/platform/cpu.hpp"

namespace fp4moe::kernels::cpu {

using platform::CpuFeature;

struct ShuffleSet {
  std::string_view name;  // <isa>/shuffle
  EnumSet<CpuFeature> needs;
  const ShuffleKernel* (*kernels)() noexcept;
  TranslateFn translate;
  // Limit for a step with passthrough: more would spill.
  std::size_t max_registers;
  // The same where more of them complete a cache line.
  std::size_t max_for_lines;
  // True if it pays to widen a step by columns alone so that it writes whole cache lines.
  bool widens;
  // True if it pays to lay out short rows in the L1 cache before they go to memory.
  bool stages;

  // Null when no kernel has this pattern.
  const ShuffleKernel* find(const LanePattern& pattern) const;
};

// Best first; the last row is portable C++ and needs nothing. `pick` of isa.hpp chooses.
std::span<const ShuffleSet> shuffle_sets();

}  // namespace fp4moe::kernels::cpu
