#include "fp4moe/backends/tensor_core/transforms.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "fp4moe/formats/e4m3_parts.hpp"
#include "fp4moe/formats/e4m3fn.hpp"

namespace fp4moe::backends::tensor_core {
namespace transforms_test {

TEST(E4m3Parts, AreTheValueOfEveryPositiveCode) {
  for (int code = 1; code < 0x7F; ++code) {
    const auto [exponent, fraction] = formats::e4m3_parts(code);
    EXPECT_EQ(std::ldexp(1.0f + static_cast<float>(fraction) / 8, exponent),
              formats::E4m3fn::decode(static_cast<std::uint8_t>(code)))
        << code;
  }
}

TEST(TensorCore, NormalizedScalesAreDistinctAndOrdered) {
  int last = -1;
  for (int code = 1; code < 0x7F; ++code) {
    const int byte = kNvfp4Scales.byte(code, 0);
    EXPECT_GT(byte, last) << code;
    last = byte;
  }
  EXPECT_EQ(kNvfp4Scales.byte(0, 0), 0xF0);
  EXPECT_FALSE(kNvfp4Scales.exponent({.has_negative = true}, tensor::DType::bf16));
}

}  // namespace transforms_test
}  // namespace fp4moe::backends::tensor_core
