// The positions of FP4 codes' bits when a kernel wants them scattered over a 32-bit word, so that
// shifts and a mask make BF16 numbers of them. A word holds eight codes: four registers (0..3) for
// the even element in its low half, the same for the odd one in its high half.
//
// Offsets of such a map count 8 * word + 4 * half + register.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace fp4moe::layout {

// Bit positions that hold a code bit XORed with the stored bit kReach positions below or above.
struct WordMix {
  static constexpr unsigned kReach = 8;
  std::uint32_t below = 0, above = 0;  // masks of such positions

  // Applied three times, because an added bit may itself be a sum.
  constexpr std::uint32_t mixed(std::uint32_t own) const {
    return own ^ added(own ^ added(own ^ added(own)));
  }
  constexpr std::uint32_t unmixed(std::uint32_t stored) const { return stored ^ added(stored); }
  constexpr std::uint32_t added(std::uint32_t stored) const {
    return ((stored << kReach) & below) ^ ((stored >> kReach) & above);
  }
};

struct WordCode {
  std::string_view name{};
  // bits[register][b]: the position in the 16-bit half of the code's bit b (3: sign, 2..0:
  // magnitude); from 16 on in the other half.
  std::array<std::array<std::uint8_t, 4>, 4> bits{};
  WordMix mix{};

  // The position of a code's bit b in the word.
  constexpr unsigned bit_position(unsigned offset, unsigned b) const {
    return (offset / 4 * 16 + bits[offset % 4][b]) % 32;
  }

  // The bits that a code adds to its word, by XOR; `offset` is 4 * half + register.
  constexpr std::uint32_t spread(unsigned offset, std::uint8_t code) const {
    std::uint32_t own = 0;
    for (unsigned b = 0; b < 4; ++b)
      own |= ((code >> b) & std::uint32_t{1}) << bit_position(offset, b);
    return mix.mixed(own);
  }
  constexpr std::uint8_t collect(unsigned offset, std::uint32_t word) const {
    const std::uint32_t own = mix.unmixed(word);
    unsigned code = 0;
    for (unsigned b = 0; b < 4; ++b) code |= ((own >> bit_position(offset, b)) & 1u) << b;
    return static_cast<std::uint8_t>(code);
  }
};

// Every bit of a code is recovered and affects no other offset. The map is linear, so it is one to
// one.
constexpr bool is_whole(const WordCode& code) {
  for (unsigned offset = 0; offset < 8; ++offset)
    for (unsigned b = 0; b < 4; ++b) {
      const auto bit = static_cast<std::uint8_t>(1u << b);
      const std::uint32_t word = code.spread(offset, bit);
      for (unsigned other = 0; other < 8; ++other)
        if (code.collect(other, word) != (other == offset ? bit : 0)) return false;
    }
  return true;
}

// Kernels of several libraries for Hopper. Registers 0, 1 and 2 come out by a left shift of 0, 3
// and 6 and the mask 0x81C081C0; register 3 takes what is left.
inline constexpr WordCode kHopperCode{.name = "hopper",
                                      .bits = {{{6, 7, 8, 15},  //
                                                {3, 4, 5, 12},  //
                                                {0, 1, 2, 9},   //
                                                {13, 10, 11, 14}}}};
static_assert(is_whole(kHopperCode));

// The project's own, eight operations for all four registers:
//
//   w & M      (w << 6) & M      rotated(w >> 4) & M      ((w << 2) ^ (w >> 6)) & M
//
// with M = 0x81C081C0. For register 3 each shift supplies some of the bits. Unwanted bits under the
// mask occur twice and cancel. No such code with seven operations exists.
inline constexpr WordCode kNativeCode{.name = "native",
                                      .bits = {{{6, 7, 8, 15},     //
                                                {0, 1, 2, 9},      //
                                                {10, 11, 12, 19},  //
                                                {4, 5, 14, 13}}},
                                      .mix = {.below = 0x40004000, .above = 0x00302030}};
static_assert(is_whole(kNativeCode));

}  // namespace fp4moe::layout
