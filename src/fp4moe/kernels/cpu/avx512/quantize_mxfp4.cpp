// MXFP4 from bf16, f16 or f32: as neon/quantize_mxfp4.cpp, the thresholds of E2M1 are moved by the
// scale code instead of dividing the values; unusual blocks are done again by the portable reference.
#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx512/block_codec.hpp"
#include "fp4moe/kernels/cpu/avx512/lanes.hpp"
#include "fp4moe/kernels/cpu/block_codec_driver.hpp"

namespace fp4moe::kernels::cpu::avx512 {
namespace {

// Below this scale code a subnormal input can still reach 0.25 * S.
constexpr int kFirstPlainScale = 3;

struct SixteenScales {
  __m512i codes, bases;
  __mmask16 unusual;
};

[[gnu::always_inline]] inline SixteenScales scales_of(__m512i amax, const Mxfp4Recipe& recipe) {
  const __m512i quotient =
      _mm512_castps_si512(_mm512_div_ps(_mm512_castsi512_ps(amax), _mm512_set1_ps(recipe.divisor)));
  const __m512i exponent = _mm512_srli_epi32(
      _mm512_add_epi32(quotient, _mm512_set1_epi32(static_cast<int>(recipe.bits_added))), 23);
  const __m512i lowered = _mm512_set1_epi32(static_cast<int>(recipe.exponent_lowered));
  const __m512i codes = _mm512_sub_epi32(_mm512_max_epu32(exponent, lowered), lowered);
  // A zero scale code stands for S = 0: every code is a zero, out of reach of any threshold.
  const __mmask16 is_zero = _mm512_testn_epi32_mask(codes, codes);
  const __m512i moved =
      _mm512_add_epi32(_mm512_slli_epi32(codes, 7), _mm512_set1_epi32(kUnitBase - 127 * 128));
  const __m512i bases = _mm512_mask_mov_epi32(moved, is_zero, _mm512_set1_epi32(0x7FFF));
  const __mmask16 is_small = _mm512_cmplt_epi32_mask(codes, _mm512_set1_epi32(kFirstPlainScale));
  const __mmask16 is_not_finite = _mm512_cmpge_epu32_mask(amax, _mm512_set1_epi32(0x7F800000));
  return {codes, bases,
          static_cast<__mmask16>((is_small & ~static_cast<unsigned>(is_zero)) | is_not_finite)};
}

template <class Lanes>
void quantize_chunk(const QuantizeBlocks& work, const Mxfp4Recipe& recipe,
                    const E2m1Tables& tables) {
  constexpr std::size_t kStride = 32 * Lanes::kBytes;
  const auto* const input = static_cast<const std::uint8_t*>(work.input);
  std::uint8_t* const codes = work.codes;
  const std::size_t blocks = work.blocks;
  alignas(64) std::uint32_t maxima[kPassBlocks];
  alignas(64) std::int32_t bases[kPassBlocks];
  std::uint8_t scales[kPassBlocks];
  std::uint64_t unusual = 0;
  find_maxima<Lanes, 32>(input, blocks, maxima);
  for (std::size_t i = 0; i < blocks; i += 16) {
    const SixteenScales some = scales_of(load512(maxima + i), recipe);
    store128(scales + i, _mm512_cvtepi32_epi8(some.codes));
    store512(bases + i, some.bases);
    unusual |= std::uint64_t{some.unusual} << i;
  }
  __builtin_memcpy(work.scales, scales, blocks);
  for (std::size_t i = 0; i < blocks; ++i) {
    const __m512i base = _mm512_set1_epi16(static_cast<std::int16_t>(bases[i]));
    store128(codes + 16 * i, e2m1_packed(tables, Lanes::load_halves(input + i * kStride), base));
  }
  redo_marked<Mxfp4Blocks, Lanes>(work, unusual);
}

}  // namespace

void quantize_mxfp4(const QuantizeBlocks& work) noexcept {
  const Mxfp4Recipe* recipe = mxfp4_recipe(work.mxfp4_rule);
  if (recipe == nullptr) return portable::quantize_mxfp4(work);
  const E2m1Tables tables = e2m1_tables(recipe->ties_away);
  with_lanes<Bf16Lanes, F16Lanes, F32Lanes>(work.element, [&]<class Lanes>(const Lanes&) {
    quantize_chunks<Mxfp4Blocks, Lanes>(
        work, [&](const QuantizeBlocks& part) { quantize_chunk<Lanes>(part, *recipe, tables); });
  });
}

}  // namespace fp4moe::kernels::cpu::avx512
