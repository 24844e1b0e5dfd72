// GEMM of 8 rows by vpmaddubsw: the weights of a block fill 8 registers, and tokens pass by one
// after the other. Pairs of products are at most 24 * 2 * 128, so four of them, 16 columns, are
// added in 16 bits.
#include "fp4moe/kernels/cpu/gemm.hpp"

#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "fp4moe/kernels/cpu/x86_gemm.hpp"

namespace fp4moe::kernels::cpu::avx2 {
namespace {

constexpr std::size_t kRows = 8, kVectors = kX86Block / 4, kAhead = 2048;

[[gnu::always_inline]] inline __m256 e8m0_of(const std::uint8_t* bytes) {
  const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(eight), 23));
}

// E4M3 is a float16 with fewer bits, but for the bias of its exponent.
[[gnu::always_inline]] inline __m256 e4m3_of(const std::uint8_t* bytes) {
  const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  const __m128i halves = _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(eight), 7),
                                       _mm_set1_epi16(static_cast<short>(0xBF80)));
  return _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.0f));
}

// A block of 32 columns has `kParts` scales, and corrections from `kCorrection`.
struct Mxfp4 {
  static constexpr std::size_t kParts = 1, kCorrection = kX86Halves;
  [[gnu::always_inline]] static __m256 scales(const std::uint8_t* bytes) { return e8m0_of(bytes); }
};
struct Nvfp4 {
  static constexpr std::size_t kParts = 2, kCorrection = 0;
  [[gnu::always_inline]] static __m256 scales(const std::uint8_t* bytes) { return e4m3_of(bytes); }
};

template <class Format>
struct Block {
  __m256i weights[kVectors];  // of 8 rows and 4 columns, plus 12
  __m256 scales[Format::kParts];
};

template <class Format>
[[gnu::always_inline]] inline void decode(const std::uint8_t* codes, const std::uint8_t* scales,
                                          std::size_t parts, Block<Format>& result) {
  const __m256i table = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m256i nibble = _mm256_set1_epi8(15);
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kVectors / 2; ++i) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 64 * i));
    result.weights[2 * i] = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, nibble));
    result.weights[2 * i + 1] =
        _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble));
  }
#pragma GCC unroll 2
  for (std::size_t p = 0; p < Format::kParts; ++p)
    result.scales[p] = p < parts ? Format::scales(scales + p * kX86Group) : _mm256_setzero_ps();
}

// Sums of 16 columns, four vectors of weights, and a token's 16 bytes.
[[gnu::always_inline]] inline __m256i sixteen_columns(const __m256i* weights,
                                                      const std::int8_t* bytes) {
  __m256i pairs = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i) {
    std::int32_t word = 0;
    __builtin_memcpy(&word, bytes + 4 * i, sizeof word);
    const __m256i product = _mm256_maddubs_epi16(weights[i], _mm256_set1_epi32(word));
    pairs = i == 0 ? product : _mm256_add_epi16(pairs, product);
  }
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

// Adds a block to `total`, the `t` of gemm.hpp, for 8 rows and a token.
template <class Format, std::size_t kLimbs>
[[gnu::always_inline]] inline __m256 add_block(const Block<Format>& block, const std::int8_t* line,
                                               const std::int32_t* corrections, __m256 total) {
  constexpr std::size_t kSixteens = 2 / Format::kParts;
#pragma GCC unroll 2
  for (std::size_t p = 0; p < Format::kParts; ++p) {
    __m256i high = _mm256_setzero_si256();
    __m256i low = _mm256_set1_epi32(corrections[p]);
#pragma GCC unroll 2
    for (std::size_t s = p * kSixteens; s < (p + 1) * kSixteens; ++s) {
      if constexpr (kLimbs == 2)
        high = _mm256_add_epi32(high, sixteen_columns(block.weights + 4 * s, line + 16 * s));
      low = _mm256_add_epi32(
          low, sixteen_columns(block.weights + 4 * s, line + (kLimbs - 1) * kChunk + 16 * s));
    }
    if constexpr (kLimbs == 2) low = _mm256_add_epi32(_mm256_slli_epi32(high, 8), low);
    total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(low), block.scales[p], total);
  }
  return total;
}

// A chunk's first block leaves its `t` here for the second.
struct alignas(32) Totals {
  float rows[kGemmTokens][kRows];
};

// Which rows and columns, and where their sums go.
struct EightRows {
  std::size_t group = 0, half = 0, block = 0;
  float* sums = nullptr;
};

template <class Format, std::size_t kLimbs>
void multiply_block(const GemmCall& call, const EightRows& at, const X86Panel<kLimbs>& panel,
                    Totals& totals) {
  const GemmWeights& weights = call.weights;
  const std::size_t column = at.block * Format::kParts, chunk = at.block / 2, odd = at.block % 2;
  const std::uint8_t* codes =
      weights.codes + (at.group * weights.blocks + at.block) * kX86TileBytes + at.half * 32;
  Block<Format> block;
  decode(codes,
         weights.scales + (at.group * weights.scale_columns + column) * kX86Group + at.half * kRows,
         weights.scale_columns - column, block);
  _mm_prefetch(reinterpret_cast<const char*>(codes + at.half * 96 + kAhead), _MM_HINT_T0);
  _mm_prefetch(reinterpret_cast<const char*>(codes + at.half * 96 + kAhead + 64), _MM_HINT_T0);
  const float* half_steps = call.tokens.half_steps + chunk * padded_tokens(call.tokens.tokens);
  const bool last = odd != 0 || at.block + 1 == weights.blocks;
#pragma GCC unroll 1
  for (std::size_t t = 0; t < call.tokens.tokens; ++t) {
    float* before = totals.rows[t];
    const __m256 total = add_block<Format, kLimbs>(
        block, panel.line(chunk, t) + odd * kX86Block,
        panel.correction(chunk, t) + Format::kCorrection + odd * Format::kParts,
        odd != 0 ? _mm256_load_ps(before) : _mm256_setzero_ps());
    if (!last) {
      _mm256_store_ps(before, total);
      continue;
    }
    float* sum = at.sums + t * call.stride;
    _mm256_storeu_ps(sum,
                     _mm256_fmadd_ps(total, _mm256_set1_ps(half_steps[t]), _mm256_loadu_ps(sum)));
  }
}

template <class Format, std::size_t kLimbs>
void multiply(const GemmCall& call) noexcept {
  const std::size_t chunks = (call.weights.blocks + 1) / 2, tokens = call.tokens.tokens;
  const X86Panel<kLimbs> panel(call.tokens.panel, tokens, chunks);
  Totals totals[2];
  for (std::size_t row = 0; row < call.rows; row += kX86Group) {
    for (std::size_t t = 0; t < tokens; ++t)
      for (std::size_t half = 0; half < 2; ++half)
        _mm256_storeu_ps(call.sums + t * call.stride + row + half * kRows, _mm256_setzero_ps());
    for (std::size_t b = 0; b < call.weights.blocks; ++b)
      for (std::size_t half = 0; half < 2; ++half)
        multiply_block<Format, kLimbs>(call,
                                       {.group = (call.first_row + row) / kX86Group,
                                        .half = half,
                                        .block = b,
                                        .sums = call.sums + row + half * kRows},
                                       panel, totals[half]);
  }
}

}  // namespace

extern const GemmFunctions kGemm;
constexpr GemmFunctions kGemm{{multiply<Mxfp4, 1>, multiply<Mxfp4, 2>},
                              {multiply<Nvfp4, 1>, multiply<Nvfp4, 2>},
                              {x86_place<1, X86Exactly>, x86_place<2, X86Exactly>},
                              {x86_panel_bytes<1, X86Exactly>, x86_panel_bytes<2, X86Exactly>}};

}  // namespace fp4moe::kernels::cpu::avx2
