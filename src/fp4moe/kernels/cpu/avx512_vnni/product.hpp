// Products of 16 rows by vpdpbusd: the weights of a chunk fill 16 registers, and tokens pass by one
// after the other, so that weights are decoded once however many there are. Included by the kernels
// of tiles as well, which leave few tokens to these; unnamed for that reason.
#pragma once
#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "fp4moe/kernels/cpu/product.hpp"
#include "fp4moe/kernels/cpu/x86_product.hpp"

namespace fp4moe::kernels::cpu {
namespace {

constexpr std::size_t kVnniAhead = 2048;  // bytes of codes fetched ahead of their use
constexpr std::size_t kVnniVectors = kChunk / 4;

[[gnu::always_inline]] inline __m512i load512(const void* from) { return _mm512_loadu_si512(from); }

[[gnu::always_inline]] inline __m128i load_scales(const std::uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

// Block scales of 16 rows. Byte 0 gives 0, as product.hpp wants it; 255 does not come.
[[gnu::always_inline]] inline __m512 e8m0_scales(__m128i bytes) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23));
}

// E4M3 is a float16 with fewer bits, but for the bias of its exponent.
[[gnu::always_inline]] inline __m512 e4m3_scales(__m128i bytes) {
  const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7),
                                          _mm256_set1_epi16(static_cast<short>(0xBF80)));
  return _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0f));
}

// `kParts` blocks of a chunk have a scale each, and corrections from `kCorrection`.
struct VnniMxfp4 {
  static constexpr std::size_t kParts = 2, kCorrection = kX86Halves;
  [[gnu::always_inline]] static __m512 scales(__m128i bytes) { return e8m0_scales(bytes); }
};
struct VnniNvfp4 {
  static constexpr std::size_t kParts = 4, kCorrection = 0;
  [[gnu::always_inline]] static __m512 scales(__m128i bytes) { return e4m3_scales(bytes); }
};

// Sixteen entries four times: a lookup sees six bits, so what stands above a nibble does not
// matter.
[[gnu::always_inline]] inline __m512i unsigned_table() {
  return _mm512_broadcast_i32x4(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}

template <class Format>
struct VnniChunk {
  __m512i weights[kVnniVectors];  // of 16 rows and 4 columns
  __m512 scales[Format::kParts];
};

// Blocks that are not there have the scale 0.
template <class Format>
[[gnu::always_inline]] inline void decode_chunk(const ProductWeights& weights, std::size_t group,
                                                std::size_t chunk, VnniChunk<Format>& made) {
  const __m512i table = unsigned_table();
  const std::size_t block = 2 * chunk, column = Format::kParts * chunk;
  const std::uint8_t* codes = weights.codes + (group * weights.blocks + block) * kX86TileBytes;
  const std::uint8_t* scales =
      weights.scales + (group * weights.scale_columns + column) * kX86Group;
  const bool whole = block + 2 <= weights.blocks;
#pragma GCC unroll 8
  for (std::size_t i = 0; i < kVnniVectors / 2; ++i) {
    const bool held = whole || i < kVnniVectors / 4;
    const __m512i bytes = held ? load512(codes + 64 * i) : _mm512_setzero_si512();
    _mm_prefetch(reinterpret_cast<const char*>(codes + 64 * i + kVnniAhead), _MM_HINT_T0);
    made.weights[2 * i] = _mm512_permutexvar_epi8(bytes, table);
    made.weights[2 * i + 1] = _mm512_permutexvar_epi8(_mm512_srli_epi16(bytes, 4), table);
  }
  _mm_prefetch(reinterpret_cast<const char*>(scales + kVnniAhead / 16), _MM_HINT_T0);
#pragma GCC unroll 4
  for (std::size_t p = 0; p < Format::kParts; ++p)
    made.scales[p] = column + p < weights.scale_columns
                         ? Format::scales(load_scales(scales + p * kX86Group))
                         : _mm512_setzero_ps();
}

[[gnu::always_inline]] inline __m512i four_bytes(const std::int8_t* from) {
  std::int32_t word = 0;
  __builtin_memcpy(&word, from, sizeof word);
  return _mm512_set1_epi32(word);
}

// A chunk's `t` of product.hpp, for 16 rows and a token.
template <class Format, std::size_t kLimbs>
[[gnu::always_inline]] inline __m512 chunk_product(const VnniChunk<Format>& chunk,
                                                   const std::int8_t* line,
                                                   const std::int32_t* corrections) {
  constexpr std::size_t kEach = kVnniVectors / Format::kParts;
  __m512 total = _mm512_setzero_ps();
#pragma GCC unroll 4
  for (std::size_t p = 0; p < Format::kParts; ++p) {
    __m512i high = _mm512_setzero_si512();
    __m512i low = _mm512_set1_epi32(corrections[Format::kCorrection + p]);
#pragma GCC unroll 8
    for (std::size_t i = p * kEach; i < (p + 1) * kEach; ++i) {
      if constexpr (kLimbs == 2)
        high = _mm512_dpbusd_epi32(high, chunk.weights[i], four_bytes(line + 4 * i));
      low = _mm512_dpbusd_epi32(low, chunk.weights[i],
                                four_bytes(line + (kLimbs - 1) * kChunk + 4 * i));
    }
    if constexpr (kLimbs == 2) low = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
    total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(low), chunk.scales[p], total);
  }
  return total;
}

template <class Format, std::size_t kLimbs, class Room>
void vnni_multiply(const ProductCall& call) noexcept {
  const ProductWeights& weights = call.weights;
  const std::size_t chunks = (weights.blocks + 1) / 2, tokens = call.tokens.tokens;
  const std::size_t steps = padded_tokens(tokens);
  const X86Panel<kLimbs> panel(call.tokens.panel, Room::slots(tokens), chunks);
  for (std::size_t row = 0; row < call.rows; row += kX86Group) {
    float* sums = call.sums + row;
    for (std::size_t t = 0; t < tokens; ++t)
      _mm512_storeu_ps(sums + t * call.stride, _mm512_setzero_ps());
    for (std::size_t c = 0; c < chunks; ++c) {
      VnniChunk<Format> chunk;
      decode_chunk(weights, (call.first_row + row) / kX86Group, c, chunk);
      const float* half_steps = call.tokens.half_steps + c * steps;
#pragma GCC unroll 1
      for (std::size_t t = 0; t < tokens; ++t) {
        const __m512 total =
            chunk_product<Format, kLimbs>(chunk, panel.line(c, t), panel.correction(c, t));
        float* sum = sums + t * call.stride;
        _mm512_storeu_ps(
            sum, _mm512_fmadd_ps(total, _mm512_set1_ps(half_steps[t]), _mm512_loadu_ps(sum)));
      }
    }
  }
}

}  // namespace
}  // namespace fp4moe::kernels::cpu
