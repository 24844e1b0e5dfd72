#include "fp4moe/formats/mxfp4.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/e2m1.hpp"
#include "fp4moe/formats/nibbles.hpp"

namespace fp4moe::formats {
namespace mxfp4_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

struct Block {
  std::uint8_t scale = 0xAA;
  std::array<std::uint8_t, kMxfp4Bytes> codes{};
};

Block quantize(Mxfp4Rule rule, std::span<const float> x) {
  Block block;
  block.codes.fill(0xAA);  // every byte must be written
  quantize_mxfp4(rule, x, block.scale, block.codes);
  return block;
}

std::vector<float> dequantize(const Block& block, std::size_t count = kMxfp4Block,
                              ScaleReading reading = ScaleReading::strict) {
  std::vector<float> out(count);
  dequantize_mxfp4(block.scale, block.codes, out, reading);
  return out;
}

TEST(Mxfp4, NamesAndRulesAreTheSameTableBothWays) {
  for (const Mxfp4RuleRow& row : kMxfp4Rules) {
    EXPECT_EQ(name(row.rule), row.name);
    EXPECT_EQ(mxfp4_rule_from_name(row.name), row.rule);
  }
  EXPECT_EQ(mxfp4_rule_from_name("mxfp4"), std::nullopt);
}

TEST(Mxfp4, AnAllZeroBlockHasScaleZeroAndKeepsTheSigns) {
  std::array<float, kMxfp4Block> x{};
  x[1] = -0.0f;
  for (const Mxfp4RuleRow& row : kMxfp4Rules) {
    const Block block = quantize(row.rule, x);
    EXPECT_EQ(block.scale, 0) << row.name;
    // llama.cpp takes the first code of least error, so it never writes -0
    EXPECT_EQ(nibble(block.codes, 1), row.rule == Mxfp4Rule::llama_cpp ? 0 : 8) << row.name;
    EXPECT_EQ(nibble(block.codes, 0), 0) << row.name;
    for (std::size_t i = 1; i < kMxfp4Bytes; ++i) EXPECT_EQ(block.codes[i], 0) << row.name;
  }
}

TEST(Mxfp4, ScalesOfOneMaximumUnderEveryRule) {
  struct Expectation {
    Mxfp4Rule rule;
    int of_4, of_6, above_6, of_7, of_1_75;
  };
  constexpr Expectation kExpectations[] = {
      {Mxfp4Rule::floor4_rne, 127, 127, 127, 127, 125},
      {Mxfp4Rule::ceil6_rne, 127, 127, 128, 128, 126},
      {Mxfp4Rule::ceil6_away, 127, 127, 128, 128, 126},
      {Mxfp4Rule::floor6_away, 126, 127, 127, 127, 125},
      {Mxfp4Rule::even_rne, 127, 127, 127, 128, 126},
      {Mxfp4Rule::even_triton_rne, 127, 127, 127, 128, 126},
      {Mxfp4Rule::flashinfer_rne, 127, 127, 128, 128, 126},
      {Mxfp4Rule::llama_cpp, 127, 127, 127, 127, 125},
  };
  for (const Expectation& e : kExpectations) {
    EXPECT_EQ(mxfp4_scale(e.rule, 4.0f), e.of_4) << name(e.rule);
    EXPECT_EQ(mxfp4_scale(e.rule, 6.0f), e.of_6) << name(e.rule);
    EXPECT_EQ(mxfp4_scale(e.rule, std::nextafter(6.0f, 7.0f)), e.above_6) << name(e.rule);
    EXPECT_EQ(mxfp4_scale(e.rule, 7.0f), e.of_7) << name(e.rule);
    EXPECT_EQ(mxfp4_scale(e.rule, 1.75f), e.of_1_75) << name(e.rule);
  }
}

TEST(Mxfp4, WhatExceedsSixSaturates) {
  const std::array<float, 4> x{7.9f, -7.9f, 5.0f, -1.0f};

  const Block block = quantize(Mxfp4Rule::floor4_rne, x);

  EXPECT_EQ(block.scale, 127);
  EXPECT_EQ(dequantize(block, 4), (std::vector<float>{6.0f, -6.0f, 4.0f, -1.0f}));
}

TEST(Mxfp4, TiesGoWhereTheRuleSays) {
  const std::array<float, 4> x{6.0f, 5.0f, -2.5f, 0.25f};
  EXPECT_EQ(dequantize(quantize(Mxfp4Rule::ceil6_rne, x), 4),
            (std::vector<float>{6.0f, 4.0f, -2.0f, 0.0f}));
  EXPECT_EQ(dequantize(quantize(Mxfp4Rule::ceil6_away, x), 4),
            (std::vector<float>{6.0f, 6.0f, -3.0f, 0.5f}));
  EXPECT_EQ(dequantize(quantize(Mxfp4Rule::llama_cpp, x), 4),  // to the smaller magnitude
            (std::vector<float>{6.0f, 4.0f, -2.0f, 0.0f}));
  EXPECT_EQ(nibble(quantize(Mxfp4Rule::llama_cpp, std::array{4.0f, 0.75f}).codes, 1), 1);
}

TEST(Mxfp4, InfinityInABlock) {
  std::array<float, kMxfp4Block> x{};
  x.fill(-1.0f);
  x[3] = -kInfinity;
  const auto scale_of = [&](Mxfp4Rule rule) { return int{quantize(rule, x).scale}; };
  EXPECT_EQ(scale_of(Mxfp4Rule::floor4_rne), 255);
  EXPECT_EQ(scale_of(Mxfp4Rule::ceil6_rne), 255);
  EXPECT_EQ(scale_of(Mxfp4Rule::ceil6_away), 255);
  EXPECT_EQ(scale_of(Mxfp4Rule::floor6_away), 255);
  EXPECT_EQ(scale_of(Mxfp4Rule::even_rne), 253);
  EXPECT_EQ(scale_of(Mxfp4Rule::even_triton_rne), 254);
  EXPECT_EQ(scale_of(Mxfp4Rule::flashinfer_rne), 254);
  EXPECT_EQ(scale_of(Mxfp4Rule::llama_cpp), 254);
  for (const Mxfp4RuleRow& row : kMxfp4Rules)
    EXPECT_EQ(nibble(quantize(row.rule, x).codes, 0) & 7, 0) << row.name;
}

TEST(Mxfp4, NanFollowsTheFormulasAndNeverCrashes) {
  const std::array<float, 3> x{1.0f, float_from_bits(0xFF800001), 2.0f};
  EXPECT_EQ(quantize(Mxfp4Rule::floor4_rne, x).scale, 255);
  EXPECT_EQ(quantize(Mxfp4Rule::ceil6_rne, x).scale, 0);
  EXPECT_EQ(quantize(Mxfp4Rule::even_rne, x).scale, 253);
  EXPECT_EQ(quantize(Mxfp4Rule::even_triton_rne, x).scale, 254);
  EXPECT_EQ(quantize(Mxfp4Rule::flashinfer_rne, x).scale, 255);
  EXPECT_EQ(quantize(Mxfp4Rule::llama_cpp, x).scale, 126);
}

TEST(Mxfp4, TheTopOfTheRange) {
  EXPECT_EQ(mxfp4_scale(Mxfp4Rule::even_rne, 0x1.cp127f), 253);
  EXPECT_EQ(mxfp4_scale(Mxfp4Rule::even_triton_rne, 0x1.cp127f), 254);
  EXPECT_EQ(mxfp4_scale(Mxfp4Rule::even_triton_rne, std::nextafter(0x1.cp127f, 0.0f)), 252);
  EXPECT_EQ(mxfp4_scale(Mxfp4Rule::floor4_rne, kLargest), 252);
  EXPECT_EQ(mxfp4_scale(Mxfp4Rule::ceil6_rne, kLargest), 253);
  EXPECT_EQ(mxfp4_scale(Mxfp4Rule::flashinfer_rne, kLargest), 253);
}

TEST(Mxfp4, TinyBlocks) {
  const std::array<float, 2> x{0x1p-130f, -0x1p-131f};
  // the bit trick gives 1, whose scale 2^-126 leaves nothing of them
  EXPECT_EQ(quantize(Mxfp4Rule::ceil6_rne, x).scale, 1);
  EXPECT_EQ(quantize(Mxfp4Rule::ceil6_rne, x).codes[0], 0x80);
  // the conversion of CUDA gives 0, and FlashInfer then leaves the values as they are
  EXPECT_EQ(quantize(Mxfp4Rule::flashinfer_rne, x).scale, 0);
  EXPECT_EQ(quantize(Mxfp4Rule::flashinfer_rne, x).codes[0], 0x80);
  EXPECT_EQ(quantize(Mxfp4Rule::floor4_rne, x).scale, 0);
  EXPECT_EQ(quantize(Mxfp4Rule::llama_cpp, x).scale, 0);
  // llama.cpp reads scale 0 strictly, so values near 2^-127 survive
  const std::array<float, 2> near{0x1.8p-126f, -0x1p-127f};
  EXPECT_EQ(dequantize(quantize(Mxfp4Rule::llama_cpp, near), 2),
            (std::vector<float>{0x1.8p-126f, -0x1p-127f}));
}

TEST(Mxfp4, LlamaCppRoundsTheLogarithmToFloat32) {
  EXPECT_EQ(mxfp4_scale(Mxfp4Rule::llama_cpp, std::nextafter(1.0f, 0.0f)), 124);
  // log2 of 2^100 less one unit in the last place is 100 in float32
  EXPECT_EQ(mxfp4_scale(Mxfp4Rule::llama_cpp, std::nextafter(0x1p100f, 0.0f)), 225);
  EXPECT_EQ(mxfp4_scale(Mxfp4Rule::floor4_rne, std::nextafter(0x1p100f, 0.0f)), 224);
}

TEST(Mxfp4, AShortBlockCountsOnlyItsOwnValues) {
  const std::array<float, 5> x{1.0f, -2.0f, 3.0f, -4.0f, 6.0f};
  std::array<float, kMxfp4Block> padded{};
  std::copy(x.begin(), x.end(), padded.begin());
  for (const Mxfp4RuleRow& row : kMxfp4Rules) {
    const Block block = quantize(row.rule, x), whole = quantize(row.rule, padded);
    EXPECT_EQ(block.scale, whole.scale);
    EXPECT_EQ(block.codes, whole.codes) << row.name;
    EXPECT_EQ(quantize(row.rule, {}).scale, 0) << row.name;
  }
}

TEST(Mxfp4, QuantizingWhatWasDequantizedChangesNothing) {
  constexpr std::uint64_t kSeed = 4;
  SplitMix64 random(kSeed);
  for (int i = 0; i < 2000; ++i) {
    std::array<float, kMxfp4Block> x{};
    const auto exponent = static_cast<int>(random.next() % 200) - 100;
    for (float& value : x) value = std::ldexp(random.unit() * 2 - 1, exponent);
    for (const Mxfp4RuleRow& row : kMxfp4Rules) {
      const std::vector<float> once = dequantize(quantize(row.rule, x));
      const std::vector<float> twice = dequantize(quantize(row.rule, once));
      ASSERT_EQ(once, twice) << row.name << ", seed " << kSeed << ", block " << i;
    }
  }
}

TEST(Mxfp4, DequantizesEveryCodeUnderEveryScale) {
  Block block;
  for (std::size_t i = 0; i < 16; ++i) set_nibble(block.codes, i, static_cast<std::uint8_t>(i));
  for (int scale = 0; scale < 256; ++scale) {
    block.scale = static_cast<std::uint8_t>(scale);
    const std::vector<float> strict = dequantize(block, 16);
    const std::vector<float> shifted = dequantize(block, 16, ScaleReading::shifted);
    for (std::uint8_t code = 0; code < 16; ++code) {
      const double exact = std::ldexp(E2m1::decode(code), scale - 127);
      const auto clamped = static_cast<float>(std::clamp<double>(exact, -kLargest, kLargest));
      if (scale == 255) {
        EXPECT_TRUE(std::isnan(strict[code]));
        EXPECT_TRUE((code & 7) == 0 ? std::isnan(shifted[code])
                                    : std::fabs(shifted[code]) == kLargest);
        continue;
      }
      EXPECT_EQ(float_bits(strict[code]), float_bits(clamped)) << scale;
      const float without_zero = scale == 0 ? std::copysign(0.0f, clamped) : clamped;
      EXPECT_EQ(float_bits(shifted[code]), float_bits(without_zero)) << scale;
      if (scale >= 253) continue;
      EXPECT_EQ(Bf16::decode(Bf16::encode(clamped)), clamped) << "exact in bf16";
    }
  }
}

TEST(Mxfp4, RowsAreTheirBlocksOneAfterAnother) {
  constexpr std::size_t kRows = 3, kColumns = 70;
  std::vector<float> x(kRows * kColumns);
  SplitMix64 random(5);
  for (float& value : x) value = random.unit() - 0.5f;
  std::vector<std::uint8_t> scales(kRows * 3), codes(kRows * 3 * kMxfp4Bytes, 0xAA);

  ASSERT_TRUE(quantize_mxfp4_rows(Mxfp4Rule::ceil6_rne, {x, kColumns}, scales, codes));

  const Block last = quantize(Mxfp4Rule::ceil6_rne, std::span(x).last(6));
  EXPECT_EQ(scales.back(), last.scale);
  EXPECT_TRUE(std::equal(last.codes.begin(), last.codes.end(), codes.end() - kMxfp4Bytes));
  std::vector<float> back(x.size());
  ASSERT_TRUE(dequantize_mxfp4_rows(scales, codes, {back, kColumns}));
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(back[i], x[i], 0.11f);
  EXPECT_EQ(dequantize(last, 6), std::vector<float>(back.end() - 6, back.end()));
}

TEST(Mxfp4, RowsOfWrongSizesAreRefusedBeforeAnythingIsWritten) {
  const std::vector<float> x(64);
  std::vector<float> out(64, 7.0f);
  std::vector<std::uint8_t> scales(2, 7), codes(32, 7);
  const std::vector<std::uint8_t> codes_before = codes;
  EXPECT_FALSE(
      quantize_mxfp4_rows(Mxfp4Rule::ceil6_rne, {x, 64}, std::span(scales).first(1), codes));
  EXPECT_FALSE(dequantize_mxfp4_rows(scales, std::span(codes).first(31), {out, 64}));
  EXPECT_EQ(codes, codes_before);
  EXPECT_EQ(out[0], 7.0f);
}

}  // namespace mxfp4_test
}  // namespace fp4moe::formats
