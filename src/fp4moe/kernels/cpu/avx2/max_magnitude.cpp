#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx2/block_codec.hpp"
#include "fp4moe/kernels/cpu/avx2/lanes.hpp"
#include "fp4moe/kernels/cpu/block_codec.hpp"
#include "fp4moe/kernels/cpu/portable/block_codec.hpp"

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

// The largest of a group's value and the rest's, with NaN in one form.
float larger(std::uint32_t bits, float rest) {
  const std::uint32_t rest_bits = bits_of(rest);
  const std::uint32_t largest = bits > rest_bits ? bits : rest_bits;
  return float_of(largest > 0x7F800000 ? 0x7FC00000 : largest);
}

}  // namespace

float max_magnitude(const MaxMagnitude& work) noexcept {
  const std::size_t per_group = work.element == Element::f32 ? 16 : 32;
  const std::size_t groups = work.count / per_group;
  const auto* input = static_cast<const std::uint8_t*>(work.input);
  MaxMagnitude rest = work;
  rest.input = input + 64 * groups;
  rest.count = work.count - groups * per_group;
  const float of_rest = portable::max_magnitude(rest);
  if (work.element == Element::f32) return larger(largest32(input, groups), of_rest);
  const std::uint32_t bits = largest16(input, groups);
  if (work.element == Element::bf16) return larger(bits << 16, of_rest);
  const auto code = static_cast<std::uint16_t>(bits);
  const float value =
      portable::max_magnitude({.input = &code, .element = Element::f16, .count = 1});
  return larger(bits_of(value), of_rest);
}

}  // namespace fp4moe::kernels::cpu::avx2
