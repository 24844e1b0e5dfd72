// NVFP4 from bf16, f16 or f32. Each float32 operation is the one of formats/nvfp4.cpp, in its
// order.
#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx2/block_codec.hpp"
#include "fp4moe/kernels/cpu/avx2/lanes.hpp"
#include "fp4moe/kernels/cpu/block_codec_driver.hpp"

namespace fp4moe::kernels::cpu::avx2 {
namespace {

struct EightScales {
  __m256i codes;
  __m256 multipliers;
  __m256i unusual;
};

// E4M3FN of g * (amax / 6) and 1 / (its value / g).
[[gnu::always_inline]] inline EightScales scales_of(__m256i amax, float global, float reciprocal) {
  const __m256 sixth =
      _mm256_mul_ps(_mm256_castsi256_ps(amax), _mm256_set1_ps(float_of(0x3E2AAAAB)));
  const __m256 ratio =
      _mm256_min_ps(_mm256_mul_ps(_mm256_set1_ps(global), sixth), _mm256_set1_ps(448.0f));
  const RoundedE4m3 rounded = round_e4m3(ratio);
  const __m256 multiplier =
      _mm256_div_ps(_mm256_set1_ps(1.0f), _mm256_mul_ps(rounded.value, _mm256_set1_ps(reciprocal)));
  const __m256 is_zero = _mm256_cmp_ps(rounded.value, _mm256_setzero_ps(), _CMP_EQ_OQ);
  const __m256 used = _mm256_andnot_ps(is_zero, multiplier);
  // Neither the maximum nor the factor may be infinite: 0 times infinity would be NaN.
  const __m256i largest = _mm256_max_epu32(amax, _mm256_castps_si256(used));
  return {rounded.code, used, at_least(largest, _mm256_set1_epi32(0x7F800000))};
}

template <class Lanes>
[[gnu::always_inline]] inline Halves scaled(const std::uint8_t* from, float multiplier) {
  const __m256 factor = _mm256_set1_ps(multiplier);
  const Sixteen values = Lanes::load(from);
  return halves({_mm256_castps_si256(_mm256_mul_ps(_mm256_castsi256_ps(values.a), factor)),
                 _mm256_castps_si256(_mm256_mul_ps(_mm256_castsi256_ps(values.b), factor))});
}

template <class Lanes>
void quantize_chunk(const QuantizeBlocks& work, float reciprocal) {
  constexpr std::size_t kStride = 16 * Lanes::kBytes;
  const auto* const input = static_cast<const std::uint8_t*>(work.input);
  std::uint8_t* const codes = work.codes;
  const std::size_t blocks = work.blocks;
  const float global = work.global_scale;
  alignas(32) std::uint32_t maxima[kPassBlocks];
  alignas(32) float multipliers[kPassBlocks];
  std::uint8_t scales[kPassBlocks];
  std::uint8_t is_unusual[kPassBlocks];
  __m256i unusual = _mm256_setzero_si256();
  find_maxima<Lanes, 16>(input, blocks, maxima);
  for (std::size_t i = 0; i < blocks; i += 8) {
    const EightScales eight = scales_of(
        _mm256_load_si256(reinterpret_cast<const __m256i*>(maxima + i)), global, reciprocal);
    store_bytes(scales + i, eight.codes);
    store_bytes(is_unusual + i, _mm256_srli_epi32(eight.unusual, 31));
    _mm256_store_ps(multipliers + i, eight.multipliers);
    unusual = _mm256_or_si256(unusual, eight.unusual);
  }
  __builtin_memcpy(work.scales, scales, blocks);
  const __m256i base = _mm256_set1_epi16(kUnitBase);
  std::size_t i = 0;
  for (; i + 2 <= blocks; i += 2) {
    const std::uint8_t* block = input + i * kStride;
    const Halves first = scaled<Lanes>(block, multipliers[i]);
    const Halves second = scaled<Lanes>(block + kStride, multipliers[i + 1]);
    store128(codes + 8 * i, e2m1_packed<false>(first, second, base, base));
  }
  if (i < blocks) {
    const Halves last = scaled<Lanes>(input + i * kStride, multipliers[i]);
    const __m128i packed = e2m1_packed<false>(last, last, base, base);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + 8 * i), packed);
  }
  if (_mm256_testz_si256(unusual, unusual) == 0) redo_marked<Nvfp4Blocks, Lanes>(work, is_unusual);
}

}  // namespace

void quantize_nvfp4(const QuantizeBlocks& work) noexcept {
  if (!is_usual(work)) return portable::quantize_nvfp4(work);
  const float reciprocal = 1.0f / work.global_scale;
  with_lanes<Bf16Lanes, F16Lanes, F32Lanes>(work.element, [&]<class Lanes>(const Lanes&) {
    quantize_chunks<Nvfp4Blocks, Lanes>(
        work, [&](const QuantizeBlocks& part) { quantize_chunk<Lanes>(part, reciprocal); });
  });
}

}  // namespace fp4moe::kernels::cpu::avx2
