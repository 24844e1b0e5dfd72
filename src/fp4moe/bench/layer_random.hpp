// Numbers that are about normal, for weights and tokens.
#pragma once
#include "fp4moe/base/random.hpp"

namespace fp4moe::bench {

// Variance 1: the sum of twelve uniform numbers, less 6.
inline float nearly_normal(SplitMix64& random) {
  float sum = -6.0f;
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t bits = random.next();
    for (int part = 0; part < 4; ++part)
      sum += static_cast<float>((bits >> (16 * part)) & 0xFFFF) * 0x1p-16f;
  }
  return sum;
}

}  // namespace fp4moe::bench
