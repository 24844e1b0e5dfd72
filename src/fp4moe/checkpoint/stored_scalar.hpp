// Global and input scales as a checkpoint stores them: float32 (Quark's input scales in the model's
// type), alone or one for each expert, the factor itself or (compressed-tensors) its reciprocal.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/dialect.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"
#include "fp4moe/tensor/dtype.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::checkpoint {

// The number for `expert` as it is stored. The tensor holds one number, or one for each expert.
inline float stored_scalar(const tensor::Store& store, const tensor::StoredTensor& tensor,
                           std::uint64_t expert) {
  const std::span<const std::byte> bytes = store.bytes(tensor);
  const std::size_t size = tensor::row(tensor.entry.dtype).block_bytes;
  const std::byte* at = bytes.data() + (bytes.size() == size ? 0 : expert) * size;
  if (size == sizeof(float)) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t half = 0;
  std::memcpy(&half, at, sizeof half);
  return tensor.entry.dtype == tensor::DType::bf16 ? formats::Bf16::decode(half)
                                                   : formats::F16::decode(half);
}

// True if the tensor holds a number for each expert.
inline bool has_scalar_for_each(const tensor::StoredTensor& tensor) {
  return tensor.entry.bytes != tensor::row(tensor.entry.dtype).block_bytes;
}

// As a factor: compressed-tensors stores reciprocals, of global and input scales alike.
inline float canonical_scale(const DialectRow& dialect, float stored) {
  return dialect.global_scale == GlobalScale::divides ? 1.0f / stored : stored;
}

// A global scale as a factor, or why it cannot be one.
inline Result<float> read_global_scale(const tensor::Store& store, const DialectRow& dialect,
                                       const tensor::StoredTensor& tensor, std::uint64_t expert) {
  const float stored = stored_scalar(store, tensor, expert);
  const float factor = canonical_scale(dialect, stored);
  if (std::isfinite(stored) && stored > 0 && std::isfinite(factor) && factor > 0) return factor;
  return invalid("scale.global", "invalid global scale")
      .in(store.path(tensor))
      .at(tensor.entry.name)
      .expects("a finite number above zero", fmt::format("{} for expert {}", stored, expert));
}

}  // namespace fp4moe::checkpoint
