// Helpers that the AVX2 kernels share. Internal linkage only: nothing here may leave a symbol.
//
// Sixteen values travel as two vectors of float32 patterns in the order that packing two 32-bit
// vectors into one 16-bit vector undoes: values 0-3 and 8-11, then 4-7 and 12-15.
#pragma once
#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "fp4moe/kernels/cpu/block_codec.hpp"

namespace fp4moe::kernels::cpu::avx2 {

// A chunk is quantized in passes: the maxima, the scales of eight blocks at a time, the codes; so that
// no pass waits for a division.

[[gnu::always_inline]] static inline __m256i load256(const std::uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

[[gnu::always_inline]] static inline __m128i load128(const std::uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

[[gnu::always_inline]] static inline void store256(std::uint8_t* to, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}

[[gnu::always_inline]] static inline void store128(std::uint8_t* to, __m128i value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value);
}

struct Sixteen {
  __m256i a, b;  // float32 patterns, in the order above
};

[[gnu::always_inline]] static inline Sixteen in_packing_order(__m256i first, __m256i second) {
  return {_mm256_permute2x128_si256(first, second, 0x20),
          _mm256_permute2x128_si256(first, second, 0x31)};
}

[[gnu::always_inline]] static inline std::uint32_t largest_lane(__m256i values) {
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(m));
}

// How values are stored. `load` gives sixteen of them; `max_of` the largest magnitude of a block of
// kElements as a float32 pattern.
struct Bf16Lanes {
  static constexpr std::size_t kBytes = 2;
  [[gnu::always_inline]] static inline Sixteen load(const std::uint8_t* from) {
    const __m256i values = load256(from);
    const __m256i zero = _mm256_setzero_si256();
    return {_mm256_unpacklo_epi16(zero, values), _mm256_unpackhi_epi16(zero, values)};
  }
  template <std::size_t kElements>
  [[gnu::always_inline]] static inline std::uint32_t max_of(const std::uint8_t* from) {
    const __m256i mask = _mm256_set1_epi16(0x7FFF);
    __m256i largest = _mm256_and_si256(load256(from), mask);
    for (std::size_t i = 1; i < kElements / 16; ++i)
      largest = _mm256_max_epu16(largest, _mm256_and_si256(load256(from + 32 * i), mask));
    const __m128i half =
        _mm_max_epu16(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    // The instruction finds a minimum; magnitudes have no sign bit, so complements order in
    // reverse.
    const __m128i min = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(0x7FFF)));
    return ((static_cast<std::uint32_t>(_mm_cvtsi128_si32(min)) & 0xFFFF) ^ 0x7FFF) << 16;
  }
};

template <class Lanes, std::size_t kElements>
[[gnu::always_inline]] static inline std::uint32_t max_of_widened(const std::uint8_t* from) {
  const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i largest = _mm256_setzero_si256();
  for (std::size_t i = 0; i < kElements; i += 16) {
    const Sixteen values = Lanes::load(from + i * Lanes::kBytes);
    largest = _mm256_max_epu32(largest, _mm256_and_si256(values.a, mask));
    largest = _mm256_max_epu32(largest, _mm256_and_si256(values.b, mask));
  }
  return largest_lane(largest);
}

struct F16Lanes {
  static constexpr std::size_t kBytes = 2;
  [[gnu::always_inline]] static inline Sixteen load(const std::uint8_t* from) {
    return in_packing_order(_mm256_castps_si256(_mm256_cvtph_ps(load128(from))),
                            _mm256_castps_si256(_mm256_cvtph_ps(load128(from + 16))));
  }
  template <std::size_t kElements>
  [[gnu::always_inline]] static inline std::uint32_t max_of(const std::uint8_t* from) {
    return max_of_widened<F16Lanes, kElements>(from);
  }
};

struct F32Lanes {
  static constexpr std::size_t kBytes = 4;
  [[gnu::always_inline]] static inline Sixteen load(const std::uint8_t* from) {
    return in_packing_order(load256(from), load256(from + 32));
  }
  template <std::size_t kElements>
  [[gnu::always_inline]] static inline std::uint32_t max_of(const std::uint8_t* from) {
    return max_of_widened<F32Lanes, kElements>(from);
  }
};

// The maxima of a chunk's blocks, zeros up to the next multiple of eight.
template <class Lanes, std::size_t kElements>
[[gnu::always_inline]] static inline void find_maxima(const std::uint8_t* input, std::size_t blocks,
                                                      std::uint32_t maxima[kPassBlocks]) {
  for (std::size_t i = 0; i < blocks; ++i)
    maxima[i] = Lanes::template max_of<kElements>(input + i * kElements * Lanes::kBytes);
  for (std::size_t i = blocks; i % 8 != 0; ++i) maxima[i] = 0;
}

// Eight small numbers as bytes.
[[gnu::always_inline]] static inline void store_bytes(std::uint8_t* to, __m256i values) {
  const __m256i words = _mm256_packus_epi32(values, values);
  const __m256i bytes = _mm256_packus_epi16(words, words);
  const std::uint32_t low = static_cast<std::uint32_t>(_mm256_extract_epi32(bytes, 0));
  const std::uint32_t high = static_cast<std::uint32_t>(_mm256_extract_epi32(bytes, 4));
  __builtin_memcpy(to, &low, sizeof low);
  __builtin_memcpy(to + 4, &high, sizeof high);
}

// Unsigned a >= b for 32-bit lanes.
[[gnu::always_inline]] static inline __m256i at_least(__m256i a, __m256i b) {
  return _mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a);
}

// The upper halves of sixteen float32 patterns, and -1 in each lane whose lower half is zero: added
// to the upper half, it turns "at least" into "more than" in a later comparison.
struct Halves {
  __m256i upper, step_down;
};

[[gnu::always_inline]] static inline Halves halves(const Sixteen& values) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i low_a = _mm256_blend_epi16(values.a, zero, 0xAA);
  const __m256i low_b = _mm256_blend_epi16(values.b, zero, 0xAA);
  return {_mm256_packus_epi32(_mm256_srli_epi32(values.a, 16), _mm256_srli_epi32(values.b, 16)),
          _mm256_packs_epi32(_mm256_cmpeq_epi32(low_a, zero), _mm256_cmpeq_epi32(low_b, zero))};
}

template <class Lanes>
[[gnu::always_inline]] static inline Halves load_halves(const Lanes&, const std::uint8_t* from) {
  return halves(Lanes::load(from));
}

[[gnu::always_inline]] static inline Halves load_halves(const Bf16Lanes&,
                                                        const std::uint8_t* from) {
  return {load256(from), _mm256_set1_epi16(-1)};
}

// The upper half of 0.25 less one step of the index below, for values already divided by S.
static constexpr std::int16_t kUnitBase = (125 << 7) - 32;

// E2M1 by counting thresholds. A magnitude's upper half, less `base` and shifted right by five,
// says in which quarter of which octave it lies: index 0 is below 0.25, 1 starts at 0.25, 7 at
// 0.75, 10 at 1.25, 12 at 1.75, 14 at 2.5, 16 at 3.5, 18 at 5. Above the first of them no index
// below 4 matters, so three less fits a table of sixteen.
//
// Sixteen bytes: thirty-two codes, packed. `base` may differ for the two halves.
template <bool kTiesAway>
[[gnu::always_inline]] static inline __m128i e2m1_packed(const Halves& x, const Halves& y,
                                                         __m256i base_x, __m256i base_y) {
  const __m256i mask = _mm256_set1_epi16(0x7FFF);
  const __m256i at_x = _mm256_subs_epi16(_mm256_and_si256(x.upper, mask), base_x);
  const __m256i at_y = _mm256_subs_epi16(_mm256_and_si256(y.upper, mask), base_y);
  const __m256i three = _mm256_set1_epi8(3);
  const __m256i last = _mm256_set1_epi8(15);
  const __m256i one = _mm256_set1_epi8(1);
  const __m256i reached =
      _mm256_packus_epi16(_mm256_srai_epi16(at_x, 5), _mm256_srai_epi16(at_y, 5));
  const __m256i reached_index = _mm256_min_epu8(_mm256_subs_epu8(reached, three), last);
  __m256i magnitude;
  if constexpr (kTiesAway) {
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6));
    magnitude =
        _mm256_add_epi8(_mm256_shuffle_epi8(table, reached_index), _mm256_min_epu8(reached, one));
  } else {
    const __m256i reached_table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3));
    const __m256i exceeded_table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3));
    const __m256i exceeded =
        _mm256_packus_epi16(_mm256_srai_epi16(_mm256_adds_epi16(at_x, x.step_down), 5),
                            _mm256_srai_epi16(_mm256_adds_epi16(at_y, y.step_down), 5));
    const __m256i exceeded_index = _mm256_min_epu8(_mm256_subs_epu8(exceeded, three), last);
    magnitude =
        _mm256_add_epi8(_mm256_add_epi8(_mm256_shuffle_epi8(reached_table, reached_index),
                                        _mm256_shuffle_epi8(exceeded_table, exceeded_index)),
                        _mm256_min_epu8(exceeded, one));
  }
  // Saturation keeps signs.
  const __m256i signs = _mm256_packs_epi16(x.upper, y.upper);
  const __m256i codes = _mm256_or_si256(
      magnitude, _mm256_and_si256(_mm256_srli_epi16(signs, 4), _mm256_set1_epi8(8)));
  const __m256i bytes = _mm256_maddubs_epi16(codes, _mm256_set1_epi16(0x1001));
  const __m128i mixed =
      _mm_packus_epi16(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
  return _mm_shuffle_epi32(mixed, 0xD8);
}

// E4M3FN of magnitudes up to 448, nearest even, with the value it stands for. Adding 2^20 times the
// value's own power of two (at least 2^-6, where the subnormals begin) leaves exactly the mantissa
// bits that E4M3FN keeps.
struct RoundedE4m3 {
  __m256i code;
  __m256 value;
};

[[gnu::always_inline]] static inline RoundedE4m3 round_e4m3(__m256 magnitude) {
  const __m256i field =
      _mm256_and_si256(_mm256_castps_si256(magnitude), _mm256_set1_epi32(0x7F800000));
  const __m256i exponent = _mm256_max_epu32(field, _mm256_set1_epi32(121 << 23));
  const __m256i anchor = _mm256_add_epi32(exponent, _mm256_set1_epi32(20 << 23));
  const __m256 sum = _mm256_add_ps(magnitude, _mm256_castsi256_ps(anchor));
  const __m256i steps = _mm256_sub_epi32(_mm256_castps_si256(sum), anchor);
  const __m256i code = _mm256_sub_epi32(_mm256_add_epi32(steps, _mm256_srli_epi32(exponent, 20)),
                                        _mm256_set1_epi32(121 << 3));
  return {code, _mm256_sub_ps(sum, _mm256_castsi256_ps(anchor))};
}

}  // namespace fp4moe::kernels::cpu::avx2
