// The contract of the kernels that move weights into and out of layouts.
//
// A layout's map says which bits of an element's row and column become the lowest bits of its
// address. The five lowest (nibble, then byte within 16) are what happens inside a register; where
// whole registers go is the caller's business. So a kernel is known by a lane pattern alone, and
// one kernel serves every layout with the same pattern.
//
// Included by files compiled for one instruction set: plain structs only.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fp4moe::kernels::cpu {

// source[i] is what address bit i of a nibble comes from: 0 to 4, that bit of the column (counted
// in nibbles), or kOther + j, bit j of the number of the source register. Byte maps keep nibbles
// together: source[0] is 0 and their columns count from 1.
struct LanePattern {
  static constexpr std::uint8_t kOther = 5;
  std::uint8_t source[5] = {0, 1, 2, 3, 4};
  std::uint8_t code = 0;  // the word code: 0 none, 1 hopper, 2 native_sm90

  friend constexpr bool operator==(const LanePattern&, const LanePattern&) = default;
};

// pack: register r is loaded from from[r], 16 bytes of a row. Register q is stored to to[q], where
// bit j of q is the j-th lowest column bit that is not in the pattern. unpack: the other way. Then
// all pointers advance, `count` times in all. With bystanders, one to three further bits of a
// register's number (above the others, the same in r and q): several such groups at once, so that
// whole cache lines are written together.
//
// Meanwhile memory that is wanted later is fetched into the second-level cache, a little with every
// step: steps in `parts` parts, each with the bytes from the next pointer of `ahead` on, as many as
// the part itself reads. All at once would hold up the loads that are wanted now.
struct ShuffleCall {
  const std::uint8_t* const* from;
  std::uint8_t* const* to;
  std::size_t count, from_step, to_step;
  const std::uint8_t* const* ahead = from;
  std::size_t parts = 1;
};
using ShuffleFn = void (*)(const ShuffleCall&) noexcept;

inline constexpr std::size_t kMostShuffleRegisters = 16;
inline constexpr std::size_t kMostBystanders = 3;

struct ShuffleKernel {
  LanePattern pattern{};
  // By the number of bystanders; null where there would be too many registers.
  ShuffleFn pack[kMostBystanders + 1] = {}, unpack[kMostBystanders + 1] = {};
};

// A table of 256 bytes and what kernels can make use of. Grouped: but for codes 0 to 7 and 128 to
// 135 (E4M3's subnormals), table[c] = base[c / 8] + (c % 8 & mask[c / 8]). Separable: table[c] =
// table[c % 16] | table[c - c % 16].
struct Translation {
  enum class Kind : std::uint8_t { any, grouped, separable };
  std::uint8_t table[256] = {};
  Kind kind = Kind::any;
  std::uint8_t base[32] = {}, mask[32] = {}, small[16] = {}, low[16] = {}, high[16] = {};
};
// to[i] = table[from[i]]; `to` may be `from`.
using TranslateFn = void (*)(const Translation&, const std::uint8_t* from, std::uint8_t* to,
                             std::size_t size) noexcept;

}  // namespace fp4moe::kernels::cpu
