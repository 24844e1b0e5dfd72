// Global and input scales as a checkpoint stores them: float32, alone or one for each expert, the
// factor itself or (compressed-tensors) its reciprocal.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

#include "fp4moe/base/result.hpp"
#include "fp4moe/tensor/files/store.hpp"
#include "fp4moe/weights/dialect.hpp"

namespace fp4moe::weights {

// The number for `expert` as it is stored. The tensor holds one number, or one for each expert.
inline float stored_scalar(const tensor::Store& store, const tensor::StoredTensor& tensor,
                           std::uint64_t expert) {
  const std::span<const std::byte> bytes = store.bytes(tensor);
  const std::size_t index = bytes.size() == sizeof(float) ? 0 : expert;
  float value = 0;
  std::memcpy(&value, bytes.data() + index * sizeof(float), sizeof(float));
  return value;
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
  return invalid("scale.global", "a global scale cannot scale anything")
      .in(store.path(tensor))
      .at(tensor.entry.name)
      .expects("a finite number above zero", fmt::format("{} for expert {}", stored, expert));
}

}  // namespace fp4moe::weights
