#include "fp4moe/formats/nvfp4.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/e2m1.hpp"
#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/nibbles.hpp"

namespace fp4moe::formats {
namespace nvfp4_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Block {
  std::uint8_t scale = 0xAA;
  std::array<std::uint8_t, kNvfp4Bytes> codes{};
};

Block quantize(Nvfp4Quantizer how, std::span<const float> x) {
  Block block;
  block.codes.fill(0xAA);
  quantize_nvfp4(how, x, block.scale, block.codes);
  return block;
}

TEST(Nvfp4, NamesAndRulesAreTheSameTableBothWays) {
  for (const Nvfp4RuleRow& row : kNvfp4Rules) {
    EXPECT_EQ(name(row.rule), row.name);
    EXPECT_EQ(nvfp4_rule_from_name(row.name), row.rule);
  }
  EXPECT_EQ(nvfp4_rule_from_name("nvfp4"), std::nullopt);
}

TEST(Nvfp4, TheGlobalScaleIsFiniteAndPositiveForEveryMaximum) {
  EXPECT_EQ(nvfp4_global_scale(2688.0f), 1.0f);
  EXPECT_EQ(nvfp4_global_scale(1.0f), 2688.0f);
  EXPECT_EQ(nvfp4_global_scale(0x1p-149f), std::numeric_limits<float>::max());
  EXPECT_EQ(nvfp4_global_scale(std::numeric_limits<float>::max()),
            2688.0f / std::numeric_limits<float>::max());
  for (const float odd : {0.0f, kInfinity, float_from_bits(kFloatNanBits), -1.0f})
    EXPECT_EQ(nvfp4_global_scale(odd), 1.0f);
}

TEST(Nvfp4, TheBlockWithTheTensorsMaximumGetsTheLargestScale) {
  const std::array<float, 4> x{3.0f, -1.5f, 1.0f, 0.0f};

  const Block block = quantize({.global_scale = nvfp4_global_scale(3.0f)}, x);

  EXPECT_EQ(block.scale, 0x7E);
  EXPECT_EQ(nibble(block.codes, 0), 7);
  std::array<float, 4> back{};
  dequantize_nvfp4(block.scale, nvfp4_global_scale(3.0f), block.codes, back);
  EXPECT_EQ(back, (std::array<float, 4>{3.0f, -1.5f, 1.0f, 0.0f}));
}

TEST(Nvfp4, TheBlockScaleSaturatesAndUnderflows) {
  const std::array<float, 2> big{1000.0f, -2.0f}, small{0x1p-20f, -0x1p-20f};
  EXPECT_EQ(quantize({.global_scale = 100.0f}, big).scale, 0x7E);
  EXPECT_EQ(nibble(quantize({.global_scale = 100.0f}, big).codes, 0), 7);
  const Block zero = quantize({.global_scale = 1.0f}, small);
  EXPECT_EQ(zero.scale, 0);
  EXPECT_EQ(zero.codes[0], 0x80);  // both zero, signs kept
  for (std::size_t i = 1; i < kNvfp4Bytes; ++i) EXPECT_EQ(zero.codes[i], 0);
}

TEST(Nvfp4, InfinityAndNanNeverCrash) {
  const std::array<float, 3> x{1.0f, -kInfinity, 2.0f}, y{1.0f, float_from_bits(0x7F800001), 2.0f};
  for (const Nvfp4RuleRow& row : kNvfp4Rules) {
    const Block with_infinity = quantize({.rule = row.rule, .global_scale = 2.0f}, x);
    EXPECT_EQ(with_infinity.scale, 0x7E) << row.name;
    EXPECT_EQ(nibble(with_infinity.codes, 1), 15) << row.name;
    EXPECT_EQ(quantize({.rule = row.rule, .global_scale = 2.0f}, y).scale, 0x7F) << row.name;
    for (const float g : {0.0f, kInfinity, -1.0f, float_from_bits(kFloatNanBits)})
      (void)quantize({.rule = row.rule, .global_scale = g}, x);
  }
}

// Written from the specification in double and rounded to float after each step, as a second
// opinion on the order of operations.
TEST(Nvfp4, TheRulesDifferInTheOrderOfTheirProducts) {
  constexpr std::uint64_t kSeed = 44;
  SplitMix64 random(kSeed);
  const auto f = [](double value) { return static_cast<float>(value); };
  const float sixth = f(1.0 / 6.0);
  int differences = 0;
  for (int i = 0; i < 100000; ++i) {
    const float amax = random.unit() + 0x1p-10f, g = 1.0f + 3000.0f * random.unit();
    const float reference = f(double{g} * f(double{amax} * sixth));
    const float exact = f(double{amax} * f(double{g} * sixth));
    EXPECT_EQ(nvfp4_scale(Nvfp4Rule::reference, g, amax), E4m3fn::encode(reference));
    EXPECT_EQ(nvfp4_scale(Nvfp4Rule::flashinfer_exact, g, amax), E4m3fn::encode(exact));
    EXPECT_EQ(nvfp4_scale(Nvfp4Rule::no_global, g, amax), E4m3fn::encode(f(double{amax} / 6)));
    if (float_bits(reference) != float_bits(exact)) ++differences;
  }
  EXPECT_GT(differences, 0) << "seed " << kSeed;
}

TEST(Nvfp4, WithoutAGlobalScaleTheBlockScaleCarriesEverything) {
  const std::array<float, 2> x{12.0f, -4.0f};

  const Block block = quantize({.rule = Nvfp4Rule::no_global, .global_scale = 77.0f}, x);

  EXPECT_EQ(E4m3fn::decode(block.scale), 2.0f);
  std::array<float, 2> back{};
  dequantize_nvfp4(block.scale, 1.0f, block.codes, back);
  EXPECT_EQ(back, x);
}

TEST(Nvfp4, DivisorAndMultiplierAreReciprocal) {
  Block block;
  for (std::size_t i = 0; i < 16; ++i) set_nibble(block.codes, i, static_cast<std::uint8_t>(i));
  for (int scale = 0; scale < 256; ++scale) {
    block.scale = static_cast<std::uint8_t>(scale);
    std::array<float, kNvfp4Block> divided{}, multiplied{};
    dequantize_nvfp4(block.scale, 4.0f, block.codes, divided);
    dequantize_nvfp4_by_multiplier(block.scale, 0.25f, block.codes, multiplied);
    for (std::uint8_t code = 0; code < 16; ++code) {
      const float exact = E2m1::decode(code) * E4m3fn::decode(block.scale) / 4;
      if (is_nan(exact)) {
        EXPECT_TRUE(is_nan(divided[code]) && is_nan(multiplied[code]));
      } else {
        EXPECT_EQ(float_bits(divided[code]), float_bits(exact));
        EXPECT_EQ(float_bits(multiplied[code]), float_bits(exact));
      }
    }
  }
}

TEST(Nvfp4, RowsAreTheirBlocksOneAfterAnother) {
  constexpr std::size_t kRows = 2, kColumns = 40;
  std::vector<float> x(kRows * kColumns);
  SplitMix64 random(6);
  for (float& value : x) value = random.unit() - 0.5f;
  const Nvfp4Quantizer how{.global_scale = nvfp4_global_scale(block_amax(x))};
  std::vector<std::uint8_t> scales(kRows * 3), codes(kRows * 3 * kNvfp4Bytes, 0xAA);

  ASSERT_TRUE(quantize_nvfp4_rows(how, {x, kColumns}, scales, codes));

  const Block last = quantize(how, std::span(x).last(8));
  EXPECT_EQ(scales.back(), last.scale);
  EXPECT_TRUE(std::equal(last.codes.begin(), last.codes.end(), codes.end() - kNvfp4Bytes));
  std::vector<float> back(x.size());
  ASSERT_TRUE(dequantize_nvfp4_rows(how.global_scale, scales, codes, {back, kColumns}));
  // half the widest step of E2M1 (2 of 6) and E4M3's rounding of the scale (1/16)
  for (std::size_t i = 0; i < x.size(); ++i)
    EXPECT_NEAR(back[i], x[i], 0.5f * (1.0f / 6 + 1.0f / 16));
  EXPECT_FALSE(quantize_nvfp4_rows(how, {x, kColumns}, std::span(scales).first(5), codes));
  EXPECT_FALSE(dequantize_nvfp4_rows(1.0f, scales, codes, {back, 39}));
}

}  // namespace nvfp4_test
}  // namespace fp4moe::formats
