// The body of the shuffle kernels, for any instruction set that has 16-byte vectors: a program
// (shuffle_program.hpp) unrolled over registers. `Ops` brings the vector type and what compilers do
// not find by themselves; it is local to the file that includes this, and so is all made from it.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "fp4moe/kernels/cpu/shuffle_patterns.hpp"
#include "fp4moe/kernels/cpu/shuffle_program.hpp"
#include "fp4moe/layout/word_code.hpp"

namespace fp4moe::kernels::cpu {

constexpr layout::WordCode word_code(std::uint8_t code) {
  return code == 1 ? layout::kHopperCode : layout::kNativeCode;
}

// Two registers of codes x1 x0 and x3 x2 become the low and high bytes of 16-bit halves: each byte
// is the union of four lookups, one per nibble. Backwards the same with other tables.
struct RecodeTables {
  alignas(16) std::uint8_t table[2][4][16] = {};
};
constexpr RecodeTables recode_tables(std::uint8_t code, bool backwards) {
  const layout::WordCode words = word_code(code);
  RecodeTables made;
  for (unsigned i = 0; i < 4; ++i)
    for (unsigned value = 0; value < 16; ++value) {
      unsigned first = 0, second = 0;
      if (backwards) {
        const auto half = static_cast<std::uint16_t>(value << (4 * i));
        first = words.collect(0, half) | unsigned{words.collect(1, half)} << 4;
        second = words.collect(2, half) | unsigned{words.collect(3, half)} << 4;
      } else {
        const unsigned half = words.spread(i, static_cast<std::uint8_t>(value));
        first = half & 0xFF;
        second = half >> 8;
      }
      made.table[0][i][value] = static_cast<std::uint8_t>(first);
      made.table[1][i][value] = static_cast<std::uint8_t>(second);
    }
  return made;
}

template <class Ops, LanePattern Pattern>
struct ShuffleTiles {
  using V = typename Ops::V;
  static constexpr ShuffleProgram kProgram = derive_shuffle(Pattern);
  static_assert(kProgram.is_valid);
  static constexpr std::size_t kRegisters = std::size_t{1} << kProgram.register_bits;
  using Registers = std::array<V, kRegisters>;

  // Byte i of interleaving (upper halves) or taking apart at a granularity of 2^lane bytes.
  static constexpr int zipped(std::size_t i, std::size_t lane, bool upper) {
    const std::size_t low = i & ((std::size_t{1} << lane) - 1), rest = i >> lane;
    return static_cast<int>((rest & 1) * 16 + ((rest >> 1) << lane) + low + (upper ? 8 : 0));
  }
  static constexpr int unzipped(std::size_t i, std::size_t lane, bool odd) {
    const std::size_t low = i & ((std::size_t{1} << lane) - 1), rest = i >> lane;
    return static_cast<int>((((rest << 1) | (odd ? 1 : 0)) << lane) + low);
  }
  static constexpr int permuted(std::size_t i, const ShuffleStep& step, bool backwards) {
    std::size_t from = 0;
    for (std::size_t bit = 0; bit < 4; ++bit) {
      const std::size_t here = backwards ? step.lanes[bit] : bit;
      const std::size_t there = backwards ? bit : step.lanes[bit];
      from |= ((i >> here) & 1) << there;
    }
    return static_cast<int>(from);
  }

  template <std::size_t S, bool Backwards, std::size_t... I>
  [[gnu::always_inline]] static void pair(V& a, V& b, std::index_sequence<I...>) {
    constexpr ShuffleStep kStep = kProgram.steps[S];
    const V x = a, y = b;
    if constexpr (kStep.op == ShuffleOp::zip && !Backwards) {
      a = __builtin_shufflevector(x, y, zipped(I, kStep.lane, false)...);
      b = __builtin_shufflevector(x, y, zipped(I, kStep.lane, true)...);
    } else if constexpr (kStep.op == ShuffleOp::zip) {
      a = __builtin_shufflevector(x, y, unzipped(I, kStep.lane, false)...);
      b = __builtin_shufflevector(x, y, unzipped(I, kStep.lane, true)...);
    } else if constexpr (kStep.op == ShuffleOp::swap) {
      a = Ops::low_nibbles(x, y);
      b = Ops::high_nibbles(x, y);
    } else {
      static constexpr RecodeTables kTables = recode_tables(Pattern.code, Backwards);
      const V nibbles[4] = {Ops::low(x), Ops::high(x), Ops::low(y), Ops::high(y)};
      a = lookups<0>(kTables, nibbles);
      b = lookups<1>(kTables, nibbles);
    }
  }
  template <std::size_t Byte>
  [[gnu::always_inline]] static V lookups(const RecodeTables& tables, const V (&nibbles)[4]) {
    return (Ops::lookup(tables.table[Byte][0], nibbles[0]) |
            Ops::lookup(tables.table[Byte][1], nibbles[1])) |
           (Ops::lookup(tables.table[Byte][2], nibbles[2]) |
            Ops::lookup(tables.table[Byte][3], nibbles[3]));
  }

  template <std::size_t S, bool Backwards, std::size_t... I>
  [[gnu::always_inline]] static void lanes(V& a, std::index_sequence<I...>) {
    constexpr ShuffleStep kStep = kProgram.steps[S];
    a = __builtin_shufflevector(a, a, permuted(I, kStep, Backwards)...);
  }

  template <std::size_t S, bool Backwards, std::size_t R>
  [[gnu::always_inline]] static void apply(Registers& r) {
    constexpr ShuffleStep kStep = kProgram.steps[S];
    if constexpr (kStep.op == ShuffleOp::permute)
      lanes<S, Backwards>(r[R], std::make_index_sequence<16>());
    else if constexpr (((R >> kStep.reg) & 1) == 0)
      pair<S, Backwards>(r[R], r[R | (std::size_t{1} << kStep.reg)],
                         std::make_index_sequence<16>());
  }
  template <std::size_t S, bool Backwards, std::size_t... R>
  [[gnu::always_inline]] static void step(Registers& r, std::index_sequence<R...>) {
    (apply<S, Backwards, R>(r), ...);
  }
  template <bool Backwards, std::size_t... S>
  [[gnu::always_inline]] static void steps(Registers& r, std::index_sequence<S...>) {
    (step < Backwards ? sizeof...(S) - 1 - S : S,
     Backwards > (r, std::make_index_sequence<kRegisters>()), ...);
  }

  static constexpr std::size_t stored(std::size_t r) {
    std::size_t q = 0;
    for (std::size_t j = 0; j < kProgram.register_bits; ++j)
      q |= ((r >> j) & 1) << kProgram.store_bit[j];
    return q;
  }

  template <bool Backwards, std::size_t... R>
  [[gnu::always_inline]] static void run(const ShuffleCall& call, std::index_sequence<R...>) {
    const std::uint8_t* from[kRegisters] = {call.from[Backwards ? stored(R) : R]...};
    std::uint8_t* to[kRegisters] = {call.to[Backwards ? R : stored(R)]...};
    // The stores might change anything that is not in a variable of our own.
    const std::size_t from_step = call.from_step, to_step = call.to_step;
    std::size_t left = call.count, from_at = 0, to_at = 0;
    for (; left != 0; --left, from_at += from_step, to_at += to_step) {
      Registers r{Ops::load(from[R] + from_at)...};
      steps<Backwards>(r, std::make_index_sequence<kProgram.count>());
      (Ops::store(to[R] + to_at, r[R]), ...);
    }
  }

  static void pack(const ShuffleCall& call) noexcept {
    run<false>(call, std::make_index_sequence<kRegisters>());
  }
  static void unpack(const ShuffleCall& call) noexcept {
    run<true>(call, std::make_index_sequence<kRegisters>());
  }
};

template <class Ops, std::size_t... I>
constexpr std::array<ShuffleKernel, sizeof...(I)> make_shuffles(std::index_sequence<I...>) {
  return {ShuffleKernel{kShufflePatterns[I], ShuffleTiles<Ops, kShufflePatterns[I]>::pack,
                        ShuffleTiles<Ops, kShufflePatterns[I]>::unpack}...};
}

}  // namespace fp4moe::kernels::cpu
