#include "fp4moe/formats/block.hpp"

#include <array>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/formats/nibbles.hpp"

namespace fp4moe::formats {
namespace block_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(BlockAmax, IsTheLargestMagnitude) {
  EXPECT_EQ(block_amax({}), 0.0f);
  EXPECT_EQ(float_bits(block_amax(std::array{-0.0f})), 0u);
  EXPECT_EQ(block_amax(std::array{1.0f, -3.0f, 2.0f}), 3.0f);
  EXPECT_EQ(block_amax(std::array{1.0f, -kInfinity}), kInfinity);
  EXPECT_EQ(block_amax(std::array{0x1p-149f, 0.0f}), 0x1p-149f);
}

TEST(BlockAmax, NanWinsOverEverythingAndIsOneNan) {
  for (const std::uint32_t bits : {0x7F800001u, 0xFFC00000u, 0xFFFFFFFFu})
    EXPECT_EQ(float_bits(block_amax(std::array{kInfinity, float_from_bits(bits), 1.0f})),
              kFloatNanBits);
}

TEST(Nibbles, TheEvenIndexIsTheLowNibble) {
  std::array<std::uint8_t, 2> packed{};
  for (std::size_t i = 0; i < 4; ++i) set_nibble(packed, i, static_cast<std::uint8_t>(i + 1));
  EXPECT_EQ(packed, (std::array<std::uint8_t, 2>{0x21, 0x43}));
  set_nibble(packed, 1, 0xFF);  // replaces, and only four bits
  EXPECT_EQ(packed, (std::array<std::uint8_t, 2>{0xF1, 0x43}));
  EXPECT_EQ(nibble(packed, 1), 15);
  EXPECT_EQ(nibble(packed, 2), 3);
}

constexpr BlockShape kShape{.elements = 32, .code_bytes = 16};

TEST(Rows, BlocksStartAnewInEachRow) {
  std::vector<float> values(2 * 40);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  std::vector<std::pair<float, std::size_t>> seen;

  for_each_block(kShape, Rows<float>{values, 40}, [&](std::span<float> block, std::size_t index) {
    EXPECT_EQ(index, seen.size());
    seen.emplace_back(block[0], block.size());
  });

  const std::vector<std::pair<float, std::size_t>> expected{{0, 32}, {32, 8}, {40, 32}, {72, 8}};
  EXPECT_EQ(seen, expected);
}

TEST(Rows, SizesThatDoNotFitAreRefused) {
  const std::vector<float> values(80);
  std::vector<std::uint8_t> scales(4), codes(64);
  const auto check = [&](std::size_t columns, std::size_t num_scales, std::size_t num_codes) {
    return check_rows(kShape, {values, columns}, std::span(scales).first(num_scales),
                      std::span(codes).first(num_codes));
  };

  EXPECT_TRUE(check(40, 4, 64));
  EXPECT_TRUE(check_rows(kShape, {{}, 0}, {}, {}));
  EXPECT_TRUE(check_rows(kShape, {{}, 32}, {}, {}));
  const Result<Done> zero_columns = check(0, 4, 64), ragged = check(41, 4, 64);
  ASSERT_FALSE(zero_columns);
  EXPECT_EQ(zero_columns.why().id, "formats.rows.columns");
  ASSERT_FALSE(ragged);
  EXPECT_EQ(ragged.why().id, "formats.rows.columns");
  const Result<Done> few_scales = check(40, 3, 64), few_codes = check(40, 4, 63);
  ASSERT_FALSE(few_scales);
  EXPECT_EQ(few_scales.why().id, "formats.rows.size");
  EXPECT_EQ(few_scales.why().expected, "4");
  EXPECT_EQ(few_scales.why().found, "3");
  ASSERT_FALSE(few_codes);
  EXPECT_EQ(few_codes.why().expected, "64");
}

}  // namespace block_test
}  // namespace fp4moe::formats
