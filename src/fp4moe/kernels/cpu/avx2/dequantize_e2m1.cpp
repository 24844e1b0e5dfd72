// MXFP4 and NVFP4 to bf16, f16 or f32. As in neon/dequantize_e2m1.cpp, the sixteen results of each
// scale are computed once per call by the portable reference and looked up as bytes.
#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx2/block_codec.hpp"
#include "fp4moe/kernels/cpu/avx2/lanes.hpp"
#include "fp4moe/kernels/cpu/block_codec_driver.hpp"

namespace fp4moe::kernels::cpu::avx2 {
namespace {

// Byte b of 32 results: the first sixteen codes with one table, the others with another.
[[gnu::always_inline]] inline __m256i look_up(const std::uint8_t* first, const std::uint8_t* second,
                                              std::size_t b, __m256i codes) {
  const __m256i table = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(first + 16 * b)),
                                                load128(second + 16 * b), 1);
  return _mm256_shuffle_epi8(table, codes);
}

[[gnu::always_inline]] inline void store_lanes(std::uint8_t* to, __m256i a, __m256i b, int lane) {
  store256(to, lane == 0 ? _mm256_permute2x128_si256(a, b, 0x20)
                         : _mm256_permute2x128_si256(a, b, 0x31));
}

struct Expander {
  static constexpr auto kMakeTable = portable::e2m1_planes;

  template <std::size_t kBytes>
  [[gnu::always_inline]] static inline void expand(const std::uint8_t* first,
                                                   const std::uint8_t* second,
                                                   const std::uint8_t* packed, std::uint8_t* to) {
    const __m128i bytes = load128(packed);
    const __m128i mask = _mm_set1_epi8(15);
    const __m128i even = _mm_and_si128(bytes, mask);
    const __m128i odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
    const __m256i codes = _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_unpacklo_epi8(even, odd)), _mm_unpackhi_epi8(even, odd), 1);
    const __m256i byte0 = look_up(first, second, 0, codes);
    const __m256i byte1 = look_up(first, second, 1, codes);
    const __m256i low_a = _mm256_unpacklo_epi8(byte0, byte1);
    const __m256i low_b = _mm256_unpackhi_epi8(byte0, byte1);
    if constexpr (kBytes == 2) {
      store_lanes(to, low_a, low_b, 0);
      store_lanes(to + 32, low_a, low_b, 1);
    } else {
      const __m256i byte2 = look_up(first, second, 2, codes);
      const __m256i byte3 = look_up(first, second, 3, codes);
      const __m256i high_a = _mm256_unpacklo_epi8(byte2, byte3);
      const __m256i high_b = _mm256_unpackhi_epi8(byte2, byte3);
      const __m256i r0 = _mm256_unpacklo_epi16(low_a, high_a);
      const __m256i r1 = _mm256_unpackhi_epi16(low_a, high_a);
      const __m256i r2 = _mm256_unpacklo_epi16(low_b, high_b);
      const __m256i r3 = _mm256_unpackhi_epi16(low_b, high_b);
      store_lanes(to, r0, r1, 0);
      store_lanes(to + 32, r2, r3, 0);
      store_lanes(to + 64, r0, r1, 1);
      store_lanes(to + 96, r2, r3, 1);
    }
  }
};

}  // namespace

void dequantize_mxfp4(const DequantizeBlocks& work) noexcept {
  return expand_mxfp4<Expander>(work);
}

void dequantize_nvfp4(const DequantizeBlocks& work) noexcept {
  return expand_nvfp4<Expander>(work);
}

}  // namespace fp4moe::kernels::cpu::avx2
