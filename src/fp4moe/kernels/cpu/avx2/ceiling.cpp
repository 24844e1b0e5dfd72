#include "fp4moe/kernels/cpu/ceiling.hpp"

#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx2/lanes.hpp"

namespace fp4moe::kernels::cpu::avx2 {

std::uint32_t maddubs_multiply_adds(std::size_t rounds) noexcept;
std::uint32_t fma_multiply_adds(std::size_t rounds) noexcept;
std::uint64_t read_memory(const void* from, std::size_t bytes) noexcept;

// Products of bytes summed to 32 bits as in a kernel: vpmaddubsw, vpmaddwd, vpaddd.
std::uint32_t maddubs_multiply_adds(std::size_t rounds) noexcept {
  __m256i sums[kCeilingSums] = {};
  for (__m256i& sum : sums) asm volatile("" : "+x"(sum));  // or one would stand for all
  __m256i a = _mm256_set1_epi8(3);
  const __m256i ones = _mm256_set1_epi16(1);
  for (std::size_t i = 0; i < rounds; ++i)
    for (__m256i& sum : sums) {
      asm volatile("" : "+x"(a));  // the same operands, but the compiler must not know
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, a), ones));
    }
  __m256i total = sums[0];
  for (const __m256i sum : sums) total = _mm256_add_epi32(total, sum);
  return largest_lane(total);
}

std::uint32_t fma_multiply_adds(std::size_t rounds) noexcept {
  __m256 sums[kCeilingSums] = {};
  for (__m256& sum : sums) asm volatile("" : "+x"(sum));  // or one would stand for all
  __m256 a = _mm256_set1_ps(1.0f);
  for (std::size_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+x"(a));
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(a, a, sum);
  }
  __m256 total = sums[0];
  for (const __m256 sum : sums) total = _mm256_add_ps(total, sum);
  return largest_lane(_mm256_castps_si256(total));
}

std::uint64_t read_memory(const void* from, std::size_t bytes) noexcept {
  const auto* first = static_cast<const std::uint8_t*>(from);
  const std::uint8_t* second = first + bytes / 2;
  __m256i sums[8] = {};
  for (std::size_t i = 0; i < bytes / 2; i += 128)
    for (std::size_t j = 0; j < 4; ++j) {
      sums[j] = _mm256_xor_si256(sums[j], load256(first + i + 32 * j));
      sums[4 + j] = _mm256_xor_si256(sums[4 + j], load256(second + i + 32 * j));
    }
  __m256i total = sums[0];
  for (int j = 1; j < 8; ++j) total = _mm256_xor_si256(total, sums[j]);
  return static_cast<std::uint64_t>(
      _mm256_extract_epi64(total, 0) ^ _mm256_extract_epi64(total, 1) ^
      _mm256_extract_epi64(total, 2) ^ _mm256_extract_epi64(total, 3));
}

}  // namespace fp4moe::kernels::cpu::avx2
