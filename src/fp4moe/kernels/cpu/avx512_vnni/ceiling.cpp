#include "fp4moe/kernels/cpu/ceiling.hpp"

#include <immintrin.h>

namespace fp4moe::kernels::cpu::avx512_vnni {

std::uint32_t dpbusd_multiply_adds(std::size_t rounds) noexcept;

std::uint32_t dpbusd_multiply_adds(std::size_t rounds) noexcept {
  __m512i sums[kCeilingSums] = {};
  for (__m512i& sum : sums) asm volatile("" : "+v"(sum));  // or one would stand for all
  __m512i a = _mm512_set1_epi8(3);
  for (std::size_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(a));  // the same operands, but the compiler must not know
    for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, a);
  }
  __m512i total = sums[0];
  for (const __m512i sum : sums) total = _mm512_add_epi32(total, sum);
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm512_castsi512_si128(total)));
}

}  // namespace fp4moe::kernels::cpu::avx512_vnni
