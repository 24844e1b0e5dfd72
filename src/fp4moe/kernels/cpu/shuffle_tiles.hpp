// The body of the shuffle kernels, for any instruction set that has 16-byte vectors: a program
// (shuffle_program.hpp) unrolled over registers. `Ops` brings the vector type and instructions that
// compilers do not find by themselves; it is local to the file that includes this, and so are all
// instantiations.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "fp4moe/kernels/cpu/shuffle_patterns.hpp"
#include "fp4moe/kernels/cpu/shuffle_program.hpp"
#include "fp4moe/kernels/cpu/shuffle_recode.hpp"

namespace fp4moe::kernels::cpu {

template <class Ops, LanePattern Pattern, std::size_t Passthrough>
struct ShuffleTiles {
  using V = typename Ops::V;
  static constexpr ShuffleProgram kProgram = derive_shuffle(Pattern);
  static_assert(kProgram.is_valid);
  static constexpr std::size_t kRegisters = std::size_t{1}
                                            << (kProgram.register_bits + Passthrough);
  using Registers = std::array<V, kRegisters>;
  // More registers than the CPU has are split into groups, each done before the next is loaded.
  static constexpr std::size_t kGroup = std::min<std::size_t>(kRegisters, 16);

  // The source of byte i if two registers are interleaved (their lower or upper halves) or
  // deinterleaved (even or odd units), in units of 2^lane bytes.
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
      static_assert(kExchange.guest == Exchange::kNone && kExchange.to_low == 0);
      recode<Backwards>(a, b);
    }
  }

  template <bool Backwards>
  static constexpr RecodeBytes kBytes = recode_bytes(Pattern.code, Backwards);
  static constexpr Exchange kExchange = exchange_of(Pattern.code);
  template <bool Backwards>
  [[gnu::always_inline]] static void recode(V& a, V& b) {
    const V nibbles[4] = {a & 15, Ops::template right<4>(a), b & 15, Ops::template right<4>(b)};
    a = recoded<Backwards, 0>(nibbles);
    b = recoded<Backwards, 1>(nibbles);
  }
  // From codes 0 to 3, with a nibble for each half, to low bytes of the lower and the upper half in
  // x0, x1 and their high bytes in x2, x3; or the inverse.
  template <bool Backwards>
  [[gnu::always_inline]] static void swap_recode(V& x0, V& x1, V& x2, V& x3) {
    if constexpr (Backwards) {
      if constexpr (kExchange.across != 0) {
        const V across = x1 & kExchange.across;
        x2 ^= across;
        x0 ^= across & kExchange.to_low;
      }
      if constexpr (kExchange.guest != Exchange::kNone) {
        const V signs = (x0 ^ x1) & kSignBit;
        x0 ^= signs;
        x1 ^= signs;
      }
      recode<true>(x0, x2);
      recode<true>(x1, x3);
      const V low = x0, high = x2;
      x0 = Ops::low_nibbles(low, x1);
      x1 = Ops::high_nibbles(low, x1);
      x2 = Ops::low_nibbles(high, x3);
      x3 = Ops::high_nibbles(high, x3);
    } else {
      const V lower[4] = {x0 & 15, x1 & 15, x2 & 15, x3 & 15};
      const V upper[4] = {Ops::template right<4>(x0), Ops::template right<4>(x1),
                          Ops::template right<4>(x2), Ops::template right<4>(x3)};
      x3 = recoded<false, 1>(upper);
      x1 = low_byte(upper, lower, x3);
      x2 = recoded<false, 1>(lower);
      if constexpr (kExchange.across != 0) x2 ^= x1 & kExchange.across;
      x0 = low_byte(lower, upper, x2);
    }
  }
  [[gnu::always_inline]] static V low_byte(const V (&own)[4], const V (&other)[4], const V& high) {
    V nibbles[4] = {own[0], own[1], own[2], own[3]};
    if constexpr (kExchange.guest != Exchange::kNone)
      nibbles[kExchange.host] = (own[kExchange.host] & (kSignBit - 1)) |  //
                                (other[kExchange.guest] & kSignBit);
    V low = recoded<false, 0>(nibbles);
    if constexpr (kExchange.to_low != 0) low ^= high & kExchange.to_low;
    return low;
  }
  template <bool Backwards, std::size_t Byte>
  [[gnu::always_inline]] static V recoded(const V (&nibbles)[4]) {
    constexpr std::size_t kFields = kBytes<Backwards>.byte[Byte].count;
    if constexpr (kFields != 0 && kFields <= Ops::kMaxInserts)
      return inserted<Backwards, Byte, 0>(nibbles);
    else
      return (lookup<Backwards, Byte, 0>(nibbles) ^ lookup<Backwards, Byte, 1>(nibbles)) ^
             (lookup<Backwards, Byte, 2>(nibbles) ^ lookup<Backwards, Byte, 3>(nibbles));
  }
  template <bool Backwards, std::size_t Byte, std::size_t N>
  [[gnu::always_inline]] static V lookup(const V (&nibbles)[4]) {
    if constexpr (kBytes<Backwards>.byte[Byte].is_used[N])
      return Ops::lookup(kBytes<Backwards>.byte[Byte].table[N], nibbles[N]);
    else
      return V{};
  }
  // Inserts the fields from F on, field F at bit 0. Each overwrites the excess bits of the one
  // before.
  template <bool Backwards, std::size_t Byte, std::size_t F>
  [[gnu::always_inline]] static V inserted(const V (&nibbles)[4]) {
    constexpr const RecodeByte& kByte = kBytes<Backwards>.byte[Byte];
    constexpr unsigned kFrom = kByte.fields[F].from;
    V field = nibbles[kByte.fields[F].nibble];
    if constexpr (kFrom != 0) field = Ops::template right<kFrom>(field);
    if constexpr (F + 1 == kByte.count) {
      return field;
    } else {
      constexpr unsigned kBits = kByte.fields[F + 1].to - kByte.fields[F].to;
      const V above = inserted<Backwards, Byte, F + 1>(nibbles);
      return Ops::template insert<kBits>(field, above);
    }
  }

  template <std::size_t S, bool Backwards, std::size_t... I>
  [[gnu::always_inline]] static void lanes(V& a, std::index_sequence<I...>) {
    constexpr ShuffleStep kStep = kProgram.steps[S];
    a = __builtin_shufflevector(a, a, permuted(I, kStep, Backwards)...);
  }

  template <std::size_t S, bool Backwards, std::size_t R>
  [[gnu::always_inline]] static void apply(Registers& r) {
    constexpr ShuffleStep kStep = kProgram.steps[S];
    constexpr std::size_t kReg = std::size_t{1} << kStep.reg,
                          kSwapped = std::size_t{1} << kStep.swapped;
    if constexpr (kStep.op == ShuffleOp::permute) {
      lanes<S, Backwards>(r[R], std::make_index_sequence<16>());
    } else if constexpr (kStep.op == ShuffleOp::swap_recode) {
      if constexpr ((R & (kReg | kSwapped)) == 0)
        swap_recode<Backwards>(r[R], r[R | kSwapped], r[R | kReg], r[R | kSwapped | kReg]);
    } else if constexpr ((R & kReg) == 0) {
      pair<S, Backwards>(r[R], r[R | kReg], std::make_index_sequence<16>());
    }
  }
  template <std::size_t S, bool Backwards, std::size_t First, std::size_t... R>
  [[gnu::always_inline]] static void step(Registers& r, std::index_sequence<R...>) {
    (apply<S, Backwards, First + R>(r), ...);
  }
  template <bool Backwards, std::size_t First, std::size_t... S>
  [[gnu::always_inline]] static void steps(Registers& r, std::index_sequence<S...>) {
    (step < Backwards ? sizeof...(S) - 1 - S : S, Backwards,
     First > (r, std::make_index_sequence<kGroup>()), ...);
  }
  // The group of registers from First on: `load(r)` is what goes into register r.
  template <bool Backwards, std::size_t First, class Load, std::size_t... R>
  [[gnu::always_inline]] static void group(Registers& r, const Load& load,
                                           std::index_sequence<R...>) {
    ((r[First + R] = load(First + R)), ...);
    steps<Backwards, First>(r, std::make_index_sequence<kProgram.count>());
  }
  template <bool Backwards, class Load>
  [[gnu::always_inline]] static void shuffle(Registers& r, const Load& load) {
    group<Backwards, 0>(r, load, std::make_index_sequence<kGroup>());
    if constexpr (kGroup < kRegisters)
      group<Backwards, kGroup>(r, load, std::make_index_sequence<kGroup>());
  }

  // stored(r): the q that register r becomes; loaded(q): the inverse.
  static constexpr std::size_t loaded(std::size_t q) {
    std::size_t r = 0;
    while (stored(r) != q) ++r;
    return r;
  }
  static constexpr std::size_t stored(std::size_t r) {
    std::size_t q = r >> kProgram.register_bits << kProgram.register_bits;
    for (std::size_t j = 0; j < kProgram.register_bits; ++j)
      q |= ((r >> j) & 1) << kProgram.store_bit[j];
    return q;
  }

  // Registers that share a pointer to their target: one, or the four of a cache line.
  template <bool ByLines>
  static constexpr std::size_t kTogether = ByLines ? 4 : 1;

  // Runs the steps of a segment. Part i of them prefetches row next[i] of `ahead`. `step` gets the
  // distances, in bytes, from the segment's first sources and first target.
  template <std::size_t Loaded, class Step>
  [[gnu::always_inline]] static void walk(const PackShape& shape, const PackSegment& segment,
                                          const std::uint64_t* next, std::size_t parts,
                                          const Step& step) {
    // For the compiler, the stores might change anything that is not in a local variable.
    const std::size_t from_step = shape.row_step, to_step = segment.to_step;
    const std::size_t part = segment.count / parts;
    std::size_t longer = segment.count % parts;  // the first parts have one step more
    const std::uint8_t* const* const rows_ahead = segment.ahead;
    const std::uint64_t ahead_begin = segment.ahead_begin;
    std::size_t left = segment.count, from_at = 0, to_at = 0;
    while (left != 0) {
      const std::uint8_t* ahead = rows_ahead[*next++] + ahead_begin;
      std::size_t rest = left - part;
      if (longer != 0) {
        --longer;
        --rest;
      }
      for (; left != rest; --left, from_at += from_step, to_at += to_step) {
        for (std::size_t line = 0; line < Loaded * 16; line += 64)
          __builtin_prefetch(ahead + line, 0, 2);
        ahead += Loaded * 16;
        step(from_at, to_at);
      }
    }
  }

  template <bool Across, bool ByLines, std::size_t... R, std::size_t... L>
  [[gnu::always_inline]] static void run(const PackShape& shape, const PackSegment& segment,
                                         std::index_sequence<R...>, std::index_sequence<L...>) {
    const std::uint8_t* const from[kRegisters] = {segment.rows[shape.row_of[R]] +
                                                  (segment.begin + shape.byte_of[R])...};
    std::uint8_t* const to[sizeof...(L)] = {
        segment.to + shape.offset_of[stored_at<Across>(L * kTogether<ByLines>)]...};
    walk<kRegisters>(
        shape, segment, shape.ahead_of,
        shape.parts, [&](std::size_t from_at, std::size_t to_at) __attribute__((always_inline)) {
          Registers r;
          shuffle<false>(
              r, [&](std::size_t i)
                     __attribute__((always_inline)) { return Ops::load(from[i] + from_at); });
          (Ops::store(to[R / kTogether<ByLines>] + to_at + R % kTogether<ByLines> * 16,
                      r[loaded(stored_at<Across>(R))]),
           ...);
        });
  }

  // With two groups of registers there are more rows than hardware prefetchers follow at once: one
  // group is loaded along the segment alone and waits in the L1 cache, then both are stored
  // together.
  template <bool Across, bool ByLines, std::size_t... R, std::size_t... I, std::size_t... L>
  [[gnu::always_inline]] static void run_in_passes(const PackShape& shape,
                                                   const PackSegment& segment,
                                                   std::index_sequence<R...>,
                                                   std::index_sequence<I...>,
                                                   std::index_sequence<L...>) {
    alignas(64) std::uint8_t waiting[kMaxPassSteps * kGroup * 16];
    const std::size_t parts = shape.parts == 1 ? 1 : shape.parts / 2;
    std::uint8_t* at = waiting;
    const std::uint8_t* const first[kGroup] = {segment.rows[shape.row_of[I]] +
                                               (segment.begin + shape.byte_of[I])...};
    walk<kGroup>(
        shape, segment, shape.ahead_of,
        parts, [&](std::size_t from_at, std::size_t) __attribute__((always_inline)) {
          Registers r;
          group<false, 0>(
              r,
              [&](std::size_t i)
                  __attribute__((always_inline)) { return Ops::load(first[i] + from_at); },
              std::make_index_sequence<kGroup>());
          (Ops::store(at + I * 16, r[I]), ...);
          at += kGroup * 16;
        });
    at = waiting;
    const std::uint8_t* const second[kGroup] = {segment.rows[shape.row_of[kGroup + I]] +
                                                (segment.begin + shape.byte_of[kGroup + I])...};
    std::uint8_t* const to[sizeof...(L)] = {
        segment.to + shape.offset_of[stored_at<Across>(L * kTogether<ByLines>)]...};
    walk<kGroup>(
        shape, segment, shape.ahead_of + (shape.parts == 1 ? 0 : parts),
        parts, [&](std::size_t from_at, std::size_t to_at) __attribute__((always_inline)) {
          Registers r;
          group<false, kGroup>(
              r,
              [&](std::size_t i) __attribute__((always_inline)) {
                return Ops::load(second[i - kGroup] + from_at);
              },
              std::make_index_sequence<kGroup>());
          (Ops::store(to[R / kTogether<ByLines>] + to_at + R % kTogether<ByLines> * 16,
                      loaded(stored_at<Across>(R)) < kGroup
                          ? Ops::load(at + loaded(stored_at<Across>(R)) * 16)
                          : r[loaded(stored_at<Across>(R))]),
           ...);
          at += kGroup * 16;
        });
  }
  // The register q that is stored as number `number`.
  template <bool Across>
  static constexpr std::size_t stored_at(std::size_t number) {
    const std::size_t passthrough_bit = number & ((std::size_t{1} << Passthrough) - 1);
    return Across ? passthrough_bit << kProgram.register_bits | number >> Passthrough : number;
  }
  // Pointers are read in every step: there are too many for the CPU's registers, and to write
  // them down elsewhere takes longer than a short segment.
  template <std::size_t... R>
  [[gnu::always_inline]] static void run_tile(const PackShape& shape, const TileSegment& segment,
                                              std::index_sequence<R...>) {
    const std::size_t from_step = shape.row_step, to_step = segment.to_step;
    const std::uint8_t* const* const rows = segment.rows;
    std::size_t from_at = segment.begin;
    std::uint8_t* to = segment.to;
    for (std::size_t left = segment.count; left != 0; --left, from_at += from_step, to += to_step) {
      Registers r;
      shuffle<false>(
          r, [&](std::size_t i)
                 __attribute__((always_inline)) { return Ops::load(rows[i] + from_at); });
      std::uint8_t* const at[kRegisters] = {to + shape.offset_of[R]...};
      (Ops::store(at[R], r[loaded(R)]), ...);
    }
  }
  template <std::size_t... R>
  [[gnu::always_inline]] static void run_back(const UnpackCall& call, std::index_sequence<R...>) {
    const std::uint8_t* const from[kRegisters] = {call.from[stored(R)]...};
    std::uint8_t* const to[kRegisters] = {call.to[R]...};
    const std::size_t from_step = call.from_step, to_step = call.to_step;
    std::size_t from_at = 0, to_at = 0;
    for (std::size_t left = call.count; left != 0; --left) {
      Registers r;
      shuffle<true>(
          r, [&](std::size_t i)
                 __attribute__((always_inline)) { return Ops::load(from[i] + from_at); });
      (Ops::store(to[R] + to_at, r[R]), ...);
      from_at += from_step;
      to_at += to_step;
    }
  }

  template <bool Across, bool ByLines>
  static void pack(const PackShape& shape, const PackSegment* segments,
                   std::size_t count) noexcept {
    constexpr auto kAll = std::make_index_sequence<kRegisters>();
    constexpr auto kStored = std::make_index_sequence<kRegisters / kTogether<ByLines>>();
    for (std::size_t i = 0; i < count; ++i)
      if constexpr (kGroup < kRegisters)
        run_in_passes<Across, ByLines>(shape, segments[i], kAll, std::make_index_sequence<kGroup>(),
                                       kStored);
      else
        run<Across, ByLines>(shape, segments[i], kAll, kStored);
  }
  static void pack_tile(const PackShape& shape, const TileSegment* segments,
                        std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i)
      run_tile(shape, segments[i], std::make_index_sequence<kRegisters>());
  }
  static void unpack(const UnpackCall& call) noexcept {
    run_back(call, std::make_index_sequence<kRegisters>());
  }
};

// Only the variants that plans use: these functions take long to compile, minutes with sanitizers.
template <class Ops, LanePattern Pattern, std::size_t Passthrough>
constexpr void add_shuffle(ShuffleKernel& kernel) {
  constexpr std::size_t kOwn = derive_shuffle(Pattern).register_bits;
  constexpr std::size_t kMax = kOwn == 4 ? Ops::kMaxRegisters : 16;
  if constexpr (std::size_t{1} << (kOwn + Passthrough) <= kMax) {
    using Tiles = ShuffleTiles<Ops, Pattern, Passthrough>;
    kernel.pack[Passthrough] = Tiles::template pack<false, false>;
    if constexpr (Ops::kStoresLines && kOwn >= 1 && kOwn + Passthrough >= 2)
      kernel.pack_lines[0][Passthrough] = Tiles::template pack<false, true>;
    if constexpr (Ops::kStoresLines && Passthrough >= 1 && kOwn + Passthrough >= 2)
      kernel.pack_lines[1][Passthrough] = Tiles::template pack<true, true>;
    if constexpr (Pattern.source[0] == 0) kernel.pack_tile[Passthrough] = Tiles::pack_tile;
    kernel.unpack[Passthrough] = Tiles::unpack;
  }
}
template <class Ops, LanePattern Pattern>
constexpr ShuffleKernel make_shuffle() {
  ShuffleKernel result{.pattern = Pattern};
  add_shuffle<Ops, Pattern, 0>(result);
  add_shuffle<Ops, Pattern, 1>(result);
  add_shuffle<Ops, Pattern, 2>(result);
  add_shuffle<Ops, Pattern, 3>(result);
  return result;
}
template <class Ops, std::size_t... I>
constexpr std::array<ShuffleKernel, sizeof...(I)> make_shuffles(std::index_sequence<I...>) {
  return {make_shuffle<Ops, kShufflePatterns[I]>()...};
}

}  // namespace fp4moe::kernels::cpu
