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
  // Max registers of a step with passthrough bits: more would spill.
  std::size_t max_registers;
  // Max registers of a step whose passthrough bits complete a cache line.
  std::size_t max_for_lines;
  // True if column bits as passthrough bits pay, too, where they complete a cache line.
  bool widens;
  // True if it pays to pack short rows in the L1 cache first (pack_matrix_staged.cpp).
  bool stages;

  // Null when no kernel has this pattern.
  const ShuffleKernel* find(const LanePattern& pattern) const;
};

// Best first; the last row is portable C++ and needs nothing. `pick` of isa.hpp chooses.
std::span<const ShuffleSet> shuffle_sets();

}  // namespace fp4moe::kernels::cpu
