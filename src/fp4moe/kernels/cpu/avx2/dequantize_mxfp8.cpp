// MXFP8 to bf16 or f32. The fields of E4M3FN, moved into those of an f16, read as the value times
// 2^-8, so the f16 conversion does the work and the factor goes into the scale.
#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx2/block_codec.hpp"
#include "fp4moe/kernels/cpu/avx2/lanes.hpp"
#include "fp4moe/kernels/cpu/block_codec_driver.hpp"

namespace fp4moe::kernels::cpu::avx2 {
namespace {

struct Values {
  __m256 a, b;
};

[[gnu::always_inline]] inline Values decode(__m128i codes, __m256 scale) {
  const __m256i widened = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
  const __m256i fields =
      _mm256_and_si256(widened, _mm256_set1_epi16(static_cast<std::int16_t>(0xBF80)));
  return {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(fields)), scale),
          _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(fields, 1)), scale)};
}

[[gnu::always_inline]] inline void store_half(Values values, std::uint8_t* to, std::uint16_t) {
  const __m256i mixed = _mm256_packus_epi32(_mm256_srli_epi32(_mm256_castps_si256(values.a), 16),
                                            _mm256_srli_epi32(_mm256_castps_si256(values.b), 16));
  store256(to, _mm256_permute4x64_epi64(mixed, 0xD8));
}

[[gnu::always_inline]] inline void store_half(Values values, std::uint8_t* to, float) {
  store256(to, _mm256_castps_si256(values.a));
  store256(to + 32, _mm256_castps_si256(values.b));
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
    const __m256 factor = _mm256_set1_ps(float_of(scale));
    store_half(decode(_mm256_castsi256_si128(codes), factor), to, stored);
    store_half(decode(_mm256_extracti128_si256(codes, 1), factor), to + 16 * sizeof(Stored),
               stored);
  }
};

}  // namespace

void dequantize_mxfp8(const DequantizeBlocks& work) noexcept { decode_mxfp8<Decoder>(work); }

}  // namespace fp4moe::kernels::cpu::avx2
