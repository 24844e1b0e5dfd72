// Checks of a tensor argument: a type, a shape, memory.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/tensor/tensor.hpp"

namespace fp4moe::vllm {

// Errors: vllm.tensor, naming the tensor, the requirement and the fact.
Result<Done> check_tensor(std::string_view name, const tensor::TensorView& given,
                          std::initializer_list<tensor::DType> types, const tensor::Shape& shape);
// The same for one whose sizes are to be learned: `dimensions` of them, none zero.
Result<Done> check_dimensions(std::string_view name, const tensor::TensorView& given,
                              std::size_t dimensions);

// Numbers of a tensor of F32. Errors: vllm.tensor.
Result<std::vector<float>> floats_of(std::string_view name, const tensor::TensorView& given);

inline bool is_given(const tensor::TensorView& given) {
  return !given.shape.empty() || given.bytes.data() != nullptr;
}

}  // namespace fp4moe::vllm
