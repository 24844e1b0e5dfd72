#include "fp4moe/formats/e2m1.hpp"

#include <gtest/gtest.h>

#include "support/format_laws.hpp"

namespace fp4moe::formats {
namespace e2m1_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(E2m1, TheSixteenValuesAreThoseOfTheStandard) {
  constexpr float kValues[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (std::uint8_t code = 0; code < 8; ++code) {
    EXPECT_EQ(E2m1::decode(code), kValues[code]);
    EXPECT_EQ(float_bits(E2m1::decode(code | 8)), float_bits(-kValues[code]));
  }
}

TEST(E2m1, RoundsToTheNearestEvenCode) {
  const FormatLaws<std::uint8_t> laws{E2m1::decode, E2m1::encode, even_of,
                                      codes_up_to(std::uint8_t{7})};
  expect_laws(laws);
  expect_odd_symmetry(laws, std::uint8_t{8});
}

TEST(E2m1, RoundsTiesAwayFromZeroWhenAsked) {
  const FormatLaws<std::uint8_t> laws{E2m1::decode, E2m1::encode_ties_away, larger_of,
                                      codes_up_to(std::uint8_t{7})};
  expect_laws(laws);
  expect_odd_symmetry(laws, std::uint8_t{8});
}

TEST(E2m1, TheBoundariesAreThoseOfTheReference) {
  constexpr float kTies[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  constexpr float kToEven[] = {0.0f, 1.0f, 1.0f, 2.0f, 2.0f, 4.0f, 4.0f};
  constexpr float kAway[] = {0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (std::size_t i = 0; i < std::size(kTies); ++i) {
    EXPECT_EQ(E2m1::decode(E2m1::encode(kTies[i])), kToEven[i]);
    EXPECT_EQ(E2m1::decode(E2m1::encode_ties_away(kTies[i])), kAway[i]);
  }
}

TEST(E2m1, SaturatesAndKeepsTheSignOfZeroButNotOfNan) {
  for (const auto encode : {E2m1::encode, E2m1::encode_ties_away}) {
    EXPECT_EQ(encode(kInfinity), 7);
    EXPECT_EQ(encode(-kInfinity), 15);
    EXPECT_EQ(encode(std::numeric_limits<float>::max()), 7);
    EXPECT_EQ(encode(-6.0001f), 15);
    EXPECT_EQ(encode(-0.0f), 8);
    EXPECT_EQ(encode(-std::numeric_limits<float>::denorm_min()), 8);
    EXPECT_EQ(encode(float_from_bits(0xFFC00000)), 7);
    EXPECT_EQ(encode(float_from_bits(0x7F800001)), 7);
  }
}

}  // namespace e2m1_test
}  // namespace fp4moe::formats
