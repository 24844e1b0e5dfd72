// MXFP8 (rule ceil448) from bf16, f16 or f32. As in neon/quantize_mxfp8.cpp nothing is multiplied:
// a value is rounded where it stands, by adding 2^20 times its own power of two, at least that of
// S * 2^-6.
#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx512/block_codec.hpp"
#include "fp4moe/kernels/cpu/avx512/lanes.hpp"
#include "fp4moe/kernels/cpu/block_codec_driver.hpp"

namespace fp4moe::kernels::cpu::avx512 {
namespace {

// The floor of exponents, scale - 6, is not negative (a zero field still means steps of the right
// size, and with scale code 0 nothing reaches half a step); and the sum stays finite.
constexpr int kFirstPlainScale = 6;
constexpr int kLastPlainScale = 220;

struct SixteenScales {
  __m512i codes, floors;
  __mmask16 unusual;
};

[[gnu::always_inline]] inline SixteenScales scales_of(__m512i amax) {
  const __m512 quotient = _mm512_div_ps(_mm512_castsi512_ps(amax), _mm512_set1_ps(448.0f));
  const __m512i codes = _mm512_srli_epi32(
      _mm512_add_epi32(_mm512_castps_si512(quotient), _mm512_set1_epi32(0x7FFFFF)), 23);
  const __mmask16 is_zero = _mm512_testn_epi32_mask(codes, codes);
  const __m512i six = _mm512_set1_epi32(6);
  const __m512i exponents = _mm512_sub_epi32(_mm512_max_epi32(codes, six), six);
  const __mmask16 is_small = _mm512_cmplt_epi32_mask(codes, _mm512_set1_epi32(kFirstPlainScale));
  const __mmask16 is_large = _mm512_cmpgt_epi32_mask(codes, _mm512_set1_epi32(kLastPlainScale));
  return {codes, _mm512_slli_epi32(exponents, 23),
          static_cast<__mmask16>((is_small & ~static_cast<unsigned>(is_zero)) | is_large)};
}

// Sixteen codes.
[[gnu::always_inline]] inline __m128i codes_of(__m512i bits, __m512i floor) {
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
  const __m512i field = _mm512_and_si512(magnitude, _mm512_set1_epi32(0x7F800000));
  const __m512i exponent = _mm512_max_epu32(field, floor);
  const __m512i anchor = _mm512_add_epi32(exponent, _mm512_set1_epi32(20 << 23));
  const __m512 sum = _mm512_add_ps(_mm512_castsi512_ps(magnitude), _mm512_castsi512_ps(anchor));
  const __m512i steps = _mm512_sub_epi32(_mm512_castps_si512(sum), anchor);
  const __m512i octaves = _mm512_srli_epi32(_mm512_sub_epi32(exponent, floor), 20);
  const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
  return _mm512_cvtepi32_epi8(_mm512_or_si512(_mm512_add_epi32(steps, octaves), sign));
}

template <class Lanes>
void quantize_chunk(const QuantizeBlocks& work) {
  constexpr std::size_t kStride = 32 * Lanes::kBytes;
  const auto* const input = static_cast<const std::uint8_t*>(work.input);
  std::uint8_t* const codes = work.codes;
  const std::size_t blocks = work.blocks;
  alignas(64) std::uint32_t maxima[kPassBlocks];
  alignas(64) std::int32_t floors[kPassBlocks];
  std::uint8_t scales[kPassBlocks];
  std::uint64_t unusual = 0;
  find_maxima<Lanes, 32>(input, blocks, maxima);
  for (std::size_t i = 0; i < blocks; i += 16) {
    const SixteenScales some = scales_of(load512(maxima + i));
    store128(scales + i, _mm512_cvtepi32_epi8(some.codes));
    store512(floors + i, some.floors);
    unusual |= std::uint64_t{some.unusual} << i;
  }
  __builtin_memcpy(work.scales, scales, blocks);
  for (std::size_t i = 0; i < blocks; ++i) {
    const __m512i floor = _mm512_set1_epi32(floors[i]);
    const std::uint8_t* block = input + i * kStride;
    store128(codes + 32 * i, codes_of(Lanes::load(block), floor));
    store128(codes + 32 * i + 16, codes_of(Lanes::load(block + kStride / 2), floor));
  }
  redo_marked<Mxfp8Blocks, Lanes>(work, unusual);
}

}  // namespace

void quantize_mxfp8(const QuantizeBlocks& work) noexcept {
  if (!is_ceil448(work.mxfp8_rule)) return portable::quantize_mxfp8(work);
  with_lanes<Bf16Lanes, F16Lanes, F32Lanes>(work.element, [&]<class Lanes>(const Lanes&) {
    quantize_chunks<Mxfp8Blocks, Lanes>(
        work, [&](const QuantizeBlocks& part) { quantize_chunk<Lanes>(part); });
  });
}

}  // namespace fp4moe::kernels::cpu::avx512
