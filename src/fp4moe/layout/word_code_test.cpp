// Scattered bits against the shifts and masks of the kernels that read them.
#include "fp4moe/layout/word_code.hpp"

#include <array>
#include <bit>

#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"

namespace fp4moe::layout {
namespace word_code_test {

// A word as a kernel takes it apart: each half must be the code's sign at bit 15 and its magnitude
// at bits 8 to 6.
constexpr std::uint32_t kMask = 0x81C081C0;

std::uint32_t hopper_register(std::uint32_t w, unsigned reg) {
  if (reg == 0) return w & kMask;
  if (reg == 1) return (w << 3) & kMask;
  if (reg == 2) return (w << 6) & kMask;
  return ((w << 1) & 0x80008000) | ((w >> 3) & 0x01800180) | ((w >> 7) & 0x00400040);
}

std::uint32_t native_register(std::uint32_t w, unsigned reg) {
  if (reg == 0) return w & kMask;
  if (reg == 1) return (w << 6) & kMask;
  if (reg == 2) return std::rotr(w, 4) & kMask;
  return ((w << 2) ^ (w >> 6)) & kMask;
}

TEST(WordCodes, ComeBackByTheKernelsShiftsAndMasks) {
  struct Decoder {
    WordCode code;
    std::uint32_t (*decode)(std::uint32_t w, unsigned reg);
  };
  for (const Decoder& decoder :
       {Decoder{kHopperCode, hopper_register}, Decoder{kNativeCode, native_register}}) {
    SplitMix64 random(11);
    for (int round = 0; round < 2000; ++round) {
      std::array<std::uint8_t, 8> codes{};
      std::uint32_t word = 0;
      for (unsigned i = 0; i < 8; ++i) {
        codes[i] = static_cast<std::uint8_t>(random.next() & 15);
        word ^= decoder.code.spread(i, codes[i]);
      }
      for (unsigned i = 0; i < 8; ++i) {
        const std::uint32_t pair = decoder.decode(word, i % 4);
        const std::uint32_t half = (pair >> (i / 4 * 16)) & 0xFFFF;
        ASSERT_EQ(half, (codes[i] >> 3u) * 0x8000u | (codes[i] & 7u) << 6)
            << decoder.code.name << i;
        ASSERT_EQ(decoder.code.collect(i, word), codes[i]);
      }
    }
  }
}

}  // namespace word_code_test
}  // namespace fp4moe::layout
