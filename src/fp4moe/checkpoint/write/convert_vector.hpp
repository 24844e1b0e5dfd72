// Vectors around the experts (norms, biases, sinks) between the types of checkpoints and float32,
// which llama.cpp's arithmetic wants of them. Widening is exact; narrowing is done where it is.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fp4moe/tensor/dtype.hpp"

namespace fp4moe::checkpoint {

// BF16 or F16: what can be widened.
bool is_half(tensor::DType dtype);

// From a half type to F32 or back.
void convert_vector(tensor::DType from, tensor::DType to, std::span<const std::byte> in,
                    std::vector<std::byte>& out);
std::uint64_t converted_bytes(tensor::DType from, tensor::DType to, std::uint64_t bytes);

// True if every float32 of `in` is a number of the half type, bit for bit.
bool fits_half(tensor::DType half, std::span<const std::byte> in);

}  // namespace fp4moe::checkpoint
