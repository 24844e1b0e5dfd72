// GEMM of 16 rows, for CPUs with AVX-512 that lack dot products of bytes.
#include "fp4moe/kernels/cpu/x86_maddubs_gemm.hpp"

namespace fp4moe::kernels::cpu::avx512 {
namespace {

struct SixteenRows {
  using Integers = __m512i;
  using Floats = __m512;
  static constexpr std::size_t kRows = 16;

  [[gnu::always_inline]] static __m512i load(const std::uint8_t* from) {
    return _mm512_loadu_si512(from);
  }
  [[gnu::always_inline]] static __m512i lanes(__m128i lane) { return _mm512_broadcast_i32x4(lane); }
  [[gnu::always_inline]] static __m512i low_nibbles(__m512i bytes) {
    return _mm512_and_si512(bytes, _mm512_set1_epi8(15));
  }
  [[gnu::always_inline]] static __m512i high_nibbles(__m512i bytes) {
    return low_nibbles(_mm512_srli_epi16(bytes, 4));
  }
  [[gnu::always_inline]] static __m512i lookup(__m512i table, __m512i nibbles) {
    return _mm512_shuffle_epi8(table, nibbles);
  }
  [[gnu::always_inline]] static __m512i four_bytes(const std::int8_t* from) {
    std::int32_t word = 0;
    __builtin_memcpy(&word, from, sizeof word);
    return splat(word);
  }
  [[gnu::always_inline]] static __m512i products(__m512i weights, __m512i bytes) {
    return _mm512_maddubs_epi16(weights, bytes);
  }
  [[gnu::always_inline]] static __m512i add_pairs(__m512i sums, short factor) {
    return _mm512_madd_epi16(sums, _mm512_set1_epi16(factor));
  }
  [[gnu::always_inline]] static __m512i add16(__m512i a, __m512i b) {
    return _mm512_add_epi16(a, b);
  }
  [[gnu::always_inline]] static __m512i add32(__m512i a, __m512i b) {
    return _mm512_add_epi32(a, b);
  }
  [[gnu::always_inline]] static __m512i splat(std::int32_t value) {
    return _mm512_set1_epi32(value);
  }
  [[gnu::always_inline]] static __m512 splat(float value) { return _mm512_set1_ps(value); }
  [[gnu::always_inline]] static __m512 load(const float* from) { return _mm512_loadu_ps(from); }
  [[gnu::always_inline]] static void store(float* to, __m512 value) { _mm512_storeu_ps(to, value); }
  [[gnu::always_inline]] static __m512 to_floats(__m512i values) {
    return _mm512_cvtepi32_ps(values);
  }
  [[gnu::always_inline]] static __m512 fma(__m512 a, __m512 b, __m512 c) {
    return _mm512_fmadd_ps(a, b, c);
  }

  [[gnu::always_inline]] static __m512 e8m0(const std::uint8_t* bytes) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(sixteen(bytes)), 23));
  }
  // E4M3 is a float16 with fewer bits and another exponent bias.
  [[gnu::always_inline]] static __m512 e4m3(const std::uint8_t* bytes) {
    const __m256i halves =
        _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(sixteen(bytes)), 7),
                         _mm256_set1_epi16(static_cast<short>(0xBF80)));
    return _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0f));
  }

 private:
  [[gnu::always_inline]] static __m128i sixteen(const std::uint8_t* bytes) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  }
};

}  // namespace

extern const GemmFunctions kGemm;
constexpr GemmFunctions kGemm = kMaddubsFunctions<SixteenRows>;

}  // namespace fp4moe::kernels::cpu::avx512
