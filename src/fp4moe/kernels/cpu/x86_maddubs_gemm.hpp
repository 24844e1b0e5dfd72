// GEMM with vpmaddubsw, for x86 without dot products of bytes: the weights of a block fill 8
// registers and are multiplied with one token after the other. Pairs of products are at most 24 * 2
// * 128, so four of them, 16 columns, are added in 16 bits.
//
// An ISA file includes this with its own `V`, the operations of a register of 8 or 16 rows, and
// names the functions. In an unnamed namespace on purpose: nothing here is exported.
#pragma once
#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "fp4moe/kernels/cpu/gemm.hpp"
#include "fp4moe/kernels/cpu/x86_gemm.hpp"

namespace fp4moe::kernels::cpu {
namespace {

inline constexpr std::size_t kMaddubsVectors = kX86Block / 4, kMaddubsAhead = 2048;

// A block of 32 columns has `kParts` scales, and corrections from `kCorrection`.
struct MaddubsMxfp4 {
  static constexpr std::size_t kParts = 1, kCorrection = kX86Halves;
  template <class V>
  [[gnu::always_inline]] static typename V::Floats scales(const std::uint8_t* bytes) {
    return V::e8m0(bytes);
  }
};
struct MaddubsNvfp4 {
  static constexpr std::size_t kParts = 2, kCorrection = 0;
  template <class V>
  [[gnu::always_inline]] static typename V::Floats scales(const std::uint8_t* bytes) {
    return V::e4m3(bytes);
  }
};

template <class V, class Format>
struct MaddubsBlock {
  typename V::Integers weights[kMaddubsVectors];  // of `kRows` rows and 4 columns, plus 12
  typename V::Floats scales[Format::kParts];
};

// Scales past `parts` are 0.
template <class V, class Format>
[[gnu::always_inline]] inline void decode_block(const std::uint8_t* codes,
                                                const std::uint8_t* scales, std::size_t parts,
                                                MaddubsBlock<V, Format>& result) {
  const auto table =
      V::lanes(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kMaddubsVectors / 2; ++i) {
    const auto bytes = V::load(codes + 64 * i);
    result.weights[2 * i] = V::lookup(table, V::low_nibbles(bytes));
    result.weights[2 * i + 1] = V::lookup(table, V::high_nibbles(bytes));
  }
#pragma GCC unroll 2
  for (std::size_t p = 0; p < Format::kParts; ++p)
    result.scales[p] =
        p < parts ? Format::template scales<V>(scales + p * kX86Group) : V::splat(0.0f);
}

// `factor` times the sums of 16 columns: four vectors of weights, and a token's 16 bytes.
template <class V>
[[gnu::always_inline]] inline auto sixteen_columns(const typename V::Integers* weights,
                                                   const std::int8_t* bytes, short factor) {
  auto pairs = V::products(weights[0], V::four_bytes(bytes));
#pragma GCC unroll 3
  for (std::size_t i = 1; i < 4; ++i)
    pairs = V::add16(pairs, V::products(weights[i], V::four_bytes(bytes + 4 * i)));
  return V::add_pairs(pairs, factor);
}

// Adds a block to `total`, the `t` of gemm.hpp, for a register's rows and a token.
template <class V, class Format, std::size_t kLimbs>
[[gnu::always_inline]] inline auto add_block(const MaddubsBlock<V, Format>& block,
                                             const std::int8_t* line,
                                             const std::int32_t* corrections,
                                             typename V::Floats total) {
  constexpr std::size_t kSixteens = 2 / Format::kParts;
#pragma GCC unroll 2
  for (std::size_t p = 0; p < Format::kParts; ++p) {
    auto sum = V::splat(corrections[p]);
#pragma GCC unroll 2
    for (std::size_t s = p * kSixteens; s < (p + 1) * kSixteens; ++s) {
      const std::int8_t* low = line + (kLimbs - 1) * kChunk + 16 * s;
      sum = V::add32(sum, sixteen_columns<V>(block.weights + 4 * s, low, 1));
      if constexpr (kLimbs == 2)
        sum = V::add32(sum, sixteen_columns<V>(block.weights + 4 * s, line + 16 * s, 256));
    }
    total = V::fma(V::to_floats(sum), block.scales[p], total);
  }
  return total;
}

// A chunk's first block leaves its `t` here for the second.
template <class V>
struct alignas(64) MaddubsTotals {
  float rows[kGemmTokens][V::kRows];
};

// The rows and columns of a call, and the address of their sums.
struct MaddubsRows {
  std::size_t group = 0, part = 0, block = 0;
  float* sums = nullptr;
};

template <class V, class Format, std::size_t kLimbs>
void mma_block(const GemmCall& call, const MaddubsRows& at, const X86Panel<kLimbs>& panel,
               MaddubsTotals<V>& totals) {
  constexpr std::size_t kFetched = kX86TileBytes * V::kRows / kX86Group;
  const GemmWeights& weights = call.weights;
  const std::size_t column = at.block * Format::kParts, chunk = at.block / 2, odd = at.block % 2;
  const std::uint8_t* tile = weights.codes + (at.group * weights.blocks + at.block) * kX86TileBytes;
  MaddubsBlock<V, Format> block;
  decode_block(
      tile + at.part * V::kRows * 4,
      weights.scales + (at.group * weights.scale_columns + column) * kX86Group + at.part * V::kRows,
      weights.scale_columns - column, block);
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kFetched; i += 64)
    _mm_prefetch(reinterpret_cast<const char*>(tile + at.part * kFetched + kMaddubsAhead + i),
                 _MM_HINT_T0);
  const float* half_steps = call.tokens.half_steps + chunk * padded_tokens(call.tokens.tokens);
  const bool last = odd != 0 || at.block + 1 == weights.blocks;
#pragma GCC unroll 1
  for (std::size_t t = 0; t < call.tokens.tokens; ++t) {
    float* before = totals.rows[t];
    const auto total = add_block<V, Format, kLimbs>(
        block, panel.line(chunk, t) + odd * kX86Block,
        panel.correction(chunk, t) + Format::kCorrection + odd * Format::kParts,
        odd != 0 ? V::load(before) : V::splat(0.0f));
    if (!last) {
      V::store(before, total);
      continue;
    }
    float* sum = at.sums + t * call.stride;
    V::store(sum, V::fma(total, V::splat(half_steps[t]), V::load(sum)));
  }
}

template <class V, class Format, std::size_t kLimbs>
void maddubs_gemm(const GemmCall& call) noexcept {
  constexpr std::size_t kParts = kX86Group / V::kRows;
  const std::size_t chunks = (call.weights.blocks + 1) / 2, tokens = call.tokens.tokens;
  const X86Panel<kLimbs> panel(call.tokens.panel, tokens, chunks);
  MaddubsTotals<V> totals[kParts];
  for (std::size_t row = 0; row < call.rows; row += kX86Group) {
    for (std::size_t t = 0; t < tokens; ++t)
      for (std::size_t part = 0; part < kParts; ++part)
        V::store(call.sums + t * call.stride + row + part * V::kRows, V::splat(0.0f));
    for (std::size_t b = 0; b < call.weights.blocks; ++b)
      for (std::size_t part = 0; part < kParts; ++part)
        mma_block<V, Format, kLimbs>(call,
                                     {.group = (call.first_row + row) / kX86Group,
                                      .part = part,
                                      .block = b,
                                      .sums = call.sums + row + part * V::kRows},
                                     panel, totals[part]);
  }
}

template <class V>
inline constexpr GemmFunctions kMaddubsFunctions{
    {maddubs_gemm<V, MaddubsMxfp4, 1>, maddubs_gemm<V, MaddubsMxfp4, 2>},
    {maddubs_gemm<V, MaddubsNvfp4, 1>, maddubs_gemm<V, MaddubsNvfp4, 2>},
    {x86_pack_tokens<1, X86Exactly>, x86_pack_tokens<2, X86Exactly>},
    {x86_panel_bytes<1, X86Exactly>, x86_panel_bytes<2, X86Exactly>}};

}  // namespace
}  // namespace fp4moe::kernels::cpu
