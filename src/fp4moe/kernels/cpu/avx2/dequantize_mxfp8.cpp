// MXFP8 to bf16 or f32. The fields of E4M3FN, moved into those of an f16, read as the value times
// 2^-8, so the f16 conversion does the work and the factor goes into the scale.
#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx2/block_codec.hpp"
#include "fp4moe/kernels/cpu/avx2/lanes.hpp"
#include "fp4moe/kernels/cpu/block_codec.hpp"
#include "fp4moe/kernels/cpu/portable/block_codec.hpp"

namespace fp4moe::kernels::cpu::avx2 {
namespace {

// From 3 on every result is exact in bf16 even where it is subnormal; up to 246 none overflows and
// the scale times 2^8 is a float.
constexpr std::uint8_t kFirstPlainScale = 3;
constexpr std::uint8_t kLastPlainScale = 246;

[[gnu::always_inline]] inline bool has_nan(__m256i codes) {
  const __m256i nan = _mm256_set1_epi8(0x7F);
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_and_si256(codes, nan), nan)) != 0;
}

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

[[gnu::always_inline]] inline void store(Values values, std::uint8_t* to, std::uint16_t) {
  const __m256i mixed = _mm256_packus_epi32(_mm256_srli_epi32(_mm256_castps_si256(values.a), 16),
                                            _mm256_srli_epi32(_mm256_castps_si256(values.b), 16));
  store256(to, _mm256_permute4x64_epi64(mixed, 0xD8));
}

[[gnu::always_inline]] inline void store(Values values, std::uint8_t* to, float) {
  store256(to, _mm256_castps_si256(values.a));
  store256(to + 32, _mm256_castps_si256(values.b));
}

template <class Stored>
void dequantize(const DequantizeBlocks& work) {
  auto* output = static_cast<std::uint8_t*>(work.output);
  constexpr std::size_t kHalf = 16 * sizeof(Stored);
  for (std::size_t i = 0; i < work.blocks; ++i, output += 2 * kHalf) {
    const __m256i codes = load256(work.codes + 32 * i);
    const std::uint8_t scale = work.scales[i];
    if (scale < kFirstPlainScale || scale > kLastPlainScale || has_nan(codes)) {
      DequantizeBlocks one = work;
      one.codes = work.codes + 32 * i;
      one.scales = work.scales + i;
      one.blocks = 1;
      one.output = output;
      portable::dequantize_mxfp8(one);
      continue;
    }
    const __m256 factor = _mm256_set1_ps(float_of((std::uint32_t{scale} + 8) << 23));
    store(decode(_mm256_castsi256_si128(codes), factor), output, Stored{});
    store(decode(_mm256_extracti128_si256(codes, 1), factor), output + kHalf, Stored{});
  }
}

}  // namespace

void dequantize_mxfp8(const DequantizeBlocks& work) noexcept {
  switch (work.element) {
    case Element::bf16:
      return dequantize<std::uint16_t>(work);
    case Element::f16:
      return portable::dequantize_mxfp8(work);
    case Element::f32:
      return dequantize<float>(work);
  }
}

}  // namespace fp4moe::kernels::cpu::avx2
