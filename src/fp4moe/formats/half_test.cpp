// The 16-bit floats: BF16 and F16.
#include <gtest/gtest.h>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"
#include "support/format_laws.hpp"

namespace fp4moe::formats {
namespace half_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Bf16, RoundsToTheNearestEvenCode) {
  const FormatLaws<std::uint16_t> laws{Bf16::decode, Bf16::encode, even_of,
                                       codes_up_to(std::uint16_t{0x7F7F})};
  expect_laws(laws);
  expect_odd_symmetry(laws, std::uint16_t{0x8000});
}

TEST(Bf16, EveryCodeButSignallingNansSurvivesDecodeThenEncode) {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const auto bf16 = static_cast<std::uint16_t>(code);
    const bool nan = (code & 0x7FFF) > 0x7F80;
    EXPECT_EQ(Bf16::encode(Bf16::decode(bf16)), nan ? (bf16 | 0x40) : bf16);
  }
}

TEST(Bf16, NanNeverBecomesInfinityAndOverflowDoes) {
  EXPECT_TRUE(is_nan(Bf16::decode(Bf16::encode(float_from_bits(0xFF800001)))));
  EXPECT_TRUE(is_nan(Bf16::decode(Bf16::encode(float_from_bits(0x7FFFFFFF)))));
  EXPECT_EQ(Bf16::encode(float_from_bits(0x7F7F7FFF)), 0x7F7F);
  EXPECT_EQ(Bf16::encode(float_from_bits(0x7F7F8000)), 0x7F80);
  EXPECT_EQ(Bf16::encode_finite(std::numeric_limits<float>::max()), 0x7F7F);
  EXPECT_EQ(Bf16::encode_finite(-kInfinity), 0xFF7F);
  EXPECT_TRUE(is_nan(Bf16::decode(Bf16::encode_finite(float_from_bits(0x7F800001)))));
}

TEST(F16, RoundsToTheNearestEvenCode) {
  const FormatLaws<std::uint16_t> laws{F16::decode, F16::encode, even_of,
                                       codes_up_to(std::uint16_t{0x7BFF})};
  expect_laws(laws);
  expect_odd_symmetry(laws, std::uint16_t{0x8000});
}

TEST(F16, EveryCodeButSignallingNansSurvivesDecodeThenEncode) {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const auto f16 = static_cast<std::uint16_t>(code);
    const bool nan = (code & 0x7FFF) > 0x7C00;
    EXPECT_EQ(F16::encode(F16::decode(f16)), nan ? (f16 | 0x200) : f16);
  }
}

TEST(F16, NanNeverBecomesInfinityAndOverflowDoes) {
  EXPECT_TRUE(is_nan(F16::decode(F16::encode(float_from_bits(0xFF800001)))));
  EXPECT_EQ(F16::encode(std::nextafter(65520.0f, 0.0f)), 0x7BFF);
  EXPECT_EQ(F16::encode(65520.0f), 0x7C00);
  EXPECT_EQ(F16::encode(-kInfinity), 0xFC00);
  EXPECT_EQ(F16::encode_finite(1e9f), 0x7BFF);
  EXPECT_TRUE(is_nan(F16::decode(F16::encode_finite(float_from_bits(0x7F800001)))));
}

}  // namespace half_test
}  // namespace fp4moe::formats
