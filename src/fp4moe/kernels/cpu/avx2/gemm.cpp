// GEMM of 8 rows.
#include "fp4moe/kernels/cpu/x86_maddubs_gemm.hpp"

namespace fp4moe::kernels::cpu::avx2 {
namespace {

struct EightRows {
  using Integers = __m256i;
  using Floats = __m256;
  static constexpr std::size_t kRows = 8;

  [[gnu::always_inline]] static __m256i load(const std::uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  [[gnu::always_inline]] static __m256i lanes(__m128i lane) {
    return _mm256_broadcastsi128_si256(lane);
  }
  [[gnu::always_inline]] static __m256i low_nibbles(__m256i bytes) {
    return _mm256_and_si256(bytes, _mm256_set1_epi8(15));
  }
  [[gnu::always_inline]] static __m256i high_nibbles(__m256i bytes) {
    return low_nibbles(_mm256_srli_epi16(bytes, 4));
  }
  [[gnu::always_inline]] static __m256i lookup(__m256i table, __m256i nibbles) {
    return _mm256_shuffle_epi8(table, nibbles);
  }
  [[gnu::always_inline]] static __m256i four_bytes(const std::int8_t* from) {
    std::int32_t word = 0;
    __builtin_memcpy(&word, from, sizeof word);
    return splat(word);
  }
  [[gnu::always_inline]] static __m256i products(__m256i weights, __m256i bytes) {
    return _mm256_maddubs_epi16(weights, bytes);
  }
  [[gnu::always_inline]] static __m256i add_pairs(__m256i sums, short factor) {
    return _mm256_madd_epi16(sums, _mm256_set1_epi16(factor));
  }
  [[gnu::always_inline]] static __m256i add16(__m256i a, __m256i b) {
    return _mm256_add_epi16(a, b);
  }
  [[gnu::always_inline]] static __m256i add32(__m256i a, __m256i b) {
    return _mm256_add_epi32(a, b);
  }
  [[gnu::always_inline]] static __m256i splat(std::int32_t value) {
    return _mm256_set1_epi32(value);
  }
  [[gnu::always_inline]] static __m256 splat(float value) { return _mm256_set1_ps(value); }
  [[gnu::always_inline]] static __m256 load(const float* from) { return _mm256_loadu_ps(from); }
  [[gnu::always_inline]] static void store(float* to, __m256 value) { _mm256_storeu_ps(to, value); }
  [[gnu::always_inline]] static __m256 to_floats(__m256i values) {
    return _mm256_cvtepi32_ps(values);
  }
  [[gnu::always_inline]] static __m256 fma(__m256 a, __m256 b, __m256 c) {
    return _mm256_fmadd_ps(a, b, c);
  }

  [[gnu::always_inline]] static __m256 e8m0(const std::uint8_t* bytes) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(eight(bytes)), 23));
  }
  // E4M3 is a float16 with fewer bits and another exponent bias.
  [[gnu::always_inline]] static __m256 e4m3(const std::uint8_t* bytes) {
    const __m128i halves = _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(eight(bytes)), 7),
                                         _mm_set1_epi16(static_cast<short>(0xBF80)));
    return _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.0f));
  }

 private:
  [[gnu::always_inline]] static __m128i eight(const std::uint8_t* bytes) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  }
};

}  // namespace

extern const GemmFunctions kGemm;
constexpr GemmFunctions kGemm = kMaddubsFunctions<EightRows>;

}  // namespace fp4moe::kernels::cpu::avx2
