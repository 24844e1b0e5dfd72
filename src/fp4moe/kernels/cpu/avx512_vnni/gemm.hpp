// GEMM of 16 rows with vpdpbusd: the weights of a chunk fill 16 registers and are multiplied with
// four tokens at a time, so weights are decoded once for any number of tokens. The AMX kernels
// include this, too, for few tokens: therefore the unnamed namespace.
#pragma once
#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "fp4moe/kernels/cpu/gemm.hpp"
#include "fp4moe/kernels/cpu/x86_gemm.hpp"

namespace fp4moe::kernels::cpu {
namespace {

inline constexpr std::size_t kVnniAhead = 4096;  // bytes of codes that are prefetched
inline constexpr std::size_t kVnniVectors = kChunk / 4;

[[gnu::always_inline]] inline __m512i load512(const void* from) { return _mm512_loadu_si512(from); }

[[gnu::always_inline]] inline __m128i load_scales(const std::uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

// Block scales of 16 rows. Byte 0 gives 0, as gemm.hpp wants it; 255 does not come.
[[gnu::always_inline]] inline __m512 e8m0_scales(__m128i bytes) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23));
}

// E4M3 is a float16 with fewer bits and another exponent bias.
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

// Missing blocks have scale 0.
template <class Format>
[[gnu::always_inline]] inline void decode_chunk(const GemmWeights& weights, std::size_t group,
                                                std::size_t chunk, VnniChunk<Format>& result) {
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
    result.weights[2 * i] = _mm512_permutexvar_epi8(bytes, table);
    result.weights[2 * i + 1] = _mm512_permutexvar_epi8(_mm512_srli_epi16(bytes, 4), table);
  }
  _mm_prefetch(reinterpret_cast<const char*>(scales + kVnniAhead / 16), _MM_HINT_T0);
#pragma GCC unroll 4
  for (std::size_t p = 0; p < Format::kParts; ++p)
    result.scales[p] = column + p < weights.scale_columns
                           ? Format::scales(load_scales(scales + p * kX86Group))
                           : _mm512_setzero_ps();
}

// Adds the products of 4 columns. Written out, because g++ loads the token's bytes by an
// instruction of their own, and it is the number of instructions that limits this.
[[gnu::always_inline]] inline __m512i dot(__m512i sum, __m512i weights, const std::int8_t* bytes) {
  struct Word {
    std::int8_t bytes[4];
  };
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(sum)
      : "v"(weights), "m"(*reinterpret_cast<const Word*>(bytes)));
  return sum;
}

// Some tokens of a panel, and where their sums of 16 rows are.
struct VnniTokens {
  const std::int8_t* lines = nullptr;
  const std::int32_t* corrections = nullptr;
  const float* half_steps = nullptr;
  float* sums = nullptr;
};

// A chunk of `kTokens` tokens. They are interleaved with two blocks, so that no instruction waits
// for the one before it.
template <class Format, std::size_t kLimbs, std::size_t kTokens>
[[gnu::always_inline]] inline void add_chunk(const VnniChunk<Format>& chunk, const VnniTokens& at) {
  constexpr std::size_t kEach = kVnniVectors / Format::kParts, kLine = X86Panel<kLimbs>::kLine;
  constexpr std::size_t kBlocks = 2, kSums = kTokens * kBlocks;
  __m512 totals[kTokens];
  for (__m512& total : totals) total = _mm512_setzero_ps();
#pragma GCC unroll 2
  for (std::size_t first = 0; first < Format::kParts; first += kBlocks) {
    __m512i high[kSums], low[kSums];  // token after token of a block
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kSums; ++i) {
      const std::size_t part = first + i / kTokens, t = i % kTokens;
      high[i] = _mm512_setzero_si512();
      low[i] = _mm512_set1_epi32(at.corrections[t * kX86Corrections + Format::kCorrection + part]);
    }
#pragma GCC unroll 64
    for (std::size_t k = 0; k < kSums * kEach; ++k) {
      const std::size_t i = k % kSums, part = first + i / kTokens, t = i % kTokens;
      const std::size_t vector = part * kEach + k / kSums;
      const std::int8_t* line = at.lines + t * kLine + 4 * vector;
      if constexpr (kLimbs == 2) high[i] = dot(high[i], chunk.weights[vector], line);
      low[i] = dot(low[i], chunk.weights[vector], line + (kLimbs - 1) * kChunk);
    }
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kSums; ++i) {
      const std::size_t part = first + i / kTokens, t = i % kTokens;
      if constexpr (kLimbs == 2) low[i] = _mm512_add_epi32(_mm512_slli_epi32(high[i], 8), low[i]);
      totals[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(low[i]), chunk.scales[part], totals[t]);
    }
  }
#pragma GCC unroll 4
  for (std::size_t t = 0; t < kTokens; ++t) {
    float* sum = at.sums + t * kX86Group;
    _mm512_store_ps(
        sum, _mm512_fmadd_ps(totals[t], _mm512_set1_ps(at.half_steps[t]), _mm512_load_ps(sum)));
  }
}

// `kTokens` at a time, from the token `first` on. Returns the first one left.
template <class Format, std::size_t kLimbs, std::size_t kTokens>
[[gnu::always_inline]] inline std::size_t add_chunks(const VnniChunk<Format>& chunk,
                                                     const VnniTokens& all, std::size_t first,
                                                     std::size_t tokens) {
#pragma GCC unroll 1
  for (; first + kTokens <= tokens; first += kTokens)
    add_chunk<Format, kLimbs, kTokens>(chunk,
                                       {.lines = all.lines + first * X86Panel<kLimbs>::kLine,
                                        .corrections = all.corrections + first * kX86Corrections,
                                        .half_steps = all.half_steps + first,
                                        .sums = all.sums + first * kX86Group});
  return first;
}

template <class Format, std::size_t kLimbs, class Padding>
[[gnu::noinline]] void vnni_gemm(const GemmCall& call) noexcept {
  const GemmWeights& weights = call.weights;
  const std::size_t chunks = (weights.blocks + 1) / 2, tokens = call.tokens.tokens;
  const X86Panel<kLimbs> panel(call.tokens.panel, Padding::padded(tokens), chunks);
  alignas(64) float sums[kGemmTokens * kX86Group];
  for (std::size_t row = 0; row < call.rows; row += kX86Group) {
    for (std::size_t t = 0; t < tokens; ++t)
      _mm512_store_ps(sums + t * kX86Group, _mm512_setzero_ps());
    for (std::size_t c = 0; c < chunks; ++c) {
      VnniChunk<Format> chunk;
      decode_chunk(weights, (call.first_row + row) / kX86Group, c, chunk);
      const VnniTokens all{.lines = panel.line(c, 0),
                           .corrections = panel.correction(c, 0),
                           .half_steps = call.tokens.half_steps + c * padded_tokens(tokens),
                           .sums = sums};
      std::size_t done = add_chunks<Format, kLimbs, 4>(chunk, all, 0, tokens);
      done = add_chunks<Format, kLimbs, 3>(chunk, all, done, tokens);
      done = add_chunks<Format, kLimbs, 2>(chunk, all, done, tokens);
      add_chunks<Format, kLimbs, 1>(chunk, all, done, tokens);
    }
    for (std::size_t t = 0; t < tokens; ++t)
      _mm512_storeu_ps(call.sums + t * call.stride + row, _mm512_load_ps(sums + t * kX86Group));
  }
}

}  // namespace
}  // namespace fp4moe::kernels::cpu
