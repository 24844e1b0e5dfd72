#include "fp4moe/formats/e8m0.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace fp4moe::formats {
namespace e8m0_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(E8m0, EveryCodeIsItsPowerOfTwo) {
  for (int code = 0; code < 255; ++code)
    EXPECT_EQ(E8m0::decode(static_cast<std::uint8_t>(code)), std::ldexp(1.0f, code - 127));
  EXPECT_TRUE(std::isnan(E8m0::decode(255)));
}

TEST(E8m0, TheShiftedReadingDiffersOnlyAtTheEnds) {
  for (int code = 1; code < 255; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    EXPECT_EQ(E8m0::decode_shifted(byte), E8m0::decode(byte));
  }
  EXPECT_EQ(E8m0::decode_shifted(0), 0.0f);
  EXPECT_EQ(E8m0::decode_shifted(255), kInfinity);
}

TEST(E8m0, EveryCodeSurvivesDecodeThenEncode) {
  for (int code = 0; code < 255; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    EXPECT_EQ(E8m0::encode_up(E8m0::decode(byte)), byte);
    EXPECT_EQ(E8m0::encode_torch(E8m0::decode(byte)), byte);
    EXPECT_EQ(E8m0::encode_down(E8m0::decode(byte)), byte);
  }
}

TEST(E8m0, RoundsUpDownAndToTheNearestBetweenEveryPairOfPowers) {
  for (int code = 1; code < 254; ++code) {
    const auto low = static_cast<std::uint8_t>(code), high = static_cast<std::uint8_t>(code + 1);
    const float power = E8m0::decode(low);
    const float just_above = std::nextafter(power, kInfinity);
    const float middle = 1.5f * power;
    EXPECT_EQ(E8m0::encode_up(just_above), high);
    EXPECT_EQ(E8m0::encode_down(std::nextafter(2.0f * power, 0.0f)), low);
    EXPECT_EQ(E8m0::encode_torch(std::nextafter(middle, 0.0f)), low);
    EXPECT_EQ(E8m0::encode_torch(middle), high);
  }
}

TEST(E8m0, SubnormalsGoToTheLowestTwoCodes) {
  const float lowest = 0x1p-127f, above = std::nextafter(0x1p-127f, 1.0f);
  EXPECT_EQ(E8m0::encode_up(0.0f), 0);
  EXPECT_EQ(E8m0::encode_up(0x1p-149f), 0);
  EXPECT_EQ(E8m0::encode_up(lowest), 0);
  EXPECT_EQ(E8m0::encode_up(above), 1);
  EXPECT_EQ(E8m0::encode_down(std::nextafter(0x1p-126f, 0.0f)), 0);
  EXPECT_EQ(E8m0::encode_torch(lowest), 0);
  EXPECT_EQ(E8m0::encode_torch(above), 1);
}

TEST(E8m0, TheTopSaturatesOrBecomesNan) {
  const float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(E8m0::encode_up(largest), 254);
  EXPECT_EQ(E8m0::encode_up(kInfinity), 254);
  EXPECT_EQ(E8m0::encode_down(kInfinity), 254);
  EXPECT_EQ(E8m0::encode_torch(largest), 255);
  EXPECT_EQ(E8m0::encode_torch(std::nextafter(0x1.8p127f, 0.0f)), 254);
  EXPECT_EQ(E8m0::encode_torch(kInfinity), 255);
  for (const auto encode : {E8m0::encode_up, E8m0::encode_down, E8m0::encode_torch})
    EXPECT_EQ(encode(std::numeric_limits<float>::quiet_NaN()), 255);
}

TEST(E8m0, TheSignIsIgnored) {
  for (const auto encode : {E8m0::encode_up, E8m0::encode_down, E8m0::encode_torch})
    for (const float x : {0.0f, 1.0f, 1.7f, 1e-40f, kInfinity}) EXPECT_EQ(encode(-x), encode(x));
}

}  // namespace e8m0_test
}  // namespace fp4moe::formats
