// MXFP4 from bf16, f16 or f32: as neon/quantize_mxfp4.cpp, the thresholds of E2M1 are moved by the
// scale code instead of dividing the values; unusual blocks are done again by the portable reference.
#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx2/block_codec.hpp"
#include "fp4moe/kernels/cpu/avx2/lanes.hpp"
#include "fp4moe/kernels/cpu/block_codec_driver.hpp"

namespace fp4moe::kernels::cpu::avx2 {
namespace {

// Below this scale code a subnormal input can still reach 0.25 * S.
constexpr int kFirstPlainScale = 3;

struct EightScales {
  __m256i codes, bases, unusual;
};

[[gnu::always_inline]] inline EightScales scales_of(__m256i amax, const Mxfp4Recipe& recipe) {
  const __m256i quotient =
      _mm256_castps_si256(_mm256_div_ps(_mm256_castsi256_ps(amax), _mm256_set1_ps(recipe.divisor)));
  const __m256i exponent = _mm256_srli_epi32(
      _mm256_add_epi32(quotient, _mm256_set1_epi32(static_cast<int>(recipe.bits_added))), 23);
  const __m256i lowered = _mm256_set1_epi32(static_cast<int>(recipe.exponent_lowered));
  const __m256i codes = _mm256_sub_epi32(_mm256_max_epu32(exponent, lowered), lowered);
  // A zero scale code stands for S = 0: every code is a zero, out of reach of any threshold.
  const __m256i moved =
      _mm256_add_epi32(_mm256_slli_epi32(codes, 7), _mm256_set1_epi32(kUnitBase - 127 * 128));
  const __m256i is_zero = _mm256_cmpeq_epi32(codes, _mm256_setzero_si256());
  const __m256i bases = _mm256_blendv_epi8(moved, _mm256_set1_epi32(0x7FFF), is_zero);
  const __m256i is_small = _mm256_andnot_si256(  // 1 or 2
      is_zero, _mm256_cmpgt_epi32(_mm256_set1_epi32(kFirstPlainScale), codes));
  const __m256i is_not_finite = at_least(amax, _mm256_set1_epi32(0x7F800000));
  return {codes, bases, _mm256_or_si256(is_small, is_not_finite)};
}

template <class Lanes, bool kTiesAway>
void quantize_chunk(const QuantizeBlocks& work, const Mxfp4Recipe& recipe) {
  constexpr std::size_t kStride = 32 * Lanes::kBytes;
  const auto* const input = static_cast<const std::uint8_t*>(work.input);
  std::uint8_t* const codes = work.codes;
  const std::size_t blocks = work.blocks;
  alignas(32) std::uint32_t maxima[kPassBlocks];
  alignas(32) std::int32_t bases[kPassBlocks];
  std::uint8_t scales[kPassBlocks];
  std::uint8_t is_unusual[kPassBlocks];
  __m256i unusual = _mm256_setzero_si256();
  find_maxima<Lanes, 32>(input, blocks, maxima);
  for (std::size_t i = 0; i < blocks; i += 8) {
    const EightScales eight =
        scales_of(_mm256_load_si256(reinterpret_cast<const __m256i*>(maxima + i)), recipe);
    store_bytes(scales + i, eight.codes);
    store_bytes(is_unusual + i, _mm256_srli_epi32(eight.unusual, 31));
    _mm256_store_si256(reinterpret_cast<__m256i*>(bases + i), eight.bases);
    unusual = _mm256_or_si256(unusual, eight.unusual);
  }
  __builtin_memcpy(work.scales, scales, blocks);
  for (std::size_t i = 0; i < blocks; ++i) {
    const __m256i base = _mm256_set1_epi16(static_cast<std::int16_t>(bases[i]));
    const std::uint8_t* block = input + i * kStride;
    store128(codes + 16 * i,
             e2m1_packed<kTiesAway>(load_halves(Lanes{}, block),
                                    load_halves(Lanes{}, block + kStride / 2), base, base));
  }
  if (_mm256_testz_si256(unusual, unusual) == 0) redo_marked<Mxfp4Blocks, Lanes>(work, is_unusual);
}

}  // namespace

void quantize_mxfp4(const QuantizeBlocks& work) noexcept {
  const Mxfp4Recipe* recipe = mxfp4_recipe(work.mxfp4_rule);
  if (recipe == nullptr) return portable::quantize_mxfp4(work);
  with_lanes<Bf16Lanes, F16Lanes, F32Lanes>(work.element, [&]<class Lanes>(const Lanes&) {
    quantize_chunks<Mxfp4Blocks, Lanes>(work, [&](const QuantizeBlocks& part) {
      recipe->ties_away ? quantize_chunk<Lanes, true>(part, *recipe)
                        : quantize_chunk<Lanes, false>(part, *recipe);
    });
  });
}

}  // namespace fp4moe::kernels::cpu::avx2
