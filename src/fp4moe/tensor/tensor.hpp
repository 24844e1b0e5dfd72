// A tensor is a type, a shape and bytes: owned (Tensor) or seen (TensorView). Dense, row-major.
#pragma once
#include <cstddef>
#include <span>

#include "fp4moe/base/result.hpp"
#include "fp4moe/tensor/buffer.hpp"
#include "fp4moe/tensor/shape.hpp"

namespace fp4moe::tensor {

struct TensorView {
  DType dtype = DType::u8;
  Shape shape{};
  std::span<const std::byte> bytes{};
};

class Tensor {
 public:
  Tensor() = default;
  // Zeroed; refuses sizes that overflow or do not fill their blocks.
  static Result<Tensor> allocate(DType dtype, Shape shape);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::span<std::byte> bytes() { return buffer_.bytes(); }
  std::span<const std::byte> bytes() const { return buffer_.bytes(); }
  TensorView view() const { return {dtype_, shape_, buffer_.bytes()}; }
  template <class T>
  std::span<T> as() {
    return buffer_.as<T>();
  }
  template <class T>
  std::span<const T> as() const {
    return buffer_.as<T>();
  }

 private:
  DType dtype_ = DType::u8;
  Shape shape_{};
  Buffer buffer_{};
};

}  // namespace fp4moe::tensor
