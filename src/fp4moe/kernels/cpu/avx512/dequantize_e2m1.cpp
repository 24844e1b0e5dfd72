// MXFP4 and NVFP4 to bf16, f16 or f32. The sixteen results of each scale are computed once per call
// by the portable reference; a permutation looks whole results up, 32 or 16 at a time. It reads
// only the low bits of an index, so most of a nibble's neighbors need not be masked away.
#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx512/block_codec.hpp"
#include "fp4moe/kernels/cpu/avx512/lanes.hpp"
#include "fp4moe/kernels/cpu/block_codec_driver.hpp"

namespace fp4moe::kernels::cpu::avx512 {
namespace {

// Sixteen results of four bytes from eight bytes of codes.
[[gnu::always_inline]] inline __m512i look_up16(const std::uint8_t* table,
                                                const std::uint8_t* packed) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed));
  const __m512i wide = _mm512_cvtepu8_epi64(bytes);
  const __m512i codes = _mm512_or_si512(wide, _mm512_slli_epi64(wide, 28));
  return _mm512_permutexvar_epi32(codes, load512(table));
}

struct Expander {
  static constexpr auto kMakeTable = portable::e2m1_results;

  template <std::size_t kBytes>
  [[gnu::always_inline]] static inline void expand(const std::uint8_t* first,
                                                   const std::uint8_t* second,
                                                   const std::uint8_t* packed, std::uint8_t* to) {
    if constexpr (kBytes == 4) {
      store512(to, look_up16(first, packed));
      store512(to + 64, look_up16(second, packed + 8));
    } else {
      const __m512i wide = _mm512_cvtepu8_epi32(load128(packed));
      const __m512i nibbles = _mm512_and_si512(_mm512_or_si512(wide, _mm512_slli_epi32(wide, 12)),
                                               _mm512_set1_epi16(15));
      const __m512i in_second =
          _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
      const __m512i table =
          _mm512_inserti64x4(_mm512_castsi256_si512(load256(first)), load256(second), 1);
      store512(to, _mm512_permutexvar_epi16(_mm512_or_si512(nibbles, in_second), table));
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

}  // namespace fp4moe::kernels::cpu::avx512
