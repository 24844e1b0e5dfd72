// One tensor in a file, or to be in one.
#pragma once
#include <cstdint>
#include <string>

#include "fp4moe/tensor/shape.hpp"

namespace fp4moe::tensor {

// A tensor of a file of either kind. `begin` counts from the start of the file.
struct TensorEntry {
  std::string name{};
  DType dtype = DType::u8;
  Shape shape{};
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

// A tensor of a file to be written.
struct TensorSpec {
  std::string name{};
  DType dtype = DType::u8;
  Shape shape{};
};

}  // namespace fp4moe::tensor
