// Plans, at compile time, how codes move between the four nibbles of a 16-bit half and its two
// bytes. Codes that belong to the other half are exchanged first (Exchange).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "fp4moe/layout/word_code.hpp"

namespace fp4moe::kernels::cpu {

constexpr layout::WordCode word_code(std::uint8_t code) {
  return code == 1 ? layout::kHopperCode : layout::kNativeCode;
}

// A byte is the XOR of four lookups, one for each code or nibble it may come from. If it consists
// of a few fields, and the CPU has an instruction that shifts and inserts, insertion is cheaper.
struct RecodeByte {
  struct Field {  // bits of a nibble that stay together
    unsigned nibble = 0, from = 0, to = 0;
  };
  alignas(16) std::uint8_t table[4][16] = {};
  std::array<bool, 4> is_used{};
  std::array<Field, 8> fields{};  // from the lowest up
  std::size_t count = 0;          // 0: it does not consist of fields
};
struct RecodeBytes {
  RecodeByte byte[2] = {};
};

// The bits that the halves of a word exchange. The sign of code `guest` is stored in the other
// half: in the low byte, directly above the magnitude of code `host`. Then bytes are XORed, from
// the top down: each low byte with `to_low` of its high byte, and between, the high byte of the
// lower half with `across` of the low byte of the upper half.
struct Exchange {
  static constexpr unsigned kNone = 4;
  unsigned guest = kNone, host = kNone;
  std::uint8_t to_low = 0, across = 0;
};
inline constexpr std::uint8_t kSignBit = 8;  // of a nibble, and of the low byte

constexpr Exchange exchange_of(std::uint8_t code) {
  const layout::WordCode words = word_code(code);
  Exchange result{.to_low = static_cast<std::uint8_t>(words.mix.above),
                  .across = static_cast<std::uint8_t>(words.mix.above >> 8)};
  for (unsigned reg = 0; reg < 4; ++reg) {
    if (words.bits[reg][3] == 16 + 3) result.guest = reg;
    if (words.bits[reg][0] == 0 && words.bits[reg][2] == 2) result.host = reg;
  }
  return result;
}

// A 16-bit half alone: the exchanged sign stays in its own half.
constexpr layout::WordCode half_code(std::uint8_t code) {
  layout::WordCode words = word_code(code);
  for (auto& bit_positions : words.bits) bit_positions[3] %= 16;
  words.mix.above &= 0xFF;
  words.mix.below &= 0xFFFF;
  return words;
}

// Recodes four nibbles into two bytes, or back. For the low byte, the sign of the exchanged code is
// in the nibble of its host; the XOR with the high byte (`to_low`) follows later.
constexpr unsigned recoded_half(std::uint8_t code, bool backwards, unsigned from) {
  layout::WordCode words = half_code(code);
  const Exchange exchange = exchange_of(code);
  if (!backwards) words.mix.above = 0;
  unsigned result = 0;
  for (unsigned reg = 0; reg < 4; ++reg) {
    auto value = static_cast<std::uint8_t>((from >> (4 * reg)) & 15);
    if (backwards) {
      result |= unsigned{words.collect(reg, from)} << (4 * reg);
      continue;
    }
    if (exchange.guest != Exchange::kNone && reg == exchange.host) result ^= value & kSignBit;
    if (reg == exchange.guest) value &= kSignBit - 1;
    result ^= words.spread(reg, value);
  }
  return result;
}

constexpr void add_fields(RecodeByte& byte) {
  std::array<unsigned, 8> from{};  // each bit alone comes from one bit of the nibbles
  for (unsigned bit = 0; bit < 8; ++bit) {
    unsigned found = 0;
    for (unsigned at = 0; at < 16; ++at) {
      const unsigned result = byte.table[at / 4][1u << at % 4];
      if (((result >> bit) & 1) == 0) continue;
      if (result != 1u << bit || found++ != 0) return;
      from[bit] = at;
    }
    if (found == 0) return;
  }
  for (unsigned bit = 0; bit < 8; ++bit)
    if (bit == 0 || from[bit] != from[bit - 1] + 1 || from[bit] % 4 == 0)
      byte.fields[byte.count++] = {from[bit] / 4, from[bit] % 4, bit};
}

constexpr RecodeBytes recode_bytes(std::uint8_t code, bool backwards) {
  RecodeBytes result;
  for (unsigned second = 0; second < 2; ++second) {
    RecodeByte& byte = result.byte[second];
    for (unsigned nibble = 0; nibble < 4; ++nibble)
      for (unsigned value = 0; value < 16; ++value) {
        const unsigned half = recoded_half(code, backwards, value << (4 * nibble));
        const auto part = static_cast<std::uint8_t>(half >> (8 * second));
        byte.table[nibble][value] = part;
        byte.is_used[nibble] = byte.is_used[nibble] || part != 0;
      }
    add_fields(byte);
  }
  return result;
}

static_assert(layout::WordMix::kReach == 8, "bytes are XORed with their neighbors");
static_assert(((layout::kHopperCode.mix.below | layout::kNativeCode.mix.below) & 0x00FF00FF) == 0,
              "nothing is added to a low byte from below");
static_assert(((layout::kHopperCode.mix.above | layout::kNativeCode.mix.above) >> 24) == 0,
              "nothing is beyond the upper half");

}  // namespace fp4moe::kernels::cpu
