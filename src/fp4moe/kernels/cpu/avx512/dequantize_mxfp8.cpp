// MXFP8 to bf16 or f32. The fields of E4M3FN, moved into those of an f16, read as the value times
// 2^-8, so the f16 conversion does the work and the factor goes into the scale.
#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx512/block_codec.hpp"
#include "fp4moe/kernels/cpu/avx512/lanes.hpp"
#include "fp4moe/kernels/cpu/block_codec_driver.hpp"

namespace fp4moe::kernels::cpu::avx512 {
namespace {

[[gnu::always_inline]] inline __m512 decode(__m128i codes, __m512 scale) {
  const __m256i widened = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
  const __m256i fields =
      _mm256_and_si256(widened, _mm256_set1_epi16(static_cast<std::int16_t>(0xBF80)));
  return _mm512_mul_ps(_mm512_cvtph_ps(fields), scale);
}

[[gnu::always_inline]] inline void store_half(__m512 values, std::uint8_t* to, std::uint16_t) {
  const __m256i upper = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(values), 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), upper);
}

[[gnu::always_inline]] inline void store_half(__m512 values, std::uint8_t* to, float) {
  store512(to, _mm512_castps_si512(values));
}

struct Decoder {
  [[gnu::always_inline]] static inline __m256i load(const std::uint8_t* codes) {
    return load256(codes);
  }
  [[gnu::always_inline]] static inline bool has_nan(__m256i codes) {
    const __m256i nan = _mm256_set1_epi8(0x7F);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_and_si256(codes, nan), nan)) != 0;
  }
  template <class Stored>
  [[gnu::always_inline]] static inline void store(__m256i codes, std::uint32_t scale,
                                                  std::uint8_t* to, Stored stored) {
    const __m512 factor = _mm512_set1_ps(float_of(scale));
    store_half(decode(_mm256_castsi256_si128(codes), factor), to, stored);
    store_half(decode(_mm256_extracti128_si256(codes, 1), factor), to + 16 * sizeof(Stored),
               stored);
  }
};

}  // namespace

void dequantize_mxfp8(const DequantizeBlocks& work) noexcept { decode_mxfp8<Decoder>(work); }

}  // namespace fp4moe::kernels::cpu::avx512
