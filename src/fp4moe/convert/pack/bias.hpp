// Biases and other small vectors, element by element: from any of the float types that checkpoints
// have to those that kernels read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/layout/layout.hpp"
#include "fp4moe/tensor/dtype.hpp"

namespace fp4moe::convert {

// The type in which a layout stores biases that are loaded as `loaded`.
tensor::DType stored_bias(layout::BiasType type, tensor::DType loaded);

struct BiasStore {
  std::span<std::byte> bytes{};
  tensor::DType dtype = tensor::DType::f32;  // f32, bf16 or f16
};

float get_float(std::span<const std::byte> bytes, tensor::DType dtype, std::uint64_t index);
// Rounds to nearest even; false when the value changes.
bool put_float(float value, const BiasStore& to, std::uint64_t index);
// Element `from` of a bias; nothing where there is no bias.
bool put_bias(const checkpoint::BiasView& bias, std::uint64_t from, const BiasStore& to,
              std::uint64_t index);

}  // namespace fp4moe::convert
