#include "fp4moe/kernels/cpu/ceiling.hpp"

#include <immintrin.h>

namespace fp4moe::kernels::cpu::avx512 {

std::uint32_t fma_multiply_adds(std::size_t rounds) noexcept;

std::uint32_t fma_multiply_adds(std::size_t rounds) noexcept {
  __m512 sums[kCeilingSums] = {};
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));  // or one would stand for all
  __m512i a = _mm512_set1_epi32(0x3F800000);
  for (std::size_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(a));  // the same operands, but the compiler must not know
    for (__m512& sum : sums)
      sum = _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(a), sum);
  }
  __m512 total = sums[0];
  for (const __m512 sum : sums) total = _mm512_add_ps(total, sum);
  return static_cast<std::uint32_t>(
      _mm_cvtsi128_si32(_mm512_castsi512_si128(_mm512_castps_si512(total))));
}

}  // namespace fp4moe::kernels::cpu::avx512
