#include "fp4moe/kernels/cpu/ceiling.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace fp4moe::kernels::cpu::portable {
namespace {

// The compiler may not see that it always adds the same.
template <class T>
T opaque(T value) {
  asm volatile("" : "+r"(value));
  return value;
}

template <class T>
std::array<T, kCeilingSums> run_multiply_adds(std::size_t rounds, T factor) {
  std::array<T, kCeilingSums> sums{};
  for (T& sum : sums) sum = opaque(sum);  // or one sum would stand for all
  for (std::size_t i = 0; i < rounds; ++i) {
    const T a = opaque(factor);
    for (T& sum : sums) sum = static_cast<T>(sum + a * factor);
  }
  return sums;
}

}  // namespace

std::uint32_t int8_multiply_adds(std::size_t rounds) noexcept {
  std::uint32_t total = 0;
  for (const std::uint32_t sum : run_multiply_adds<std::uint32_t>(rounds, 3)) total += sum;
  return total;
}

std::uint32_t f32_multiply_adds(std::size_t rounds) noexcept {
  const auto bits = static_cast<std::uint32_t>(rounds & 1) | 0x3F800000u;
  std::array<float, kCeilingSums> sums{};
  for (float& sum : sums) sum = std::bit_cast<float>(opaque(std::uint32_t{0}));
  const auto factor = std::bit_cast<float>(bits);
  for (std::size_t i = 0; i < rounds; ++i) {
    const auto a = std::bit_cast<float>(opaque(bits));
    for (float& sum : sums) sum += a * factor;
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  return std::bit_cast<std::uint32_t>(total);
}

std::uint64_t read_memory(const void* from, std::size_t bytes) noexcept {
  const auto* first = static_cast<const std::uint8_t*>(from);
  const std::uint8_t* second = first + bytes / 2;
  std::array<std::uint64_t, 4> sums{};
  for (std::size_t i = 0; i < bytes / 2; i += 16) {
    std::array<std::uint64_t, 4> words{};
    std::memcpy(words.data(), first + i, 16);
    std::memcpy(words.data() + 2, second + i, 16);
    for (std::size_t j = 0; j < 4; ++j) sums[j] ^= words[j];
  }
  return sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
}

}  // namespace fp4moe::kernels::cpu::portable
