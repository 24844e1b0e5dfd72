// MXFP8 (rule ceil448) from bf16, f16 or f32. As in neon/quantize_mxfp8.cpp nothing is multiplied:
// a value is rounded where it stands, by adding 2^20 times its own power of two, at least that of
// S * 2^-6.
#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx2/block_codec.hpp"
#include "fp4moe/kernels/cpu/avx2/lanes.hpp"
#include "fp4moe/kernels/cpu/block_codec_driver.hpp"

namespace fp4moe::kernels::cpu::avx2 {
namespace {

// The floor of exponents, scale - 6, is not negative (a zero field still means steps of the right
// size, and with scale code 0 nothing reaches half a step); and the sum stays finite.
constexpr int kFirstPlainScale = 6;
constexpr int kLastPlainScale = 220;

struct EightScales {
  __m256i codes, floors, unusual;
};

[[gnu::always_inline]] inline EightScales scales_of(__m256i amax) {
  const __m256 quotient = _mm256_div_ps(_mm256_castsi256_ps(amax), _mm256_set1_ps(448.0f));
  const __m256i codes = _mm256_srli_epi32(
      _mm256_add_epi32(_mm256_castps_si256(quotient), _mm256_set1_epi32(0x7FFFFF)), 23);
  const __m256i is_zero = _mm256_cmpeq_epi32(codes, _mm256_setzero_si256());
  const __m256i six = _mm256_set1_epi32(6);
  const __m256i exponents = _mm256_sub_epi32(_mm256_max_epi32(codes, six), six);
  const __m256i is_small =
      _mm256_andnot_si256(is_zero, _mm256_cmpgt_epi32(_mm256_set1_epi32(kFirstPlainScale), codes));
  const __m256i is_large = _mm256_cmpgt_epi32(codes, _mm256_set1_epi32(kLastPlainScale));
  return {codes, _mm256_slli_epi32(exponents, 23), _mm256_or_si256(is_small, is_large)};
}

// Eight magnitudes: steps above the floor, in the lower half of each lane.
[[gnu::always_inline]] inline __m256i round_eight(__m256i bits, __m256i floor) {
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i field = _mm256_and_si256(magnitude, _mm256_set1_epi32(0x7F800000));
  const __m256i exponent = _mm256_max_epu32(field, floor);
  const __m256i anchor = _mm256_add_epi32(exponent, _mm256_set1_epi32(20 << 23));
  const __m256 sum = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(anchor));
  const __m256i steps = _mm256_sub_epi32(_mm256_castps_si256(sum), anchor);
  return _mm256_add_epi32(steps, _mm256_srli_epi32(_mm256_sub_epi32(exponent, floor), 20));
}

// Sixteen codes as 16-bit lanes with their signs in place.
template <class Lanes>
[[gnu::always_inline]] inline __m256i codes_of(const std::uint8_t* from, __m256i floor) {
  const Sixteen values = Lanes::load(from);
  const __m256i magnitudes =
      _mm256_packus_epi32(round_eight(values.a, floor), round_eight(values.b, floor));
  const __m256i signs =
      _mm256_packus_epi32(_mm256_srli_epi32(values.a, 31), _mm256_srli_epi32(values.b, 31));
  return _mm256_or_si256(magnitudes, _mm256_slli_epi16(signs, 7));
}

template <class Lanes>
void quantize_chunk(const QuantizeBlocks& work) {
  constexpr std::size_t kStride = 32 * Lanes::kBytes;
  const auto* const input = static_cast<const std::uint8_t*>(work.input);
  std::uint8_t* const codes = work.codes;
  const std::size_t blocks = work.blocks;
  alignas(32) std::uint32_t maxima[kPassBlocks];
  alignas(32) std::int32_t floors[kPassBlocks];
  std::uint8_t scales[kPassBlocks];
  std::uint8_t is_unusual[kPassBlocks];
  __m256i unusual = _mm256_setzero_si256();
  find_maxima<Lanes, 32>(input, blocks, maxima);
  for (std::size_t i = 0; i < blocks; i += 8) {
    const EightScales eight =
        scales_of(_mm256_load_si256(reinterpret_cast<const __m256i*>(maxima + i)));
    store_bytes(scales + i, eight.codes);
    _mm256_store_si256(reinterpret_cast<__m256i*>(floors + i), eight.floors);
    store_bytes(is_unusual + i, _mm256_srli_epi32(eight.unusual, 31));
    unusual = _mm256_or_si256(unusual, eight.unusual);
  }
  __builtin_memcpy(work.scales, scales, blocks);
  for (std::size_t i = 0; i < blocks; ++i) {
    const __m256i floor = _mm256_set1_epi32(floors[i]);
    const std::uint8_t* block = input + i * kStride;
    const __m256i mixed = _mm256_packus_epi16(codes_of<Lanes>(block, floor),
                                              codes_of<Lanes>(block + kStride / 2, floor));
    store256(codes + 32 * i, _mm256_permute4x64_epi64(mixed, 0xD8));
  }
  if (_mm256_testz_si256(unusual, unusual) == 0) redo_marked<Mxfp8Blocks, Lanes>(work, is_unusual);
}

}  // namespace

void quantize_mxfp8(const QuantizeBlocks& work) noexcept {
  if (!is_ceil448(work.mxfp8_rule)) return portable::quantize_mxfp8(work);
  with_lanes<Bf16Lanes, F16Lanes, F32Lanes>(work.element, [&]<class Lanes>(const Lanes&) {
    quantize_chunks<Mxfp8Blocks, Lanes>(
        work, [&](const QuantizeBlocks& part) { quantize_chunk<Lanes>(part); });
  });
}

}  // namespace fp4moe::kernels::cpu::avx2
