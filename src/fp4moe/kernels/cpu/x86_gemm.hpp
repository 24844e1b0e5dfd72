// Shared by the GEMM kernels for x86: the panel of tokens. In an unnamed namespace on purpose: each
// file that includes this gets its own, compiled for its own instruction set, and exports nothing
// of it.
//
// A panel holds, chunk after chunk and token after token, a line of 64 high bytes (where there are
// two limbs) and 64 low ones: a = 256 * high + low, both signed. A line's four bytes meet a weight
// vector of 16 rows and 4 columns; lines of 16 tokens are a left operand of tiles.
//
// Dot products of bytes multiply unsigned by signed, so weights are looked up as w + 12. Behind the
// lines lie, for each, the eight integers that undo it: -12 times the sum of a over the four
// quarters of the chunk, its two halves, and two zeros.
#pragma once
#include <cstddef>
#include <cstdint>

#include "fp4moe/kernels/cpu/gemm.hpp"

namespace fp4moe::kernels::cpu {
namespace {

inline constexpr std::size_t kX86Group = 16;  // rows of a tile
inline constexpr std::size_t kX86Block = 32;  // its columns
inline constexpr std::size_t kX86TileBytes = kX86Group * kX86Block / 2;
inline constexpr int kX86Bias = 12;  // makes doubled weights unsigned
inline constexpr std::size_t kX86Corrections = 8, kX86Halves = 4;

// Capacity of a panel: exactly the tokens it holds.
struct X86Exactly {
  static constexpr std::size_t padded(std::size_t tokens) { return tokens; }
};

template <std::size_t kLimbs>
struct X86Panel {
  static constexpr std::size_t kLine = kLimbs * kChunk;
  const std::int8_t* lines = nullptr;
  const std::int32_t* corrections = nullptr;
  std::size_t padded_tokens = 0;

  X86Panel(const std::byte* panel, std::size_t padded, std::size_t chunks)
      : lines(reinterpret_cast<const std::int8_t*>(panel)),
        corrections(reinterpret_cast<const std::int32_t*>(panel + padded * chunks * kLine)),
        padded_tokens(padded) {}
  [[gnu::always_inline]] const std::int8_t* line(std::size_t chunk, std::size_t token) const {
    return lines + (chunk * padded_tokens + token) * kLine;
  }
  [[gnu::always_inline]] const std::int32_t* correction(std::size_t chunk,
                                                        std::size_t token) const {
    return corrections + (chunk * padded_tokens + token) * kX86Corrections;
  }
};

template <std::size_t kLimbs, class Padding>
std::size_t x86_panel_bytes(std::size_t tokens, std::size_t chunks) noexcept {
  return Padding::padded(tokens) * chunks *
         (X86Panel<kLimbs>::kLine + kX86Corrections * sizeof(std::int32_t));
}

template <std::size_t kLimbs>
void x86_pack_chunk(const std::int16_t* values, std::int8_t* line, std::int32_t* corrections) {
  std::int8_t* low = line + (kLimbs - 1) * kChunk;
  for (std::size_t i = 0; i < kChunk; ++i) low[i] = static_cast<std::int8_t>(values[i]);
  if constexpr (kLimbs == 2)
    for (std::size_t i = 0; i < kChunk; ++i)
      line[i] = static_cast<std::int8_t>((values[i] + 128) >> 8);
  for (std::size_t q = 0; q < 4; ++q) {
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < kChunk / 4; ++i) sum += values[q * (kChunk / 4) + i];
    corrections[q] = -kX86Bias * sum;
  }
  corrections[4] = corrections[0] + corrections[1];
  corrections[5] = corrections[2] + corrections[3];
  corrections[6] = corrections[7] = 0;
}

template <std::size_t kLimbs, class Padding>
void x86_pack_tokens(const PackTokensCall& call) noexcept {
  const std::size_t padded_tokens = Padding::padded(call.tokens),
                    first = call.first_column / kChunk;
  const bool last = call.token + 1 == call.tokens;
  const std::size_t end = last ? padded_tokens : call.token + 1;
  auto* lines = reinterpret_cast<std::int8_t*>(call.panel);
  auto* corrections = reinterpret_cast<std::int32_t*>(call.panel + padded_tokens * call.chunks *
                                                                       X86Panel<kLimbs>::kLine);
  for (std::size_t c = 0; c < call.columns / kChunk; ++c)
    for (std::size_t stage = call.token; stage < end; ++stage) {
      const std::size_t at = (first + c) * padded_tokens + stage;
      x86_pack_chunk<kLimbs>(call.values + c * kChunk, lines + at * X86Panel<kLimbs>::kLine,
                             corrections + at * kX86Corrections);
    }
}

}  // namespace
}  // namespace fp4moe::kernels::cpu
