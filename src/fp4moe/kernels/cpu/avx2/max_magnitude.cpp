#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx2/block_codec.hpp"
#include "fp4moe/kernels/cpu/avx2/lanes.hpp"
#include "fp4moe/kernels/cpu/block_codec_driver.hpp"

namespace fp4moe::kernels::cpu::avx2 {
namespace {

// Magnitudes order as their bits do in every format here, so f16 is compared before it is widened.
std::uint32_t largest16(const std::uint8_t* from, std::size_t groups) {
  const __m256i mask = _mm256_set1_epi16(0x7FFF);
  __m256i a = _mm256_setzero_si256();
  __m256i b = _mm256_setzero_si256();
  for (std::size_t i = 0; i < groups; ++i, from += 64) {
    a = _mm256_max_epu16(a, _mm256_and_si256(load256(from), mask));
    b = _mm256_max_epu16(b, _mm256_and_si256(load256(from + 32), mask));
  }
  const __m256i both = _mm256_max_epu16(a, b);
  return largest_lane(_mm256_max_epu32(_mm256_srli_epi32(both, 16),
                                       _mm256_and_si256(both, _mm256_set1_epi32(0xFFFF))));
}

std::uint32_t largest32(const std::uint8_t* from, std::size_t groups) {
  const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i a = _mm256_setzero_si256();
  __m256i b = _mm256_setzero_si256();
  for (std::size_t i = 0; i < groups; ++i, from += 64) {
    a = _mm256_max_epu32(a, _mm256_and_si256(load256(from), mask));
    b = _mm256_max_epu32(b, _mm256_and_si256(load256(from + 32), mask));
  }
  return largest_lane(_mm256_max_epu32(a, b));
}

}  // namespace

float max_magnitude(const MaxMagnitude& work) noexcept {
  return drive_max_magnitude(work, largest16, largest32);
}

}  // namespace fp4moe::kernels::cpu::avx2
