// NVFP4 from bf16, f16 or f32. Each float32 operation is the one of formats/nvfp4.cpp, in its
// order.
#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx512/block_codec.hpp"
#include "fp4moe/kernels/cpu/avx512/lanes.hpp"
#include "fp4moe/kernels/cpu/block_codec_driver.hpp"

namespace fp4moe::kernels::cpu::avx512 {
namespace {

struct SixteenScales {
  __m512i codes;
  __m512 multipliers;
  __mmask16 unusual;
};

// E4M3FN of g * (amax / 6), rounded as avx2/lanes.hpp explains, and 1 / (its value / g).
[[gnu::always_inline]] inline SixteenScales scales_of(__m512i amax, float global,
                                                      float reciprocal) {
  const __m512 sixth =
      _mm512_mul_ps(_mm512_castsi512_ps(amax), _mm512_set1_ps(float_of(0x3E2AAAAB)));
  const __m512 ratio =
      _mm512_min_ps(_mm512_mul_ps(_mm512_set1_ps(global), sixth), _mm512_set1_ps(448.0f));
  const __m512i field = _mm512_and_si512(_mm512_castps_si512(ratio), _mm512_set1_epi32(0x7F800000));
  const __m512i exponent = _mm512_max_epu32(field, _mm512_set1_epi32(121 << 23));
  const __m512i anchor = _mm512_add_epi32(exponent, _mm512_set1_epi32(20 << 23));
  const __m512 sum = _mm512_add_ps(ratio, _mm512_castsi512_ps(anchor));
  const __m512i steps = _mm512_sub_epi32(_mm512_castps_si512(sum), anchor);
  const __m512i codes = _mm512_sub_epi32(_mm512_add_epi32(steps, _mm512_srli_epi32(exponent, 20)),
                                         _mm512_set1_epi32(121 << 3));
  const __m512 value = _mm512_sub_ps(sum, _mm512_castsi512_ps(anchor));
  const __mmask16 is_not_zero = _mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_NEQ_OQ);
  const __m512 used = _mm512_maskz_div_ps(is_not_zero, _mm512_set1_ps(1.0f),
                                          _mm512_mul_ps(value, _mm512_set1_ps(reciprocal)));
  // Neither the maximum nor the factor may be infinite: 0 times infinity would be NaN.
  const __m512i largest = _mm512_max_epu32(amax, _mm512_castps_si512(used));
  return {codes, used, _mm512_cmpge_epu32_mask(largest, _mm512_set1_epi32(0x7F800000))};
}

template <class Lanes>
[[gnu::always_inline]] inline __m512i scaled(const std::uint8_t* from, float multiplier) {
  return _mm512_castps_si512(
      _mm512_mul_ps(_mm512_castsi512_ps(Lanes::load(from)), _mm512_set1_ps(multiplier)));
}

template <class Lanes>
void quantize_chunk(const QuantizeBlocks& work, float reciprocal, const E2m1Tables& tables) {
  constexpr std::size_t kStride = 16 * Lanes::kBytes;
  const auto* const input = static_cast<const std::uint8_t*>(work.input);
  std::uint8_t* const codes = work.codes;
  const std::size_t blocks = work.blocks;
  const float global = work.global_scale;
  alignas(64) std::uint32_t maxima[kPassBlocks];
  alignas(64) float multipliers[kPassBlocks];
  std::uint8_t scales[kPassBlocks];
  std::uint64_t unusual = 0;
  find_maxima<Lanes, 16>(input, blocks, maxima);
  for (std::size_t i = 0; i < blocks; i += 16) {
    const SixteenScales some = scales_of(load512(maxima + i), global, reciprocal);
    store128(scales + i, _mm512_cvtepi32_epi8(some.codes));
    _mm512_store_ps(multipliers + i, some.multipliers);
    unusual |= std::uint64_t{some.unusual} << i;
  }
  __builtin_memcpy(work.scales, scales, blocks);
  const __m512i base = _mm512_set1_epi16(kUnitBase);
  std::size_t i = 0;
  for (; i + 2 <= blocks; i += 2) {
    const std::uint8_t* block = input + i * kStride;
    const __m512i first = scaled<Lanes>(block, multipliers[i]);
    const __m512i second = scaled<Lanes>(block + kStride, multipliers[i + 1]);
    store128(codes + 8 * i, e2m1_packed(tables, halves(first, second), base));
  }
  if (i < blocks) {
    const __m512i last = scaled<Lanes>(input + i * kStride, multipliers[i]);
    const __m128i packed = e2m1_packed(tables, halves(last, last), base);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + 8 * i), packed);
  }
  redo_marked<Nvfp4Blocks, Lanes>(work, unusual);
}

}  // namespace

void quantize_nvfp4(const QuantizeBlocks& work) noexcept {
  if (!is_usual(work)) return portable::quantize_nvfp4(work);
  const E2m1Tables tables = e2m1_tables(false);
  const float reciprocal = 1.0f / work.global_scale;
  with_lanes<Bf16Lanes, F16Lanes, F32Lanes>(work.element, [&]<class Lanes>(const Lanes&) {
    quantize_chunks<Nvfp4Blocks, Lanes>(
        work, [&](const QuantizeBlocks& part) { quantize_chunk<Lanes>(part, reciprocal, tables); });
  });
}

}  // namespace fp4moe::kernels::cpu::avx512
