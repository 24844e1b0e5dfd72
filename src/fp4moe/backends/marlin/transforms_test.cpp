// What Marlin does to scales and biases, against formulas written independently.
#include "fp4moe/backends/marlin/transforms.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/f16.hpp"

namespace fp4moe::backends::marlin {
namespace transforms_test {

TEST(Marlin, BiasesAreGatheredByTheSinglePermutation) {
  // out[8 i + j] <- in[2 i + {0, 1, 8, 9, 16, 17, 24, 25}[j]]
  constexpr std::uint64_t kFrom[] = {0, 1, 8, 9, 16, 17, 24, 25};
  for (std::uint64_t block = 0; block < 2; ++block)
    for (std::uint64_t i = 0; i < 4; ++i)
      for (std::uint64_t j = 0; j < 8; ++j)
        EXPECT_EQ(kSinglePermutation.row_of(32 * block + 2 * i + kFrom[j]), 32 * block + 8 * i + j);
}

TEST(Marlin, ScalesAreTheUpperBitsOfAHalf) {
  for (int code = 1; code < 0x7F; ++code)
    for (const int exponent : {0, 3}) {
      const float scale = formats::E4m3fn::decode(static_cast<std::uint8_t>(code));
      const std::uint16_t half = formats::F16::encode(std::ldexp(scale, 7 + exponent));
      const auto byte = static_cast<std::uint8_t>(half >> 7);
      EXPECT_EQ(kScales202603.byte(code, exponent), byte) << code;
      EXPECT_EQ(kScales202604.byte(code, exponent), byte < 0x80 ? 0 : byte) << code;
      EXPECT_EQ(kScales202604.byte(code | 0x80, exponent), 0);
    }
}

}  // namespace transforms_test
}  // namespace fp4moe::backends::marlin
