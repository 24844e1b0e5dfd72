#include "fp4moe/formats/mxfp8.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/e8m0.hpp"

namespace fp4moe::formats {
namespace mxfp8_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Block {
  std::uint8_t scale = 0xAA;
  std::array<std::uint8_t, kMxfp8Block> codes{};
};

Block quantize(Mxfp8Rule rule, std::span<const float> x) {
  Block block;
  block.codes.fill(0xAA);
  quantize_mxfp8(rule, x, block.scale, block.codes);
  return block;
}

TEST(Mxfp8, NamesAndRulesAreTheSameTableBothWays) {
  for (const Mxfp8RuleRow& row : kMxfp8Rules) {
    EXPECT_EQ(name(row.rule), row.name);
    EXPECT_EQ(mxfp8_rule_from_name(row.name), row.rule);
  }
  EXPECT_EQ(mxfp8_rule_from_name("mxfp8"), std::nullopt);
}

TEST(Mxfp8, AnAllZeroBlockHasScaleZeroAndKeepsTheSigns) {
  const std::array<float, 2> x{0.0f, -0.0f};
  for (const Mxfp8RuleRow& row : kMxfp8Rules) {
    const Block block = quantize(row.rule, x);
    EXPECT_EQ(block.scale, 0) << row.name;
    EXPECT_EQ(block.codes[0], 0) << row.name;
    EXPECT_EQ(block.codes[1], 0x80) << row.name;
    EXPECT_EQ(block.codes[2], 0) << row.name;
  }
}

TEST(Mxfp8, TheRulesAgreeAwayFromTheEdges) {
  constexpr std::uint64_t kSeed = 8;
  SplitMix64 random(kSeed);
  for (int i = 0; i < 3000; ++i) {
    std::array<float, kMxfp8Block> x{};
    const auto exponent = static_cast<int>(random.next() % 220) - 110;
    for (float& value : x) value = std::ldexp(random.unit() * 2 - 1, exponent);
    const Block expected = quantize(Mxfp8Rule::ceil448, x);
    for (const Mxfp8RuleRow& row : kMxfp8Rules) {
      const Block block = quantize(row.rule, x);
      ASSERT_EQ(block.scale, expected.scale) << row.name << ", seed " << kSeed << ", block " << i;
      ASSERT_EQ(block.codes, expected.codes) << row.name << ", seed " << kSeed << ", block " << i;
    }
  }
}

TEST(Mxfp8, MaximaThatAre448TimesAPowerAreExactUnderEveryRule) {
  for (int exponent = -126; exponent <= 118; ++exponent)
    for (const Mxfp8RuleRow& row : kMxfp8Rules) {
      const float amax = std::ldexp(448.0f, exponent);
      EXPECT_EQ(mxfp8_scale(row.rule, amax), exponent + 127) << row.name;
      if (row.rule == Mxfp8Rule::log2 || exponent == -126) continue;
      EXPECT_EQ(mxfp8_scale(row.rule, std::nextafter(amax, kInfinity)), exponent + 128) << row.name;
    }
}

TEST(Mxfp8, TheLogarithmCanBeOneLowerJustAboveAPower) {
  const float above = std::nextafter(std::ldexp(448.0f, 60), kInfinity);
  EXPECT_EQ(mxfp8_scale(Mxfp8Rule::ceil448, above), 188);
  EXPECT_EQ(mxfp8_scale(Mxfp8Rule::log2, above), 187);
}

TEST(Mxfp8, TinyBlocks) {
  const std::array<float, 3> x{0x1p-126f, -0x1p-127f, 0.0f};
  EXPECT_EQ(quantize(Mxfp8Rule::ceil448, x).scale, 1);
  EXPECT_EQ(quantize(Mxfp8Rule::ceil448, x).codes[0], E4m3fn::encode(1.0f));

  const Block cutedsl = quantize(Mxfp8Rule::flashinfer_cutedsl, x);
  EXPECT_EQ(cutedsl.scale, 0);
  EXPECT_EQ(cutedsl.codes[0], 0);
  EXPECT_EQ(cutedsl.codes[1], 0x80);

  const Block cuda = quantize(Mxfp8Rule::flashinfer_cuda, x);  // times infinity
  EXPECT_EQ(cuda.scale, 0);
  EXPECT_EQ(cuda.codes[0], 0x7E);
  EXPECT_EQ(cuda.codes[1], 0xFE);
  EXPECT_EQ(cuda.codes[2], 0x7F);

  const Block log2 = quantize(Mxfp8Rule::log2, x);
  EXPECT_EQ(log2.scale, 0);
  EXPECT_EQ(log2.codes[0], E4m3fn::encode(2.0f));
  EXPECT_EQ(log2.codes[1], E4m3fn::encode(-1.0f));
}

TEST(Mxfp8, InfinityAndNanInABlock) {
  const std::array<float, 3> x{-1.0f, kInfinity, 0.0f};
  EXPECT_EQ(quantize(Mxfp8Rule::ceil448, x).scale, 255);
  EXPECT_EQ(quantize(Mxfp8Rule::flashinfer_cuda, x).scale, 254);
  EXPECT_EQ(quantize(Mxfp8Rule::flashinfer_cutedsl, x).scale, 254);
  EXPECT_EQ(quantize(Mxfp8Rule::log2, x).scale, 254);
  EXPECT_EQ(quantize(Mxfp8Rule::flashinfer_cutedsl, x).codes[1], 0x7E);
  EXPECT_EQ(quantize(Mxfp8Rule::flashinfer_cuda, x).codes[1], 0x7F);  // times zero
  EXPECT_EQ(quantize(Mxfp8Rule::log2, x).codes[1], 0x7F);
  for (const Mxfp8RuleRow& row : kMxfp8Rules)
    EXPECT_EQ(quantize(row.rule, x).codes[0], 0x80) << row.name;

  const float nan = float_from_bits(kFloatNanBits);
  EXPECT_EQ(mxfp8_scale(Mxfp8Rule::ceil448, nan), 0);  // the addition wraps
  EXPECT_EQ(mxfp8_scale(Mxfp8Rule::flashinfer_cuda, nan), 255);
  EXPECT_EQ(mxfp8_scale(Mxfp8Rule::log2, nan), 255);
  for (const Mxfp8RuleRow& row : kMxfp8Rules)
    EXPECT_EQ(quantize(row.rule, std::array{nan, 1.0f}).codes[0] & 0x7F, 0x7F) << row.name;
}

TEST(Mxfp8, DequantizesEveryCodeUnderEveryScale) {
  constexpr auto kLargest = static_cast<double>(std::numeric_limits<float>::max());
  Block block;
  std::array<float, kMxfp8Block> strict{}, shifted{};
  for (int first = 0; first < 256; first += 32)
    for (int scale = 0; scale < 256; ++scale) {
      for (int i = 0; i < 32; ++i)
        block.codes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(first + i);
      const auto byte = static_cast<std::uint8_t>(scale);
      dequantize_mxfp8(byte, block.codes, strict);
      dequantize_mxfp8(byte, block.codes, shifted, ScaleReading::shifted);
      for (std::size_t i = 0; i < 32; ++i) {
        const double exact = std::ldexp(double{E4m3fn::decode(block.codes[i])}, scale - 127);
        if (scale == 255 || std::isnan(exact)) {
          EXPECT_TRUE(std::isnan(strict[i]));
          continue;
        }
        EXPECT_EQ(strict[i], static_cast<float>(std::clamp(exact, -kLargest, kLargest)));
        EXPECT_EQ(shifted[i], scale == 0 ? 0.0f : strict[i]);
      }
    }
}

TEST(Mxfp8, RowsAreTheirBlocksOneAfterAnother) {
  constexpr std::size_t kRows = 2, kColumns = 33;
  std::vector<float> x(kRows * kColumns);
  SplitMix64 random(9);
  for (float& value : x) value = random.unit() - 0.5f;
  std::vector<std::uint8_t> scales(kRows * 2), codes(kRows * 2 * kMxfp8Block, 0xAA);

  ASSERT_TRUE(quantize_mxfp8_rows(Mxfp8Rule::ceil448, {x, kColumns}, scales, codes));

  const Block last = quantize(Mxfp8Rule::ceil448, std::span(x).last(1));
  EXPECT_EQ(scales.back(), last.scale);
  EXPECT_TRUE(std::equal(last.codes.begin(), last.codes.end(), codes.end() - kMxfp8Block));
  std::vector<float> back(x.size());
  ASSERT_TRUE(dequantize_mxfp8_rows(scales, codes, {back, kColumns}));
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(back[i], x[i], 0.5f / 16);
  EXPECT_FALSE(
      quantize_mxfp8_rows(Mxfp8Rule::ceil448, {x, kColumns}, scales, std::span(codes).first(127)));
  EXPECT_FALSE(dequantize_mxfp8_rows(std::span(scales).first(3), codes, {back, kColumns}));
}

}  // namespace mxfp8_test
}  // namespace fp4moe::formats
