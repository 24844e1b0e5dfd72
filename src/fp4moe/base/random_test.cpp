#include "fp4moe/base/random.hpp"

#include <gtest/gtest.h>

namespace fp4moe {
namespace random_test {

// Values of the published generator for the seed 1234567.
TEST(SplitMix64, GivesThePublishedSequence) {
  SplitMix64 random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317u);
  EXPECT_EQ(random.next(), 3203168211198807973u);
  EXPECT_EQ(random.next(), 9817491932198370423u);
  EXPECT_EQ(random.next(), 4593380528125082431u);
  EXPECT_EQ(random.next(), 16408922859458223821u);
}

TEST(SplitMix64, UnitStaysBelowOne) {
  SplitMix64 random(1);
  float low = 1.0f, high = 0.0f;
  for (int i = 0; i < 10000; ++i) {
    const float value = random.unit();
    low = value < low ? value : low;
    high = value > high ? value : high;
  }
  EXPECT_GE(low, 0.0f);
  EXPECT_LT(low, 0.01f);
  EXPECT_LT(high, 1.0f);
  EXPECT_GT(high, 0.99f);
}

}  // namespace random_test
}  // namespace fp4moe
