#include "fp4moe/tensor/tensor.hpp"

#include <utility>

#include <gtest/gtest.h>

namespace fp4moe::tensor {
namespace tensor_test {

TEST(Tensor, HasTheBytesOfItsShape) {
  Result<Tensor> tensor = Tensor::allocate(DType::bf16, {3, 5});
  ASSERT_TRUE(tensor);
  EXPECT_EQ(tensor->bytes().size(), 30u);
  EXPECT_EQ(tensor->dtype(), DType::bf16);
  EXPECT_EQ(tensor->shape(), (Shape{3, 5}));
  tensor->as<std::uint16_t>()[14] = 0x3F80;
  EXPECT_EQ(std::as_const(*tensor).as<std::uint16_t>()[14], 0x3F80);
}

TEST(Tensor, ShowsAViewOfItself) {
  Result<Tensor> tensor = Tensor::allocate(DType::u8, {4});
  ASSERT_TRUE(tensor);
  const TensorView view = tensor->view();
  EXPECT_EQ(view.bytes.data(), tensor->bytes().data());
  EXPECT_EQ(view.shape, tensor->shape());
}

TEST(Tensor, MayBeAScalarOrEmpty) {
  EXPECT_EQ(Tensor::allocate(DType::f32, {})->bytes().size(), 4u);
  EXPECT_EQ(Tensor::allocate(DType::f32, {0, 7})->bytes().size(), 0u);
}

TEST(Tensor, RefusesSizesThatOverflowOrSplitABlock) {
  const std::uint64_t huge = std::uint64_t{1} << 40;
  for (const auto& [dtype, shape] :
       {std::pair(DType::u8, Shape{huge, huge}), std::pair(DType::f4, Shape{3}),
        std::pair(DType::gguf_mxfp4, Shape{32, 31})}) {
    const Result<Tensor> tensor = Tensor::allocate(dtype, shape);
    ASSERT_FALSE(tensor);
    EXPECT_EQ(tensor.why().id, "tensor.size");
  }
}

TEST(Tensor, SaysWhenThereIsNoMemory) {
  const Result<Tensor> tensor = Tensor::allocate(DType::u8, {std::uint64_t{1} << 60});
  ASSERT_FALSE(tensor);
  EXPECT_EQ(tensor.why().code, ErrorCode::exhausted);
}

}  // namespace tensor_test
}  // namespace fp4moe::tensor
