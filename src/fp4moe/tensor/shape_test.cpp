#include "fp4moe/tensor/shape.hpp"

#include <gtest/gtest.h>

namespace fp4moe::tensor {
namespace shape_test {

constexpr std::uint64_t kHuge = std::uint64_t{1} << 40;

TEST(Shape, ReadsAsAList) {
  EXPECT_EQ(text(Shape{32, 5760, 90, 16}), "[32, 5760, 90, 16]");
  EXPECT_EQ(text(Shape{}), "[]");
}

TEST(Shape, CountsElements) {
  EXPECT_EQ(element_count({}), 1u);
  EXPECT_EQ(element_count({3, 5}), 15u);
  EXPECT_EQ(element_count({kHuge, kHuge, 0}), 0u);
  EXPECT_EQ(element_count({kHuge, kHuge}), std::nullopt);
}

TEST(ByteCount, PacksWholeTensorsOfSubByteTypes) {
  EXPECT_EQ(byte_count(DType::f4, {3, 2}), 3u);
  EXPECT_EQ(byte_count(DType::f4, {3, 3}), std::nullopt);
  EXPECT_EQ(byte_count(DType::f6_e2m3, {2, 2}), 3u);
  EXPECT_EQ(byte_count(DType::f6_e3m2, {3, 2}), std::nullopt);
  EXPECT_EQ(byte_count(DType::f4, {}), std::nullopt);
  EXPECT_EQ(byte_count(DType::f4, {0, 7}), 0u);
}

TEST(ByteCount, LaysBlocksAlongRows) {
  EXPECT_EQ(byte_count(DType::gguf_mxfp4, {3, 64}), 3u * 2 * 17);
  EXPECT_EQ(byte_count(DType::gguf_mxfp4, {64, 3}), std::nullopt);
  EXPECT_EQ(byte_count(DType::gguf_nvfp4, {2, 128}), 2u * 2 * 36);
  EXPECT_EQ(byte_count(DType::gguf_q8_0, {}), std::nullopt);
}

TEST(ByteCount, NoticesOverflow) {
  EXPECT_EQ(byte_count(DType::f64, {std::uint64_t{1} << 61}), std::nullopt);
  EXPECT_EQ(byte_count(DType::u8, {UINT64_MAX}), UINT64_MAX);
}

}  // namespace shape_test
}  // namespace fp4moe::tensor
