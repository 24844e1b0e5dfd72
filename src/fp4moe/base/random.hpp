// Seeded random numbers that are the same on every machine: splitmix64.
#pragma once
#include <cstdint>

namespace fp4moe {

class SplitMix64 {
 public:
  explicit constexpr SplitMix64(std::uint64_t seed) : state_(seed) {}

  constexpr std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  // Uniform in [0, 1) with 24 bits, exact in float.
  constexpr float unit() { return static_cast<float>(next() >> 40) * 0x1p-24f; }

 private:
  std::uint64_t state_;
};

static_assert(SplitMix64(1).next() == 0x910A2DEC89025CC1u);

}  // namespace fp4moe
