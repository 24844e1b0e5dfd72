#include "fp4moe/kernels/cpu/ceiling.hpp"

#include <arm_neon.h>

namespace fp4moe::kernels::cpu::neon_bf16 {

std::uint32_t bfmmla_multiply_adds(std::size_t rounds) noexcept;

std::uint32_t bfmmla_multiply_adds(std::size_t rounds) noexcept {
  float32x4_t sums[kCeilingSums] = {};
  for (float32x4_t& sum : sums) asm volatile("" : "+w"(sum));  // or one would stand for all
  bfloat16x8_t a = vreinterpretq_bf16_u16(vdupq_n_u16(0x3F81));
  for (std::size_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+w"(a));  // the same operands, but the compiler must not know
    for (float32x4_t& sum : sums) sum = vbfmmlaq_f32(sum, a, a);
  }
  float32x4_t total = sums[0];
  for (const float32x4_t sum : sums) total = vaddq_f32(total, sum);
  return vaddvq_u32(vreinterpretq_u32_f32(total));
}

}  // namespace fp4moe::kernels::cpu::neon_bf16
