#include "fp4moe/kernels/cpu/ceiling.hpp"

#include <arm_neon.h>

namespace fp4moe::kernels::cpu::neon_dotprod {

std::uint32_t sdot_multiply_adds(std::size_t rounds) noexcept;

std::uint32_t sdot_multiply_adds(std::size_t rounds) noexcept {
  int32x4_t sums[kCeilingSums] = {};
  for (int32x4_t& sum : sums) asm volatile("" : "+w"(sum));  // or one would stand for all
  int8x16_t a = vdupq_n_s8(3);
  for (std::size_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+w"(a));  // the same operands, but the compiler must not know
    for (int32x4_t& sum : sums) sum = vdotq_s32(sum, a, a);
  }
  uint32x4_t total = vdupq_n_u32(0);  // unsigned: the sums may wrap
  for (const int32x4_t sum : sums) total = vaddq_u32(total, vreinterpretq_u32_s32(sum));
  return vaddvq_u32(total);
}

}  // namespace fp4moe::kernels::cpu::neon_dotprod
