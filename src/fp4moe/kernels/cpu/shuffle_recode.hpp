// Four codes, one in each of four nibbles, become the low and the high byte of a 16-bit half of a
// word, or four nibbles of the two bytes become two bytes of codes x1 x0 and x3 x2: how, at compile
// time.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "fp4moe/layout/word_code.hpp"

namespace fp4moe::kernels::cpu {

constexpr layout::WordCode word_code(std::uint8_t code) {
  return code == 1 ? layout::kHopperCode : layout::kNativeCode;
}

// A byte is the XOR of four lookups, one for each code or nibble it may come from. Where it
// consists of a few fields and the machine inserts with a shift, that is cheaper.
struct RecodeByte {
  struct Field {  // bits of a nibble that stay together
    unsigned nibble = 0, from = 0, to = 0;
  };
  alignas(16) std::uint8_t table[4][16] = {};
  std::array<bool, 4> is_used{};
  std::array<Field, 8> fields{};  // from the lowest up
  std::size_t count = 0;          // 0: it does not consist of fields
  bool adds_upper = false;        // the byte from bit 4 on is XORed into the lowest field
};
struct RecodeBytes {
  RecodeByte byte[2] = {};
};

// A half of a word whose other half is zero, from its four codes, or the other way.
constexpr unsigned recoded_half(const layout::WordCode& words, bool backwards, unsigned from) {
  unsigned made = 0;
  for (unsigned reg = 0; reg < 4; ++reg)
    made ^= backwards ? unsigned{words.collect(reg, from)} << (4 * reg)
                      : words.spread(reg, static_cast<std::uint8_t>((from >> (4 * reg)) & 15));
  return made;
}

// Fields as they would be if places held nothing but their own bits, then whether they are.
constexpr void add_fields(RecodeByte& byte, layout::WordCode words, bool backwards,
                          unsigned second) {
  words.mix = {};
  unsigned own[16] = {};  // what each bit becomes
  for (unsigned at = 0; at < 16; ++at)
    own[at] = (recoded_half(words, backwards, 1u << at) >> (8 * second)) & 0xFF;
  for (unsigned bit = 0; bit < 8; ++bit) {
    unsigned at = 0;
    while (own[at] != 1u << bit) ++at;
    const RecodeByte::Field field{at / 4, at % 4, bit};
    const RecodeByte::Field* last = bit == 0 ? nullptr : &byte.fields[byte.count - 1];
    if (last == nullptr || last->nibble != field.nibble ||
        last->from + field.to != field.from + last->to)
      byte.fields[byte.count++] = field;
  }
  const unsigned lowest = (1u << byte.fields[1].to) - 1;
  bool is_own = true, is_added = lowest <= 15;
  for (unsigned at = 0; at < 16; ++at) {
    const unsigned made = byte.table[at / 4][1u << at % 4];
    is_own = is_own && made == own[at];
    is_added = is_added && made == (own[at] ^ ((own[at] >> 4) & lowest));
  }
  byte.adds_upper = !is_own;
  if (!is_own && !is_added) byte.count = 0;
}

constexpr RecodeBytes recode_bytes(std::uint8_t code, bool backwards) {
  const layout::WordCode words = word_code(code);
  RecodeBytes made;
  for (unsigned second = 0; second < 2; ++second) {
    RecodeByte& byte = made.byte[second];
    for (unsigned nibble = 0; nibble < 4; ++nibble)
      for (unsigned value = 0; value < 16; ++value) {
        const unsigned half = recoded_half(words, backwards, value << (4 * nibble));
        const auto part = static_cast<std::uint8_t>(half >> (8 * second));
        byte.table[nibble][value] = part;
        byte.is_used[nibble] = byte.is_used[nibble] || part != 0;
      }
    add_fields(byte, words, backwards, second);
  }
  return made;
}

// What halves add to each other: the upper one's low byte, four bits higher, to these places of the
// lower one's high byte.
constexpr std::uint8_t recode_across(std::uint8_t code) {
  return static_cast<std::uint8_t>((word_code(code).mix.above >> 8) & 0xF0);
}
static_assert(layout::WordMix::kReach == 4);
static_assert(((layout::kHopperCode.mix.below | layout::kNativeCode.mix.below) & 0xF0000) == 0,
              "nothing of the lower half is added to the upper one");

}  // namespace fp4moe::kernels::cpu
