// The contract of the kernels that move weights into and out of layouts.
//
// A layout's map says which bits of an element's row and column become the lowest bits of its
// address. The five lowest (nibble, then byte within 16) are moved inside a register; the caller
// decides where whole registers go. So a kernel is identified by a lane pattern alone, and one
// kernel serves every layout with the same pattern.
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

inline constexpr std::size_t kMaxShuffleRegisters = 32;
inline constexpr std::size_t kMaxPassthrough = 3;
inline constexpr std::size_t kMaxPassSteps = 128;  // of a segment with more than 16 registers

// The properties that all segments of a matrix share. Register r is loaded from 16 bytes of row
// row_of[r] of the segment, at byte byte_of[r]. Register q is stored at offset_of[q], where bit j
// of q is the j-th lowest column bit that is not in the pattern. One to three passthrough bits may
// follow, the same in r and q: a step then moves two to eight groups of registers, and writes whole
// cache lines.
struct PackShape {
  std::uint64_t row_of[kMaxShuffleRegisters] = {}, byte_of[kMaxShuffleRegisters] = {};
  std::uint64_t offset_of[kMaxShuffleRegisters] = {};
  std::uint64_t row_step = 0;  // of the rows' bytes, from step to step
  // The different rows among row_of, ascending; the first `parts` are prefetched.
  std::uint64_t ahead_of[kMaxShuffleRegisters] = {};
  std::size_t parts = 1;
};

// `count` steps along some rows, from their byte `begin` on.
//
// Meanwhile memory that is needed later is prefetched into the L2 cache, a little with every step:
// steps in as many parts as the shape has rows, each with the bytes of one row of `ahead` from
// `ahead_begin` on, as many as the part itself reads. Prefetching all at once would delay the loads
// that are needed now.
//
// Kernels take a list of segments that was written before: CPUs that write whole cache lines past
// their caches (Arm's write streaming) stop this for a while at every smaller store in between.
struct PackSegment {
  const std::uint8_t* const* rows = nullptr;
  std::uint64_t begin = 0;
  std::uint8_t* to = nullptr;
  std::size_t count = 0;
  std::uint64_t to_step = 0;
  const std::uint8_t* const* ahead = nullptr;
  std::uint64_t ahead_begin = 0;
};
using PackFn = void (*)(const PackShape&, const PackSegment*, std::size_t count) noexcept;

// Like PackSegment, for rows too short to prefetch. Register r is loaded from rows[r] + begin. Only
// offset_of and row_step of the shape are used.
struct TileSegment {
  const std::uint8_t* const* rows = nullptr;
  std::uint64_t begin = 0;
  std::uint8_t* to = nullptr;
  std::size_t count = 0;
  std::uint64_t to_step = 0;
};
using PackTileFn = void (*)(const PackShape&, const TileSegment*, std::size_t count) noexcept;

// The inverse: loads register q from from[q], stores register r to to[r], then advances all
// pointers; `count` times.
struct UnpackCall {
  const std::uint8_t* const* from;
  std::uint8_t* const* to;
  std::size_t count, from_step, to_step;
};
using UnpackFn = void (*)(const UnpackCall&) noexcept;

struct ShuffleKernel {
  LanePattern pattern{};
  // Indexed by the number of passthrough bits; null if that needs too many registers.
  PackFn pack[kMaxPassthrough + 1] = {};
  // The same if each four registers stored in sequence fill a cache line, in order ([0]) or across
  // passthrough bits ([1]). Null if impossible or not useful.
  PackFn pack_lines[2][kMaxPassthrough + 1] = {};
  PackTileFn pack_tile[kMaxPassthrough + 1] = {};  // where nibbles stay together
  UnpackFn unpack[kMaxPassthrough + 1] = {};
};

// A table of 256 bytes, and its structure. Grouped: except for codes 0-7 and 128-135 (E4M3's
// subnormals, which `small` holds), table[c] = base[c / 8] + (c % 8 & mask[c / 8]). Separable:
// table[c] = table[c % 16] | table[c - c % 16] = low[c % 16] | high[c / 16].
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
