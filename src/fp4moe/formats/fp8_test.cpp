// The three 8-bit floats with a sign: E4M3FN, E5M2, E4M3FNUZ.
#include <gtest/gtest.h>

#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/e4m3fnuz.hpp"
#include "fp4moe/formats/e5m2.hpp"
#include "support/format_laws.hpp"

namespace fp4moe::formats {
namespace fp8_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = float_from_bits(0x7FC00000), kNegativeNan = float_from_bits(0xFFC00000);

TEST(E4m3fn, RoundsToTheNearestEvenCode) {
  for (const auto encode : {E4m3fn::encode, E4m3fn::encode_or_nan}) {
    const FormatLaws<std::uint8_t> laws{E4m3fn::decode, encode, even_of,
                                        codes_up_to(std::uint8_t{0x7E})};
    expect_laws(laws);
    expect_odd_symmetry(laws, std::uint8_t{0x80});
  }
}

TEST(E4m3fn, SaturatesOrBecomesNanAbove448) {
  for (const float x : {464.0f, 450.0f}) EXPECT_EQ(E4m3fn::encode_or_nan(x), 0x7E);
  for (const float x : {std::nextafter(464.0f, kInfinity), 1e30f, kInfinity}) {
    EXPECT_EQ(E4m3fn::encode(x), 0x7E);
    EXPECT_EQ(E4m3fn::encode(-x), 0xFE);
    EXPECT_EQ(E4m3fn::encode_or_nan(x), 0x7F);
    EXPECT_EQ(E4m3fn::encode_or_nan(-x), 0xFF);
  }
}

TEST(E4m3fn, NanAndZeroKeepWhatTheirRuleSays) {
  EXPECT_TRUE(std::isnan(E4m3fn::decode(0x7F)) && std::isnan(E4m3fn::decode(0xFF)));
  EXPECT_EQ(E4m3fn::encode(kNan), 0x7F);
  EXPECT_EQ(E4m3fn::encode(kNegativeNan), 0x7F);
  EXPECT_EQ(E4m3fn::encode_or_nan(kNegativeNan), 0xFF);
  EXPECT_EQ(E4m3fn::encode(-0.0f), 0x80);
  EXPECT_EQ(E4m3fn::encode(-1e-20f), 0x80);
  EXPECT_EQ(float_bits(E4m3fn::decode(0x80)), 0x80000000u);
}

TEST(E5m2, RoundsToTheNearestEvenCode) {
  for (const auto encode : {E5m2::encode, E5m2::encode_or_infinity}) {
    const FormatLaws<std::uint8_t> laws{E5m2::decode, encode, even_of,
                                        codes_up_to(std::uint8_t{0x7B})};
    expect_laws(laws);
    expect_odd_symmetry(laws, std::uint8_t{0x80});
  }
}

TEST(E5m2, SaturatesOrBecomesInfinite) {
  EXPECT_EQ(E5m2::encode_or_infinity(std::nextafter(61440.0f, 0.0f)), 0x7B);
  for (const float x : {61440.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(E5m2::encode(x), 0x7B);
    EXPECT_EQ(E5m2::encode(-x), 0xFB);
    EXPECT_EQ(E5m2::encode_or_infinity(x), 0x7C);
    EXPECT_EQ(E5m2::encode_or_infinity(-x), 0xFC);
  }
  EXPECT_EQ(E5m2::decode(0x7C), kInfinity);
  EXPECT_EQ(E5m2::decode(0xFC), -kInfinity);
}

TEST(E5m2, NanStaysNan) {
  for (const int code : {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF})
    EXPECT_TRUE(std::isnan(E5m2::decode(static_cast<std::uint8_t>(code))));
  EXPECT_EQ(E5m2::encode(kNegativeNan), 0x7F);
  EXPECT_EQ(E5m2::encode_or_infinity(kNan), 0x7F);
  EXPECT_EQ(E5m2::encode_or_infinity(kNegativeNan), 0xFF);
}

TEST(E4m3fnuz, RoundsToTheNearestEvenCode) {
  for (const auto encode : {E4m3fnuz::encode, E4m3fnuz::encode_or_nan}) {
    const FormatLaws<std::uint8_t> laws{E4m3fnuz::decode, encode, even_of,
                                        codes_up_to(std::uint8_t{0x7F})};
    expect_laws(laws);
    expect_odd_symmetry(laws, std::uint8_t{0x80});
  }
}

TEST(E4m3fnuz, HasOneZeroAndOneNan) {
  EXPECT_TRUE(std::isnan(E4m3fnuz::decode(0x80)));
  for (const auto encode : {E4m3fnuz::encode, E4m3fnuz::encode_or_nan}) {
    for (const float x : {-0.0f, -1e-20f, -0x1p-11f}) EXPECT_EQ(encode(x), 0) << x;
    EXPECT_EQ(encode(kNan), 0x80);
    EXPECT_EQ(encode(kNegativeNan), 0x80);
  }
}

TEST(E4m3fnuz, SaturatesOrBecomesNanAbove240) {
  EXPECT_EQ(E4m3fnuz::encode_or_nan(std::nextafter(248.0f, 0.0f)), 0x7F);
  for (const float x : {248.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(E4m3fnuz::encode(x), 0x7F);
    EXPECT_EQ(E4m3fnuz::encode(-x), 0xFF);
    EXPECT_EQ(E4m3fnuz::encode_or_nan(x), 0x80);
    EXPECT_EQ(E4m3fnuz::encode_or_nan(-x), 0x80);
  }
}

}  // namespace fp8_test
}  // namespace fp4moe::formats
