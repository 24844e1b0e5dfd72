#include "fp4moe/tensor/dtype.hpp"

#include <gtest/gtest.h>

namespace fp4moe::tensor {
namespace dtype_test {

TEST(DType, EveryNameLeadsBackToItsRow) {
  for (const DTypeRow& expected : kDTypes) {
    EXPECT_EQ(&row(expected.dtype), &expected);
    EXPECT_EQ(dtype_from_safetensors(expected.name),
              expected.in_safetensors ? std::optional(expected.dtype) : std::nullopt);
    if (expected.ggml_type >= 0) {
      EXPECT_EQ(dtype_from_ggml(static_cast<std::uint32_t>(expected.ggml_type)), expected.dtype);
    }
  }
}

TEST(DType, UnknownNamesAndNumbersHaveNone) {
  EXPECT_EQ(dtype_from_safetensors("F128"), std::nullopt);
  EXPECT_EQ(dtype_from_safetensors("f32"), std::nullopt);
  EXPECT_EQ(dtype_from_safetensors(""), std::nullopt);
  EXPECT_EQ(dtype_from_safetensors("MXFP4"), std::nullopt);
  EXPECT_EQ(dtype_from_ggml(4), std::nullopt);
  EXPECT_EQ(dtype_from_ggml(UINT32_MAX), std::nullopt);
}

TEST(DType, BlocksHaveTheSizesOfTheirFormats) {
  EXPECT_EQ(row(DType::gguf_mxfp4).block_bytes, 1u + 32 / 2);
  EXPECT_EQ(row(DType::gguf_nvfp4).block_bytes, 64u / 16 + 64 / 2);
  EXPECT_EQ(row(DType::gguf_q8_0).block_bytes, 2u + 32);
}

}  // namespace dtype_test
}  // namespace fp4moe::tensor
