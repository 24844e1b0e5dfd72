// Rows, quantized rows, numerics: the small tables that engines stand on.
#include "fp4moe/moe/rows.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/mxfp8.hpp"
#include "fp4moe/formats/nvfp4.hpp"
#include "fp4moe/moe/numerics.hpp"
#include "fp4moe/moe/quantized_rows.hpp"

namespace fp4moe::moe {
namespace rows_test {

std::vector<float> some_values(std::size_t count, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<float> values(count);
  for (float& value : values)
    value = (2 * random.unit() - 1) * std::ldexp(1.0f, static_cast<int>(random.next() % 9) - 4);
  return values;
}

TEST(Rows, ComeBackAsTheTypeHoldsThem) {
  const std::vector<float> values = some_values(37, 1);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32, DType::f64}) {
    const std::uint64_t stride = 37 * element_bytes(dtype) + 5;  // unaligned on purpose
    std::vector<std::byte> memory(3 * stride, std::byte{0xAA});
    const MutableRows rows{memory.data(), dtype, 3, 37, stride};
    write_row(std::span<const float>(values), rows, 1);
    std::vector<float> back(37);
    std::vector<double> wide(37);
    read_row(ConstRows(rows), 1, std::span(back));
    read_row(ConstRows(rows), 1, std::span(wide));
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(double{back[i]}, wide[i]);
      const float allowed = dtype == DType::bf16  ? std::fabs(values[i]) / 256
                            : dtype == DType::f16 ? std::fabs(values[i]) / 2048 + 1e-7f
                                                  : 0.0f;
      EXPECT_NEAR(back[i], values[i], allowed) << tensor::name(dtype);
    }
    for (std::size_t i = 0; i < stride; ++i) EXPECT_EQ(memory[i], std::byte{0xAA});
    EXPECT_EQ(memory[2 * stride - 1], std::byte{0xAA});
  }
}

TEST(Rows, RoundFloat64ThroughFloat32) {
  // Just above the middle between two bf16 numbers, but not in float32: ties to even.
  const double value = 1.0 + 0x1p-8 + 0x1p-40;
  std::uint16_t half = 0;
  const MutableRows rows = dense_rows(std::span(&half, 1), DType::bf16, 1, 1);
  write_row(std::span<const double>(&value, 1), rows, 0);
  EXPECT_EQ(half, 0x3F80);
  EXPECT_EQ(rounded_to_bf16(value), 1.0);
}

TEST(Rows, RefuseWhatCannotBeRead) {
  std::vector<float> memory(8);
  ConstRows rows = dense_rows(std::span<const float>(memory), DType::f32, 2, 4);
  EXPECT_TRUE(check_rows(rows, "tokens", 4));
  EXPECT_EQ(check_rows(rows, "tokens", 3).why().id, "rows.columns");
  rows.dtype = DType::i32;
  EXPECT_EQ(check_rows(rows, "tokens", 4).why().id, "rows.type");
  rows.dtype = DType::f32;
  rows.stride = 15;
  EXPECT_EQ(check_rows(rows, "tokens", 4).why().id, "rows.stride");
  rows.rows = 1;
  EXPECT_TRUE(check_rows(rows, "tokens", 4));
  rows.data = nullptr;
  EXPECT_EQ(check_rows(rows, "tokens", 4).why().id, "rows.memory");
  rows.rows = 0;
  EXPECT_TRUE(check_rows(rows, "tokens", 4));
}

class EveryKey : public ::testing::TestWithParam<ActivationKey> {};

TEST_P(EveryKey, DecodesWhatItEncodedAndNothingElse) {
  const RowQuantizer how{.key = GetParam(),
                         .global_scale = GetParam() == ActivationKey::nvfp4 ? 40.0f : 0.05f};
  for (const std::size_t columns : {1u, 16u, 33u, 128u, 300u}) {
    std::vector<float> values = some_values(columns, columns);
    values[columns / 2] = -0.0f;
    std::vector<std::byte> wire(encoded_bytes(how.key, columns) + 1, std::byte{0x5A});
    encode_row(how, values, std::span(wire).first(wire.size() - 1));
    EXPECT_EQ(wire.back(), std::byte{0x5A});
    std::vector<float> decoded(columns), direct = values;
    decode_row(how, std::span(wire).first(wire.size() - 1), decoded);
    quantize_dequantize(how, direct);
    EXPECT_EQ(decoded, direct) << columns;
    const float factor = shared_factor(how);
    const float largest =
        *std::ranges::max_element(values, {}, [](float x) { return std::fabs(x); });
    // 4-bit codes are off by a sixth of the block's largest value at most, 8-bit ones by a 28th.
    const bool is_fp4 = how.key == ActivationKey::nvfp4 || how.key == ActivationKey::mxfp4 ||
                        how.key == ActivationKey::nvfp4_token;
    for (std::size_t i = 0; i < columns; ++i)
      EXPECT_NEAR(decoded[i] * factor, values[i], std::fabs(largest) / (is_fp4 ? 4 : 14));
  }
  EXPECT_EQ(encoded_bytes(how.key, 0), 0u);
  quantize_dequantize(how, {});
}

TEST_P(EveryKey, KeepsZeros) {
  const RowQuantizer how{.key = GetParam()};
  std::vector<float> zeros(64, 0.0f);
  quantize_dequantize(how, zeros);
  for (const float zero : zeros) EXPECT_EQ(zero, 0.0f);
}

INSTANTIATE_TEST_SUITE_P(Keys, EveryKey,
                         ::testing::Values(ActivationKey::none, ActivationKey::mxfp8,
                                           ActivationKey::mxfp4, ActivationKey::nvfp4,
                                           ActivationKey::fp8_static_tensor,
                                           ActivationKey::fp8_block128, ActivationKey::fp8_token,
                                           ActivationKey::nvfp4_token),
                         [](const auto& chosen) {
                           return std::string(oracle::name(chosen.param));
                         });

TEST(QuantizedRows, TakeTheBytesTheTableSays) {
  EXPECT_EQ(encoded_bytes(ActivationKey::none, 64), 128u);
  EXPECT_EQ(encoded_bytes(ActivationKey::mxfp8, 64), 64u + 2);
  EXPECT_EQ(encoded_bytes(ActivationKey::mxfp4, 64), 32u + 2);
  EXPECT_EQ(encoded_bytes(ActivationKey::nvfp4, 64), 32u + 4);
  EXPECT_EQ(encoded_bytes(ActivationKey::fp8_static_tensor, 64), 64u);
  EXPECT_EQ(encoded_bytes(ActivationKey::fp8_block128, 256), 256u + 8);
  EXPECT_EQ(encoded_bytes(ActivationKey::fp8_token, 64), 64u + 4);
  EXPECT_EQ(encoded_bytes(ActivationKey::nvfp4_token, 64), 32u + 4 + 4);
}

TEST(Numerics, HaveNamesOfTheirOwn) {
  for (const Numerics& row : kNumerics) {
    const auto found = require_numerics(row.id);
    ASSERT_TRUE(found);
    EXPECT_EQ(*found, &row);
    EXPECT_FALSE(row.says.empty()) << row.id;
  }
  const auto missing = require_numerics("blurred");
  EXPECT_EQ(missing.why().id, "numerics.unknown");
  EXPECT_NE(missing.why().expected.find("triton_fused"), std::string::npos);
}

}  // namespace rows_test
}  // namespace fp4moe::moe
