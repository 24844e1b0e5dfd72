#include "fp4moe/kernels/cpu/ceiling.hpp"

#include <arm_neon.h>

namespace fp4moe::kernels::cpu::neon {

std::uint32_t fmla_multiply_adds(std::size_t rounds) noexcept;
std::uint64_t read_memory(const void* from, std::size_t bytes) noexcept;

std::uint32_t fmla_multiply_adds(std::size_t rounds) noexcept {
  float32x4_t sums[kCeilingSums] = {};
  for (float32x4_t& sum : sums) asm volatile("" : "+w"(sum));  // or one would stand for all
  float32x4_t a = vdupq_n_f32(1.0f);
  for (std::size_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+w"(a));  // the same operands, but the compiler must not know
    for (float32x4_t& sum : sums) sum = vfmaq_f32(sum, a, a);
  }
  float32x4_t total = sums[0];
  for (const float32x4_t sum : sums) total = vaddq_f32(total, sum);
  return vaddvq_u32(vreinterpretq_u32_f32(total));
}

std::uint64_t read_memory(const void* from, std::size_t bytes) noexcept {
  const auto* first = static_cast<const std::uint8_t*>(from);
  const std::uint8_t* second = first + bytes / 2;
  uint8x16_t sums[8] = {};
  for (std::size_t i = 0; i < bytes / 2; i += 64)
    for (std::size_t j = 0; j < 4; ++j) {
      sums[j] = veorq_u8(sums[j], vld1q_u8(first + i + 16 * j));
      sums[4 + j] = veorq_u8(sums[4 + j], vld1q_u8(second + i + 16 * j));
    }
  uint8x16_t total = sums[0];
  for (int j = 1; j < 8; ++j) total = veorq_u8(total, sums[j]);
  const uint64x2_t words = vreinterpretq_u64_u8(total);
  return vgetq_lane_u64(words, 0) ^ vgetq_lane_u64(words, 1);
}

}  // namespace fp4moe::kernels::cpu::neon
