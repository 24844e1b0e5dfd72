// Helpers that the AVX-512 kernels share, beside those of AVX2. Internal linkage only.
#pragma once
#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx2/lanes.hpp"

namespace fp4moe::kernels::cpu::avx512 {

using avx2::kUnitBase;
using avx2::load128;
using avx2::load256;
using avx2::store128;

[[gnu::always_inline]] static inline __m512i load512(const void* from) {
  return _mm512_loadu_si512(from);
}

[[gnu::always_inline]] static inline void store512(void* to, __m512i value) {
  _mm512_storeu_si512(to, value);
}

// Thirty-two upper halves, and which of them have a lower half that is not zero.
struct Halves {
  __m512i upper;
  __mmask32 has_more;
};

[[gnu::always_inline]] static inline Halves halves(__m512i first, __m512i second) {
  const __m512i low = _mm512_set1_epi32(0xFFFF);
  const __m256i a = _mm512_cvtepi32_epi16(_mm512_srli_epi32(first, 16));
  const __m256i b = _mm512_cvtepi32_epi16(_mm512_srli_epi32(second, 16));
  const __mmask16 more_a = _mm512_test_epi32_mask(first, low);
  const __mmask16 more_b = _mm512_test_epi32_mask(second, low);
  return {_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1), _mm512_kunpackw(more_b, more_a)};
}

// How values are stored. `load` gives sixteen of them as float32 patterns; the maxima of blocks are
// found as in AVX2.
struct Bf16Lanes : avx2::Bf16Lanes {
  [[gnu::always_inline]] static inline __m512i load(const std::uint8_t* from) {
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(from)), 16);
  }
  [[gnu::always_inline]] static inline Halves load_halves(const std::uint8_t* from) {
    return {load512(from), 0};
  }
};

struct F16Lanes : avx2::F16Lanes {
  [[gnu::always_inline]] static inline __m512i load(const std::uint8_t* from) {
    return _mm512_castps_si512(_mm512_cvtph_ps(load256(from)));
  }
  [[gnu::always_inline]] static inline Halves load_halves(const std::uint8_t* from) {
    return halves(load(from), load(from + 32));
  }
};

struct F32Lanes : avx2::F32Lanes {
  [[gnu::always_inline]] static inline __m512i load(const std::uint8_t* from) {
    return load512(from);
  }
  [[gnu::always_inline]] static inline Halves load_halves(const std::uint8_t* from) {
    return halves(load(from), load(from + 64));
  }
};

// The maxima of a chunk's blocks, zeros up to the next multiple of sixteen.
template <class Lanes, std::size_t kElements>
[[gnu::always_inline]] static inline void find_maxima(const std::uint8_t* input, std::size_t blocks,
                                                      std::uint32_t maxima[kPassBlocks]) {
  for (std::size_t i = 0; i < blocks; ++i)
    maxima[i] = Lanes::template max_of<kElements>(input + i * kElements * Lanes::kBytes);
  for (std::size_t i = blocks; i % 16 != 0; ++i) maxima[i] = 0;
}

// E2M1 by counting thresholds, as avx2/lanes.hpp explains; here all 32 indices fit one table.
struct E2m1Tables {
  __m512i reached, exceeded;
};

[[gnu::always_inline]] static inline __m512i widen_table(const std::uint8_t* bytes) {
  return _mm512_cvtepu8_epi16(load256(bytes));
}

[[gnu::always_inline]] static inline E2m1Tables e2m1_tables(bool ties_away) {
  static constexpr std::uint8_t kReachedEven[32] = {0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2,
                                                    3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3};
  static constexpr std::uint8_t kExceededEven[32] = {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2,
                                                     2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4,
                                                     4, 4, 4, 4, 4, 4, 4, 4, 4, 4};
  static constexpr std::uint8_t kReachedAway[32] = {0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5,
                                                    6, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7};
  static constexpr std::uint8_t kExceededAway[32] = {};
  if (ties_away) return {widen_table(kReachedAway), widen_table(kExceededAway)};
  return {widen_table(kReachedEven), widen_table(kExceededEven)};
}

// Thirty-two codes, packed into sixteen bytes.
[[gnu::always_inline]] static inline __m128i e2m1_packed(const E2m1Tables& tables,
                                                         const Halves& values, __m512i base) {
  const __m512i last = _mm512_set1_epi16(31);
  const __m512i magnitude = _mm512_and_si512(values.upper, _mm512_set1_epi16(0x7FFF));
  const __m512i at = _mm512_subs_epu16(magnitude, base);
  const __m512i below =
      _mm512_mask_mov_epi16(_mm512_subs_epu16(at, _mm512_set1_epi16(1)), values.has_more, at);
  const __m512i reached = _mm512_min_epu16(_mm512_srli_epi16(at, 5), last);
  const __m512i exceeded = _mm512_min_epu16(_mm512_srli_epi16(below, 5), last);
  const __m512i count = _mm512_add_epi16(_mm512_permutexvar_epi16(reached, tables.reached),
                                         _mm512_permutexvar_epi16(exceeded, tables.exceeded));
  const __m512i signs = _mm512_and_si512(_mm512_srli_epi16(values.upper, 12), _mm512_set1_epi16(8));
  const __m256i codes = _mm512_cvtepi16_epi8(_mm512_or_si512(count, signs));
  return _mm256_cvtepi16_epi8(_mm256_maddubs_epi16(codes, _mm256_set1_epi16(0x1001)));
}

}  // namespace fp4moe::kernels::cpu::avx512
