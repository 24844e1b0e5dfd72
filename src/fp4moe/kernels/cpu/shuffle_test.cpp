// Every instruction set's shuffle kernels against the portable ones, and those against the address
// bits that their patterns name.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/kernels/cpu/shuffle_list.hpp"
#include "fp4moe/kernels/cpu/shuffle_patterns.hpp"
#include "fp4moe/kernels/cpu/shuffle_program.hpp"
#include "fp4moe/kernels/cpu/translation.hpp"
#include "fp4moe/layout/word_code.hpp"
#include "fp4moe/platform/cpu.hpp"

namespace fp4moe::kernels::cpu {
namespace shuffle_test {

constexpr std::size_t kSteps = 3;
using Bytes = std::vector<std::uint8_t>;

Bytes random_bytes(std::size_t size, std::uint64_t seed) {
  SplitMix64 random(seed);
  Bytes bytes(size);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
  return bytes;
}

// Registers one after another in memory, `kSteps` steps of each.
struct Registers {
  explicit Registers(Bytes& in, Bytes& out) {
    for (std::size_t r = 0; r < in.size() / (16 * kSteps); ++r) {
      from[r] = in.data() + r * 16 * kSteps;
      to[r] = out.data() + r * 16 * kSteps;
      shape.row_of[r] = r;
      shape.offset_of[r] = r * 16 * kSteps;
    }
  }
  std::array<const std::uint8_t*, kMaxShuffleRegisters> from{};
  std::array<std::uint8_t*, kMaxShuffleRegisters> to{};
  PackShape shape{.row_step = 16};
};

Bytes run(PackFn kernel, Bytes in) {
  Bytes out(in.size());
  Registers registers(in, out);
  // Two segments, and parts that are longer than others and empty ones.
  const PackSegment segments[] = {
      {registers.from.data(), 0, out.data(), 1, 16, registers.from.data(), 0},
      {registers.from.data(), 16, out.data() + 16, kSteps - 1, 16, registers.from.data(), 0}};
  registers.shape.parts = 4;
  kernel(registers.shape, segments, std::size(segments));
  return out;
}
Bytes run(PackTileFn kernel, Bytes in) {
  Bytes out(in.size());
  const Registers registers(in, out);
  const TileSegment segments[] = {{registers.from.data(), 0, out.data(), 1, 16},
                                  {registers.from.data(), 16, out.data() + 16, kSteps - 1, 16}};
  kernel(registers.shape, segments, std::size(segments));
  return out;
}
// Every four registers, in the order in which they are stored, to one line; then as the others.
Bytes run_by_lines(PackFn kernel, Bytes in, std::size_t groups, bool across) {
  Bytes lines(in.size()), out(in.size());
  Registers registers(in, lines);
  const std::size_t count = in.size() / (16 * kSteps), own = count / groups;
  const auto stored_at = [&](std::size_t number) {
    return across ? number % groups * own + number / groups : number;
  };
  const auto offset = [](std::size_t number) { return number / 4 * 64 * kSteps + number % 4 * 16; };
  for (std::size_t number = 0; number < count; ++number)
    registers.shape.offset_of[stored_at(number)] = offset(number);
  const PackSegment segment{registers.from.data(), 0, lines.data(), kSteps, 64,
                            registers.from.data(), 0};
  kernel(registers.shape, &segment, 1);
  for (std::size_t number = 0; number < count; ++number)
    for (std::size_t step = 0; step < kSteps; ++step)
      std::copy_n(&lines[offset(number) + step * 64], 16,
                  &out[(stored_at(number) * kSteps + step) * 16]);
  return out;
}
Bytes run(UnpackFn kernel, Bytes in) {
  Bytes out(in.size());
  const Registers registers(in, out);
  kernel({registers.from.data(), registers.to.data(), kSteps, 16, 16});
  return out;
}

std::vector<const ShuffleSet*> usable_sets() {
  std::vector<const ShuffleSet*> found;
  for (const ShuffleSet& set : shuffle_sets())
    if (platform::detect_cpu_features().contains_all(set.needs)) found.push_back(&set);
  return found;
}

std::size_t registers_of(const LanePattern& pattern) {
  return std::size_t{1} << derive_shuffle(pattern).register_bits;
}

// Passthrough bits do not mix with others: each group of registers alone gives the same.
Bytes run_groups(PackFn kernel, const Bytes& in, std::size_t groups) {
  Bytes out;
  const auto size = static_cast<std::ptrdiff_t>(in.size() / groups);
  for (auto from = in.begin(); from != in.end(); from += size) {
    const Bytes result = run(kernel, Bytes(from, from + size));
    out.insert(out.end(), result.begin(), result.end());
  }
  return out;
}

TEST(Shuffle, EveryInstructionSetGivesThePortableBytesAndUndoesThem) {
  const ShuffleSet& portable = shuffle_sets().back();
  for (const ShuffleSet* set : usable_sets())
    for (const LanePattern& pattern : kShufflePatterns)
      for (std::size_t passthrough = 0; passthrough <= kMaxPassthrough; ++passthrough) {
        const ShuffleKernel* kernel = set->find(pattern);
        ASSERT_NE(kernel, nullptr);
        const std::size_t groups = std::size_t{1} << passthrough;
        const std::size_t registers = registers_of(pattern) * groups;
        const PackFn pack = kernel->pack[passthrough];
        ASSERT_TRUE(pack != nullptr || registers > set->max_registers) << set->name;
        if (pack == nullptr) continue;

        const Bytes in = random_bytes(registers * 16 * kSteps, registers + pattern.code);
        const Bytes out = run(pack, in);

        EXPECT_EQ(out, run_groups(portable.find(pattern)->pack[0], in, groups)) << set->name;
        EXPECT_EQ(run(kernel->unpack[passthrough], out), in) << set->name;
        ASSERT_EQ(kernel->pack_tile[passthrough] != nullptr, pattern.source[0] == 0) << set->name;
        if (pattern.source[0] == 0) {
          EXPECT_EQ(out, run(kernel->pack_tile[passthrough], in)) << set->name;
        }
        for (const bool across : {false, true}) {
          const PackFn by_lines = kernel->pack_lines[across ? 1 : 0][passthrough];
          if (by_lines == nullptr) continue;
          EXPECT_EQ(out, run_by_lines(by_lines, in, groups, across)) << set->name;
        }
      }
}

// Bit `label` of the source of a nibble: a column bit of its register, or a register bit.
bool bit_of(std::uint8_t label, std::size_t reg, std::size_t column) {
  return ((label < LanePattern::kOther ? column >> label : reg >> (label - LanePattern::kOther)) &
          1) != 0;
}

std::uint8_t nibble(const Bytes& bytes, std::size_t index) {
  return static_cast<std::uint8_t>((bytes[index / 2] >> (index % 2 * 4)) & 15);
}

TEST(Shuffle, PortableKernelsPutEveryNibbleWhereThePatternSays) {
  for (const LanePattern& pattern : kShufflePatterns) {
    const std::size_t registers = registers_of(pattern);
    const Bytes in = random_bytes(registers * 16 * kSteps, 7);
    const Bytes out = run(shuffle_sets().back().find(pattern)->pack[0], in);
    for (std::size_t reg = 0; reg < registers; ++reg)
      for (std::size_t step = 0; step < kSteps; ++step)
        for (std::size_t column = 0; column < 32; ++column) {
          std::size_t lane = 0, q = 0, next = 0;
          for (std::size_t i = 0; i < 5; ++i)
            lane |= std::size_t{bit_of(pattern.source[i], reg, column)} << i;
          for (std::uint8_t label = 0; label < LanePattern::kOther; ++label)
            if (std::ranges::find(pattern.source, label) == std::end(pattern.source))
              q |= std::size_t{bit_of(label, reg, column)} << next++;
          const std::uint8_t code = nibble(in, (reg * kSteps + step) * 32 + column);
          const std::size_t first = (q * kSteps + step) * 32;
          if (pattern.code == 0) {
            ASSERT_EQ(nibble(out, first + lane), code);
            continue;
          }
          // Scattered: the lane counts registers of the halves of words.
          const layout::WordCode& words =
              pattern.code == 1 ? layout::kHopperCode : layout::kNativeCode;
          std::uint32_t word = 0;
          std::memcpy(&word, &out[first / 2 + lane / 8 * 4], sizeof word);
          ASSERT_EQ(words.collect(static_cast<unsigned>(lane % 8), word), code);
        }
  }
}

TEST(Translate, EveryInstructionSetLooksUpEveryByteWhateverTheTable) {
  std::array<std::uint8_t, 256> grouped{}, separable{}, any{};
  SplitMix64 random(3);
  for (unsigned code = 0; code < 256; ++code) {
    grouped[code] = static_cast<std::uint8_t>(code % 128 < 8 ? random.next() : code + 22);
    separable[code] = static_cast<std::uint8_t>(((code & 15) == 8 ? 0 : code & 15) |
                                                ((code >> 4) == 8 ? 0 : code & 0xF0));
    any[code] = static_cast<std::uint8_t>(random.next());
  }
  for (unsigned code = 40; code < 64; ++code) grouped[code] = 0;  // whole groups may vanish
  EXPECT_EQ(make_translation(grouped).kind, Translation::Kind::grouped);
  EXPECT_EQ(make_translation(separable).kind, Translation::Kind::separable);
  EXPECT_EQ(make_translation(any).kind, Translation::Kind::any);
  for (const ShuffleSet* set : usable_sets())
    for (const auto& table : {grouped, separable, any})
      for (const std::size_t size : {0u, 1u, 15u, 16u, 17u, 90u, 1000u}) {
        const Bytes in = random_bytes(size, size);
        Bytes expected(size), apart(size), in_place = in;
        std::ranges::transform(in, expected.begin(),
                               [&](std::uint8_t code) { return table[code]; });
        const Translation translation = make_translation(table);
        set->translate(translation, in.data(), apart.data(), size);
        set->translate(translation, in_place.data(), in_place.data(), size);
        EXPECT_EQ(apart, expected) << set->name << " " << size;
        EXPECT_EQ(in_place, expected) << set->name << " " << size;
      }
}

}  // namespace shuffle_test
}  // namespace fp4moe::kernels::cpu
