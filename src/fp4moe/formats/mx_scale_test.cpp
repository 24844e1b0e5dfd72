#include "fp4moe/formats/mx_scale.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "fp4moe/formats/e8m0.hpp"

namespace fp4moe::formats {
namespace mx_scale_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(MxScale, NamesAndRulesAreTheSameTableBothWays) {
  for (const ScaleRuleRow& row : kScaleRules) {
    EXPECT_EQ(name(row.rule), row.name);
    EXPECT_EQ(scale_rule_from_name(row.name), row.rule);
  }
  EXPECT_EQ(scale_rule_from_name("floor5"), std::nullopt);
  EXPECT_EQ(scale_rule_from_name(""), std::nullopt);
}

TEST(MxScale, ZeroHasScaleZeroUnderEveryRule) {
  for (const ScaleRuleRow& row : kScaleRules) EXPECT_EQ(mx_scale(row.rule, 0.0f), 0) << row.name;
}

TEST(MxScale, TheRatioOfMaximumToScaleStaysInTheRulesInterval) {
  struct Interval {
    ScaleRule rule;
    double low, high;  // ceil rules: (low, high], the others [low, high)
    bool closed_above;
  };
  constexpr Interval kIntervals[] = {
      {ScaleRule::floor4, 4, 8, false},     {ScaleRule::floor6, 6, 12, false},
      {ScaleRule::even, 3.5, 7, false},     {ScaleRule::even_div, 3.5, 7, false},
      {ScaleRule::ceil6, 3, 6, true},       {ScaleRule::ceil4, 2, 4, true},
      {ScaleRule::ceil448, 224, 448, true},
  };
  for (const Interval& interval : kIntervals)
    for (int exponent = -100; exponent <= 100; ++exponent)
      for (const double base : {1.0, 1.25, 1.5, 1.75, 1.999})
        for (const int step : {-1, 0, 1}) {
          auto amax = static_cast<float>(std::ldexp(base, exponent));
          if (step != 0) amax = std::nextafter(amax, step < 0 ? 0.0f : kInfinity);
          const double ratio = amax / E8m0::decode(mx_scale(interval.rule, amax));
          if (interval.closed_above) {
            // amax / 6 is rounded, so one unit in the last place may slip through
            EXPECT_GT(ratio * (1 + 0x1p-22), interval.low) << name(interval.rule) << " " << amax;
            EXPECT_LE(ratio * (1 - 0x1p-22), interval.high) << name(interval.rule) << " " << amax;
          } else {
            EXPECT_GE(ratio * (1 + 0x1p-22), interval.low) << name(interval.rule) << " " << amax;
            EXPECT_LT(ratio * (1 - 0x1p-22), interval.high) << name(interval.rule) << " " << amax;
          }
        }
}

TEST(MxScale, TheBottomOfTheRange) {
  // amax / 6 subnormal but not zero: the addition carries into the exponent
  EXPECT_EQ(mx_scale(ScaleRule::ceil6, 0x1p-126f), 1);
  EXPECT_EQ(mx_scale(ScaleRule::ceil6, 0x1p-140f), 1);
  EXPECT_EQ(mx_scale(ScaleRule::ceil448, 0x1p-126f), 1);
  EXPECT_EQ(mx_scale(ScaleRule::ceil4, 0x1p-126f), 1);
  EXPECT_EQ(mx_scale(ScaleRule::ceil6, 0x1p-149f), 0);  // a sixth of it rounds to zero
  EXPECT_EQ(mx_scale(ScaleRule::floor4, 0x1p-125f), 0);
  EXPECT_EQ(mx_scale(ScaleRule::floor4, 0x1p-124f), 1);
  EXPECT_EQ(mx_scale(ScaleRule::even, 0x1p-125f), 0);
  EXPECT_EQ(mx_scale(ScaleRule::even, 0x1p-124f), 1);
  EXPECT_EQ(mx_scale(ScaleRule::even_div, 0x1p-124f), 1);
}

TEST(MxScale, TheTopOfTheRange) {
  const float seven_quarters = 0x1.cp127f, below = std::nextafter(seven_quarters, 0.0f);
  EXPECT_EQ(mx_scale(ScaleRule::even, below), 252);
  EXPECT_EQ(mx_scale(ScaleRule::even, seven_quarters), 253);
  EXPECT_EQ(mx_scale(ScaleRule::even_div, below), 252);
  EXPECT_EQ(mx_scale(ScaleRule::even_div, seven_quarters), 255);
  for (const ScaleRuleRow& row : kScaleRules) {
    const int expected = row.rule == ScaleRule::even ? 253 : 255;
    EXPECT_EQ(mx_scale(row.rule, kInfinity), expected) << row.name;
    EXPECT_EQ(mx_scale(row.rule, float_from_bits(kFloatNanBits)), expected) << row.name;
  }
}

TEST(MxScale, TheInverseIsExactAndZeroForZero) {
  EXPECT_EQ(mx_inverse(0), 0.0f);
  EXPECT_EQ(mx_inverse(255), 0.0f);
  for (int code = 1; code < 255; ++code)
    EXPECT_EQ(mx_inverse(static_cast<std::uint8_t>(code)), std::ldexp(1.0f, 127 - code));
}

}  // namespace mx_scale_test
}  // namespace fp4moe::formats
