// Where the bits of FP4 codes go when a kernel wants them scattered over a 32-bit word, so that a
// mask and a shift make BF16 numbers of them. A word holds eight codes: four registers (0..3) for
// the even element in its low half, the same for the odd one in its high half.
//
// Slots of such a map count 8 * word + 4 * half + register.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace fp4moe::layout {

struct WordCode {
  std::string_view name{};
  // bits[register][b]: the place in the 16-bit half of the code's bit b (3: sign, 2..0: magnitude).
  std::array<std::array<std::uint8_t, 4>, 4> bits{};

  constexpr std::uint16_t spread(unsigned reg, std::uint8_t code) const {
    unsigned half = 0;
    for (unsigned b = 0; b < 4; ++b) half |= ((code >> b) & 1u) << bits[reg][b];
    return static_cast<std::uint16_t>(half);
  }
  constexpr std::uint8_t collect(unsigned reg, std::uint16_t half) const {
    unsigned code = 0;
    for (unsigned b = 0; b < 4; ++b) code |= ((half >> bits[reg][b]) & 1u) << b;
    return static_cast<std::uint8_t>(code);
  }
};

// Every place is used once.
constexpr bool is_whole(const WordCode& code) {
  unsigned used = 0;
  for (const auto& reg : code.bits)
    for (const std::uint8_t place : reg) used |= 1u << place;
  return used == 0xFFFF;
}

// Triton's Hopper values and FlashInfer's third SM90 generation. Registers 0, 1 and 2 come out by
// a left shift of 0, 3 and 6 and the mask 0x81C081C0; register 3 takes what is left.
inline constexpr WordCode kHopperCode{.name = "hopper",
                                      .bits = {{{6, 7, 8, 15},  //
                                                {3, 4, 5, 12},  //
                                                {0, 1, 2, 9},   //
                                                {13, 10, 11, 14}}}};
static_assert(is_whole(kHopperCode));

// The project's own: registers 2 and 3 need two masks each, and one operation less in all.
inline constexpr WordCode kNativeCode{.name = "native_sm90",
                                      .bits = {{{6, 7, 8, 15},    //
                                                {3, 4, 5, 12},    //
                                                {9, 10, 11, 14},  //
                                                {0, 1, 2, 13}}}};
static_assert(is_whole(kNativeCode));

}  // namespace fp4moe::layout
