// From a lane pattern to the instructions that realize it, at compile time.
//
// Think of 2^x registers of 32 nibbles: an element's address has x register bits, four lane bits
// (its byte) and a nibble bit. Three instructions move address bits:
//
//   zip      takes a register bit into the lanes at a position and the topmost lane bit out for it
//   swap     exchanges a register bit with the nibble bit
//   permute  reorders the lane bits
//
// The program moves every bit of the pattern to its position: wanted lane bits that are there
// already stay below in order, the others lie on top and leave as the wanted ones come in.
//
// If codes' bits are scattered, pairs of registers that hold codes 0, 1 and codes 2, 3 of the same
// halves are recoded just before the bit that distinguishes them enters the lanes. If that is a
// register bit early enough, the preceding swap is part of it (swap_recode): four registers, one
// for each code with a nibble for each half, become the low and the high bytes of both halves.
// Unpacking runs the inverse.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "fp4moe/kernels/cpu/shuffle.hpp"

namespace fp4moe::kernels::cpu {

enum class ShuffleOp : std::uint8_t { zip, swap, recode, swap_recode, permute };

struct ShuffleStep {
  ShuffleOp op = ShuffleOp::zip;
  std::uint8_t reg = 0;                 // which register bit
  std::uint8_t swapped = 0;             // swap_recode: that of the swap
  std::uint8_t lane = 0;                // zip: where it enters
  std::array<std::uint8_t, 4> lanes{};  // permute: new lane bit i was lanes[i]
};

struct ShuffleProgram {
  std::array<ShuffleStep, 10> steps{};
  std::size_t count = 0;
  std::size_t register_bits = 0;
  std::array<std::uint8_t, 4> store_bit{};  // register bit j is bit store_bit[j] of q at the end
  bool is_valid = false;
};

class ShuffleDeriver {
 public:
  constexpr explicit ShuffleDeriver(const LanePattern& pattern) : pattern_(pattern) {
    for (const std::uint8_t label : pattern.source)
      if (label >= LanePattern::kOther && program_.register_bits < registers_.size())
        ++program_.register_bits;
    for (std::size_t j = 0; j < program_.register_bits; ++j)
      registers_[j] = static_cast<std::uint8_t>(LanePattern::kOther + j);
  }

  constexpr ShuffleProgram run() {
    arrange();
    const std::uint8_t nibble = pattern_.source[0];
    if (!swaps_late_ && nibble >= LanePattern::kOther) swap();
    for (bool inserted = true; inserted;) {
      inserted = insert_next();
      if (inserted && !swaps_late_ && nibble != 0 && nibble_ == 0) swap();
    }
    if (pattern_.code != 0) {
      recode();
      insert(pattern_.source[1]);
    }
    finish();
    return program_;
  }

 private:
  using Labels = std::array<std::uint8_t, 4>;

  static constexpr std::uint8_t find(const Labels& labels, std::uint8_t label) {
    for (std::uint8_t i = 0; i < 4; ++i)
      if (labels[i] == label) return i;
    return 4;
  }
  // Where a label is wanted among the lanes; 4: nowhere.
  constexpr std::uint8_t goal(std::uint8_t label) const {
    for (std::uint8_t i = 0; i < 4; ++i)
      if (pattern_.source[i + 1] == label) return i;
    return 4;
  }
  // The bit that distinguishes recoded registers enters last.
  constexpr bool is_late(std::uint8_t label) const {
    return pattern_.code != 0 && label == pattern_.source[1];
  }
  constexpr bool is_kept(std::uint8_t label) const { return goal(label) < 4 && !is_late(label); }
  constexpr void step(ShuffleStep next) { program_.steps[program_.count++] = next; }

  // Bits that stay are below, in the order of their targets. The others are above; the first to
  // leave is on top. Default: highest first. Exception: the nibble's or the late bit would leave
  // too late.
  constexpr void arrange() {
    Labels wanted{}, leaving{255, 255, 255, 255};
    std::size_t below = 0, count = 0, others = 0;
    for (std::size_t i = 1; i <= 4; ++i) {
      const std::uint8_t label = pattern_.source[i];
      if (label >= 1 && label <= 4 && is_kept(label)) wanted[below++] = label;
      if (label >= LanePattern::kOther) ++others;
    }
    for (std::uint8_t label = 4; label >= 1; --label)
      if (!is_kept(label)) leaving[count++] = label;
    if (pattern_.code != 0) {
      const std::size_t wanted_early = (pattern_.source[0] < LanePattern::kOther ? 1u : 0u) +
                                       (pattern_.source[1] < LanePattern::kOther ? 1u : 0u);
      swaps_late_ = wanted_early <= others;
    }
    lead(leaving, pattern_.source[0], others);
    if (pattern_.code != 0) lead(leaving, pattern_.source[1], swaps_late_ ? others : count - 1);
    for (std::size_t i = 0; i < count; ++i) wanted[3 - i] = leaving[i];
    if (wanted == lanes_) return;
    ShuffleStep permute{.op = ShuffleOp::permute};
    for (std::size_t i = 0; i < 4; ++i) permute.lanes[i] = find(lanes_, wanted[i]);
    step(permute);
    lanes_ = wanted;
  }

  // Moves a label that would leave as number `max` or later to the front.
  static constexpr void lead(Labels& leaving, std::uint8_t label, std::size_t max) {
    const std::uint8_t at = find(leaving, label);
    if (at == 4 || at < max) return;
    for (std::size_t i = at; i > 0; --i) leaving[i] = leaving[i - 1];
    leaving[0] = label;
  }

  constexpr void swap() {
    const std::uint8_t reg = find(registers_, pattern_.source[0]);
    if (reg == 4) return;  // still among the lanes
    step({.op = ShuffleOp::swap, .reg = reg});
    exchange(reg);
  }
  constexpr void exchange(std::uint8_t reg) {
    registers_[reg] = nibble_;
    nibble_ = pattern_.source[0];
  }

  constexpr void recode() {
    const std::uint8_t reg = find(registers_, pattern_.source[1]);
    if (!swaps_late_) {
      step({.op = ShuffleOp::recode, .reg = reg});
      return;
    }
    const std::uint8_t swapped = find(registers_, pattern_.source[0]);
    step({.op = ShuffleOp::swap_recode, .reg = reg, .swapped = swapped});
    exchange(swapped);
    insert_next();  // the halves
  }

  constexpr void insert(std::uint8_t label) {
    const std::uint8_t reg = find(registers_, label);
    std::uint8_t position = 0;
    for (const std::uint8_t other : lanes_)
      if (!is_late(other) && goal(other) < goal(label)) ++position;
    step({.op = ShuffleOp::zip, .reg = reg, .lane = position});
    registers_[reg] = lanes_[3];
    for (std::size_t i = 3; i > position; --i) lanes_[i] = lanes_[i - 1];
    lanes_[position] = label;
  }

  constexpr bool insert_next() {
    for (std::size_t i = 1; i <= 4; ++i) {
      const std::uint8_t label = pattern_.source[i];
      if (is_late(label) || find(registers_, label) == 4 || label == nibble_) continue;
      insert(label);
      return true;
    }
    return false;
  }

  // The bits left in the registers are column bits; q counts them from the lowest.
  constexpr void finish() {
    program_.is_valid = nibble_ == pattern_.source[0];
    for (std::size_t i = 0; i < 4; ++i)
      program_.is_valid = program_.is_valid && lanes_[i] == pattern_.source[i + 1];
    for (std::size_t j = 0; j < program_.register_bits; ++j) {
      program_.is_valid = program_.is_valid && registers_[j] < LanePattern::kOther;
      for (std::size_t i = 0; i < program_.register_bits; ++i)
        if (registers_[i] < registers_[j]) ++program_.store_bit[j];
    }
  }

  LanePattern pattern_;
  ShuffleProgram program_{};
  bool swaps_late_ = false;
  std::uint8_t nibble_ = 0;
  Labels lanes_{1, 2, 3, 4};
  Labels registers_{255, 255, 255, 255};
};

constexpr ShuffleProgram derive_shuffle(const LanePattern& pattern) {
  return ShuffleDeriver(pattern).run();
}

}  // namespace fp4moe::kernels::cpu
