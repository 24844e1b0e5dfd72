// The GEMM kernels for Arm, for any way to multiply bytes. An ISA file includes this with its
// own `Mac` and names the functions; everything here has internal linkage.
//
// A register holds 8 columns of two rows, or of two tokens, and a Mac makes the 2 x 2 sums of both:
//
//   one token      panel [chunk][8 groups of 8 columns][hi 8 | lo 8]     sums: row x limb
//                  (one limb: the same 8 bytes twice)
//   more           panel [4 pairs][chunk][limb][8 groups][pair][16]      sums: row x token
//
// Up to 8 tokens, codes are decoded in registers for every use; beyond, 8 rows are decoded once
// into a buffer that stays in the L1 cache.
#pragma once
#include <cstring>

#include <arm_neon.h>

#include "fp4moe/kernels/cpu/arm_operands.hpp"

namespace fp4moe::kernels::cpu {
namespace {

// --- one token

// Four rows of a block, for one token: groups of 8 columns, two per 16 bytes of a tile.
template <class Mac, class Format, std::size_t kLimbs>
int32x4_t block_of_one(const Decoder& decode, const std::uint8_t* tile, std::size_t vector,
                       const std::int8_t* token) {
  if constexpr (kLimbs == 2) {
    Mac upper, lower;
    for (std::size_t i = 0; i < Format::kVectorsOf; i += 2) {
      const std::size_t at = (vector + i) % 4 / 2 * kRegister;
      const uint8x16_t a = vld1q_u8(tile + at), b = vld1q_u8(tile + 32 + at);
      const int8x16_t x = vld1q_s8(token + i * kRegister);
      const int8x16_t y = vld1q_s8(token + (i + 1) * kRegister);
      upper.add(decode.first(a), x);
      lower.add(decode.first(b), x);
      upper.add(decode.second(a), y);
      lower.add(decode.second(b), y);
    }
    const int32x4_t rows01 = upper.sums(), rows23 = lower.sums();
    const int32x4_t upper_first = vreinterpretq_s32_s64(vdupq_n_s64(8));  // shifts: 8 0 8 0
    return vpaddq_s32(vshlq_s32(rows01, upper_first), vshlq_s32(rows23, upper_first));
  } else {
    int32x4_t rows01 = vdupq_n_s32(0), rows23 = vdupq_n_s32(0);
    for (std::size_t i = 0; i < Format::kVectorsOf; i += 2) {
      const std::size_t at = (vector + i) % 4 / 2 * kRegister;
      const uint8x16_t a = vld1q_u8(tile + at), b = vld1q_u8(tile + 32 + at);
      const int8x16_t x = vld1q_s8(token + i * kRegister);
      const int8x16_t y = vld1q_s8(token + (i + 1) * kRegister);
      rows01 = Mac::dot(rows01, decode.first(a), x);
      rows23 = Mac::dot(rows23, decode.first(b), x);
      rows01 = Mac::dot(rows01, decode.second(a), y);
      rows23 = Mac::dot(rows23, decode.second(b), y);
    }
    return vpaddq_s32(rows01, rows23);
  }
}

template <class Mac, class Format, std::size_t kLimbs>
float32x4_t chunk_of_one(const Decoder& decode, const Indices<Format>& indices,
                         const std::uint8_t* tile, const std::uint8_t* scales, std::size_t blocks,
                         const std::int8_t* token) {
  const typename Format::Table table = Format::table(scales, blocks);
  float32x4_t inner{};
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::size_t vector = b * Format::kVectorsOf;
    const int32x4_t exact = block_of_one<Mac, Format, kLimbs>(
        decode, tile + vector / 4 * kTileBytes, vector, token + vector * kRegister);
    const float32x4_t scale = Format::look_up(table, indices.rows[b]);
    inner = b == 0 ? vmulq_f32(vcvtq_f32_s32(exact), scale)
                   : vfmaq_f32(inner, vcvtq_f32_s32(exact), scale);
  }
  return with_factor<Format>(inner);
}

template <class Mac, class Format, std::size_t kLimbs>
void gemm_one_token(const GemmCall& call) noexcept {
  const GemmWeights& weights = call.weights;
  const Decoder decode;
  const Indices<Format> indices;
  const std::size_t chunks = chunks_of(weights), steps = padded_tokens(1);
  const std::size_t whole = weights.scale_columns / Format::kBlocks;
  const auto* token = reinterpret_cast<const std::int8_t*>(call.tokens.panel);
  for (std::size_t r = 0; r < call.rows; r += kGroup) {
    const std::size_t group = (call.first_row + r) / kGroup;
    const std::uint8_t* tile = weights.codes + group * weights.blocks * kTileBytes;
    const std::uint8_t* scales = weights.scales + group * weights.scale_columns * kGroup;
    float32x4_t sum = vdupq_n_f32(0);
    for (std::size_t c = 0; c < whole; ++c) {
      const float32x4_t inner = chunk_of_one<Mac, Format, kLimbs>(
          decode, indices, tile + c * 2 * kTileBytes, scales + c * Format::kBlocks * kGroup,
          Format::kBlocks, token + c * kVectors * kRegister);
      sum = vfmaq_n_f32(sum, inner, call.tokens.half_steps[c * steps]);
    }
    for (std::size_t c = whole; c < chunks; ++c) {
      const float32x4_t inner = chunk_of_one<Mac, Format, kLimbs>(
          decode, indices, tile + c * 2 * kTileBytes, scales + c * Format::kBlocks * kGroup,
          blocks_of<Format>(weights, c), token + c * kVectors * kRegister);
      sum = vfmaq_n_f32(sum, inner, call.tokens.half_steps[c * steps]);
    }
    vst1q_f32(call.sums + r, sum);
  }
}

// --- 2 to 8 tokens

// Stores a pair's sums with two rows, [row][token].
inline void store_pair(float* sums, std::size_t stride, bool has_second, float32x4_t values) {
  vst1_f32(sums, vget_low_f32(vuzp1q_f32(values, values)));
  if (has_second) vst1_f32(sums + stride, vget_low_f32(vuzp2q_f32(values, values)));
}

// A chunk of 4 rows, decoded: [row pair][8 columns]. Inlined, so that it stays in registers.
template <std::size_t kTiles>
[[gnu::always_inline]] inline void decode_chunk(const Decoder& decode, const std::uint8_t* tile,
                                                int8x16_t (&rows)[2][kVectors]) {
  for (std::size_t t = 0; t < kTiles; ++t)
    for (std::size_t pair = 0; pair < 2; ++pair)
      for (std::size_t half = 0; half < 2; ++half) {
        const uint8x16_t codes = vld1q_u8(tile + t * kTileBytes + pair * 32 + half * kRegister);
        rows[pair][t * 4 + half * 2] = decode.first(codes);
        rows[pair][t * 4 + half * 2 + 1] = decode.second(codes);
      }
  if constexpr (kTiles == 1)
    for (auto& row : rows)
      for (std::size_t i = 4; i < kVectors; ++i) row[i] = vdupq_n_s8(0);
}

template <class Mac, class Format, std::size_t kLimbs, std::size_t kPairs>
[[gnu::always_inline]] inline void chunk_of_few(const int8x16_t (&rows)[2][kVectors],
                                                const float32x4_t (&scales)[2][4],
                                                const std::int8_t* panel, const float* half_steps,
                                                float32x4_t (&sums)[2][kGroupPairs]) {
#pragma GCC unroll 2  // more would spill, fewer leave the units waiting
  for (std::size_t p = 0; p < kPairs; ++p) {
    float32x4_t inner[2] = {};
    for (std::size_t b = 0; b < Format::kBlocks; ++b) {
      Mac exact[2];
      for (std::size_t l = 0; l < kLimbs; ++l) {
        if (l != 0)
          for (Mac& mac : exact) mac.shift();
        for (std::size_t i = 0; i < Format::kVectorsOf; ++i) {
          const std::size_t vector = b * Format::kVectorsOf + i;
          const int8x16_t x = vld1q_s8(panel + ((l * kVectors + vector) * kPairs + p) * kRegister);
          exact[0].add(rows[0][vector], x);
          exact[1].add(rows[1][vector], x);
        }
      }
      for (std::size_t r = 0; r < 2; ++r)
        inner[r] = b == 0 ? vmulq_f32(vcvtq_f32_s32(exact[r].sums()), scales[r][b])
                          : vfmaq_f32(inner[r], vcvtq_f32_s32(exact[r].sums()), scales[r][b]);
    }
    const float32x4_t steps =
        vreinterpretq_f32_f64(vld1q_dup_f64(reinterpret_cast<const double*>(half_steps + 2 * p)));
    for (std::size_t r = 0; r < 2; ++r)
      sums[r][p] = vfmaq_f32(sums[r][p], with_factor<Format>(inner[r]), steps);
  }
}

template <class Mac, class Format, std::size_t kLimbs, std::size_t kPairs>
void gemm_few_tokens(const GemmCall& call) noexcept {
  const GemmWeights& weights = call.weights;
  const Decoder decode;
  const Indices<Format> indices;
  const std::size_t chunks = chunks_of(weights), tokens = call.tokens.tokens;
  const std::size_t steps = padded_tokens(tokens), whole = weights.scale_columns / Format::kBlocks;
  const auto* panel = reinterpret_cast<const std::int8_t*>(call.tokens.panel);
  constexpr std::size_t kChunkBytes = kPairs * 2 * kChunk * kLimbs;
  for (std::size_t r = 0; r < call.rows; r += kGroup) {
    const std::size_t group = (call.first_row + r) / kGroup;
    const std::uint8_t* tile = weights.codes + group * weights.blocks * kTileBytes;
    const std::uint8_t* bytes = weights.scales + group * weights.scale_columns * kGroup;
    float32x4_t sums[2][kGroupPairs] = {};
    const auto mma_chunk = [&]<std::size_t kTiles>(std::size_t c, std::size_t blocks)
        __attribute__((always_inline)) {
      int8x16_t rows[2][kVectors];
      float32x4_t scales[2][4];
      decode_chunk<kTiles>(decode, tile + c * 2 * kTileBytes, rows);
      const typename Format::Table table =
          Format::table(bytes + c * Format::kBlocks * kGroup, blocks);
      for (std::size_t b = 0; b < Format::kBlocks; ++b)
        for (std::size_t pair = 0; pair < 2; ++pair)
          scales[pair][b] = Format::look_up(table, indices.pairs[pair][b]);
      chunk_of_few<Mac, Format, kLimbs, kPairs>(rows, scales, panel + c * kChunkBytes,
                                                call.tokens.half_steps + c * steps, sums);
    };
    for (std::size_t c = 0; c < whole; ++c) mma_chunk.template operator()<2>(c, Format::kBlocks);
    // The last chunk may lack blocks: their rows and scales are zeros.
    if (whole < chunks) {
      const std::size_t blocks = blocks_of<Format>(weights, whole);
      if (weights.blocks - 2 * whole == 2)
        mma_chunk.template operator()<2>(whole, blocks);
      else
        mma_chunk.template operator()<1>(whole, blocks);
    }
    for (std::size_t p = 0; p < kPairs; ++p)
      for (std::size_t pair = 0; pair < 2; ++pair)
        store_pair(call.sums + 2 * p * call.stride + r + 2 * pair, call.stride, 2 * p + 1 < tokens,
                   sums[pair][p]);
  }
}

// --- more than 8 tokens

// Eight rows and a few chunks, decoded: the four row pairs of 8 columns lie side by side. A folded
// chunk has its smaller scale as block 0's and is summed as a whole.
struct Held {
  alignas(64) std::int8_t rows[kHeldChunks][kVectors][kLargeRows / 2][kRegister];
  alignas(64) float scales[kHeldChunks][4][kLargeRows / 2][4];  // [chunk][block][row pair][lane]
  bool is_folded[kHeldChunks];
};

// True if all of 8 rows may be folded, given the scale bytes of both blocks.
inline bool folds(uint8x8_t first, uint8x8_t second) {
  return vmaxv_u8(vabd_u8(first, second)) <= kFoldSteps &&
         vminv_u8(vmin_u8(first, second)) >= kFoldFrom &&
         vmaxv_u8(vmax_u8(first, second)) <= kFoldTo;
}

template <class Format>
void decode_large(const GemmWeights& weights, std::size_t row, std::size_t begin, std::size_t end,
                  Held& held) {
  const Decoder decode;
  const Indices<Format> indices;
  const std::size_t group = row / kGroup;
  for (std::size_t c = begin; c < end; ++c) {
    const std::size_t blocks = blocks_of<Format>(weights, c);
    const std::uint8_t* bytes[2];
    for (std::size_t g = 0; g < 2; ++g)
      bytes[g] =
          weights.scales + ((group + g) * weights.scale_columns + c * Format::kBlocks) * kGroup;
    bool is_folded = false;
    uint8x8_t distance[2] = {};  // of both blocks, by group: how far rows are shifted
    if constexpr (Format::kBlocks == 2) {
      if (blocks == 2) {
        const uint8x8_t one = vld1_u8(bytes[0]), other = vld1_u8(bytes[1]);
        const uint8x8_t first =
            vreinterpret_u8_u32(vzip1_u32(vreinterpret_u32_u8(one), vreinterpret_u32_u8(other)));
        const uint8x8_t second =
            vreinterpret_u8_u32(vzip2_u32(vreinterpret_u32_u8(one), vreinterpret_u32_u8(other)));
        is_folded = folds(first, second);
        distance[0] =
            vsub_u8(one, vmin_u8(one, vreinterpret_u8_u32(vrev64_u32(vreinterpret_u32_u8(one)))));
        distance[1] = vsub_u8(
            other, vmin_u8(other, vreinterpret_u8_u32(vrev64_u32(vreinterpret_u32_u8(other)))));
      }
    }
    held.is_folded[c - begin] = is_folded;
    for (std::size_t g = 0; g < 2; ++g) {
      int8x16_t rows[2][kVectors];
      const std::uint8_t* tile =
          weights.codes + ((group + g) * weights.blocks + 2 * c) * kTileBytes;
      if (weights.blocks - 2 * c >= 2)
        decode_chunk<2>(decode, tile, rows);
      else
        decode_chunk<1>(decode, tile, rows);
      if (is_folded) {
        // Lane i of `distance` is block i / 4, row i % 4.
        for (std::size_t b = 0; b < 2; ++b)
          for (std::size_t pair = 0; pair < 2; ++pair) {
            const uint8x16_t at =
                vcombine_u8(vdup_n_u8(static_cast<std::uint8_t>(b * 4 + pair * 2)),
                            vdup_n_u8(static_cast<std::uint8_t>(b * 4 + pair * 2 + 1)));
            const int8x16_t shift =
                vreinterpretq_s8_u8(vqtbl1q_u8(vcombine_u8(distance[g], distance[g]), at));
            for (std::size_t i = 0; i < 4; ++i)
              rows[pair][b * 4 + i] = vshlq_s8(rows[pair][b * 4 + i], shift);
          }
      }
      for (std::size_t i = 0; i < kVectors; ++i)
        for (std::size_t pair = 0; pair < 2; ++pair)
          vst1q_s8(held.rows[c - begin][i][2 * g + pair], rows[pair][i]);
      const typename Format::Table table = Format::table(bytes[g], blocks);
      for (std::size_t b = 0; b < Format::kBlocks; ++b)
        for (std::size_t pair = 0; pair < 2; ++pair) {
          float32x4_t scale = Format::look_up(table, indices.pairs[pair][b]);
          if (is_folded && b == 0)
            scale = vminq_f32(scale, Format::look_up(table, indices.pairs[pair][1]));
          vst1q_f32(held.scales[c - begin][b][2 * g + pair], scale);
        }
    }
  }
}

// Sums over a chunk's 64 columns, once for each limb: 4 row pairs by kPairs token pairs.
template <class Mac, std::size_t kLimbs, std::size_t kPairs>
void folded_chunk(const std::int8_t* rows, const float* scales, const std::int8_t* panel,
                  const float* half_steps, float32x4_t* sums) {
  Mac exact[4][kPairs];
  for (std::size_t l = 0; l < kLimbs; ++l) {
    if (l != 0)
      for (auto& row : exact)
        for (Mac& mac : row) mac.shift();
#pragma GCC unroll 1  // more would spill the sums
    for (std::size_t i = 0; i < kVectors; ++i) {
      int8x16_t w[4], x[kPairs];
      for (std::size_t r = 0; r < 4; ++r) w[r] = vld1q_s8(rows + (i * 4 + r) * kRegister);
      for (std::size_t p = 0; p < kPairs; ++p)
        x[p] = vld1q_s8(panel + ((l * kVectors + i) * kPairs + p) * kRegister);
      for (std::size_t r = 0; r < 4; ++r)
        for (std::size_t p = 0; p < kPairs; ++p) exact[r][p].add(w[r], x[p]);
    }
  }
  for (std::size_t r = 0; r < 4; ++r) {
    const float32x4_t scale = vld1q_f32(scales + 4 * r);
    for (std::size_t p = 0; p < kPairs; ++p) {
      const float32x4_t steps =
          vreinterpretq_f32_f64(vld1q_dup_f64(reinterpret_cast<const double*>(half_steps + 2 * p)));
      const float32x4_t inner = vmulq_f32(vcvtq_f32_s32(exact[r][p].sums()), scale);
      sums[r * kGroupPairs + p] = vfmaq_f32(sums[r * kGroupPairs + p], inner, steps);
    }
  }
}

// The same block by block, for two row pairs at a time.
template <class Mac, class Format, std::size_t kLimbs, std::size_t kPairs>
void plain_chunk(const std::int8_t* rows, const float* scales, const std::int8_t* panel,
                 const float* half_steps, float32x4_t* sums) {
  float32x4_t inner[2][kPairs] = {};
  for (std::size_t b = 0; b < Format::kBlocks; ++b) {
    Mac exact[2][kPairs];
    for (std::size_t l = 0; l < kLimbs; ++l) {
      if (l != 0)
        for (auto& row : exact)
          for (Mac& mac : row) mac.shift();
#pragma GCC unroll 1
      for (std::size_t e = 0; e < Format::kVectorsOf; ++e) {
        const std::size_t i = b * Format::kVectorsOf + e;
        int8x16_t w[2], x[kPairs];
        for (std::size_t r = 0; r < 2; ++r) w[r] = vld1q_s8(rows + (i * 4 + r) * kRegister);
        for (std::size_t p = 0; p < kPairs; ++p)
          x[p] = vld1q_s8(panel + ((l * kVectors + i) * kPairs + p) * kRegister);
        for (std::size_t r = 0; r < 2; ++r)
          for (std::size_t p = 0; p < kPairs; ++p) exact[r][p].add(w[r], x[p]);
      }
    }
    for (std::size_t r = 0; r < 2; ++r) {
      const float32x4_t scale = vld1q_f32(scales + (b * 4 + r) * 4);
      for (std::size_t p = 0; p < kPairs; ++p)
        inner[r][p] = b == 0 ? vmulq_f32(vcvtq_f32_s32(exact[r][p].sums()), scale)
                             : vfmaq_f32(inner[r][p], vcvtq_f32_s32(exact[r][p].sums()), scale);
    }
  }
  for (std::size_t r = 0; r < 2; ++r)
    for (std::size_t p = 0; p < kPairs; ++p) {
      const float32x4_t steps =
          vreinterpretq_f32_f64(vld1q_dup_f64(reinterpret_cast<const double*>(half_steps + 2 * p)));
      sums[r * kGroupPairs + p] =
          vfmaq_f32(sums[r * kGroupPairs + p], with_factor<Format>(inner[r][p]), steps);
    }
}

// The held chunks against one group of pairs.
template <class Mac, class Format, std::size_t kLimbs, std::size_t kPairs>
void mma_held(const Held& held, std::size_t begin, std::size_t end, const std::int8_t* panel,
              const float* half_steps, std::size_t steps, float* kept) {
  constexpr std::size_t kChunkBytes = kPairs * 2 * kChunk * kLimbs;
  float32x4_t sums[4 * kGroupPairs];
  for (std::size_t i = 0; i < 4 * kGroupPairs; ++i) sums[i] = vld1q_f32(kept + 4 * i);
  for (std::size_t c = begin; c < end; ++c) {
    const std::int8_t* rows = held.rows[c - begin][0][0];
    const float* scales = held.scales[c - begin][0][0];
    const std::int8_t* tokens = panel + c * kChunkBytes;
    const float* step = half_steps + c * steps;
    if (held.is_folded[c - begin]) {
      folded_chunk<Mac, kLimbs, kPairs>(rows, scales, tokens, step, sums);
      continue;
    }
    for (std::size_t half = 0; half < 2; ++half)
      plain_chunk<Mac, Format, kLimbs, kPairs>(rows + half * 2 * kRegister, scales + half * 8,
                                               tokens, step, sums + half * 2 * kGroupPairs);
  }
  for (std::size_t i = 0; i < 4 * kGroupPairs; ++i) vst1q_f32(kept + 4 * i, sums[i]);
}

template <class Mac, class Format, std::size_t kLimbs>
void gemm_many_tokens(const GemmCall& call) noexcept {
  const std::size_t chunks = chunks_of(call.weights), tokens = call.tokens.tokens;
  const std::size_t pairs = (tokens + 1) / 2, steps = padded_tokens(tokens);
  const auto* panel = reinterpret_cast<const std::int8_t*>(call.tokens.panel);
  Held held;
  alignas(64) float kept[kGemmTokens / 2 / kGroupPairs][4 * kGroupPairs * 4];
  for (std::size_t r = 0; r < call.rows; r += kLargeRows) {
    std::memset(kept, 0, sizeof kept);
    for (std::size_t begin = 0; begin < chunks; begin += kHeldChunks) {
      const std::size_t end = smaller(chunks, begin + kHeldChunks);
      decode_large<Format>(call.weights, call.first_row + r, begin, end, held);
      for (std::size_t p = 0; p < pairs; p += kGroupPairs) {
        const std::int8_t* part = panel + p * chunks * 2 * kChunk * kLimbs;
        const float* half_steps = call.tokens.half_steps + 2 * p;
        const auto with = [&]<std::size_t kPairs>() {
          mma_held<Mac, Format, kLimbs, kPairs>(held, begin, end, part, half_steps, steps,
                                                kept[p / kGroupPairs]);
        };
        switch (smaller(kGroupPairs, pairs - p)) {
          case 1:
            with.template operator()<1>();
            break;
          case 2:
            with.template operator()<2>();
            break;
          case 3:
            with.template operator()<3>();
            break;
          default:
            with.template operator()<4>();
            break;
        }
      }
    }
    for (std::size_t p = 0; p < pairs; ++p)
      for (std::size_t row = 0; row < 4; ++row)
        store_pair(call.sums + 2 * p * call.stride + r + 2 * row, call.stride, 2 * p + 1 < tokens,
                   vld1q_f32(kept[p / kGroupPairs] + (row * kGroupPairs + p % kGroupPairs) * 4));
  }
}

template <class Mac, class Format, std::size_t kLimbs>
void gemm(const GemmCall& call) noexcept {
  switch ((call.tokens.tokens + 1) / 2) {
    case 1:
      return call.tokens.tokens == 1 ? gemm_one_token<Mac, Format, kLimbs>(call)
                                     : gemm_few_tokens<Mac, Format, kLimbs, 1>(call);
    case 2:
      return gemm_few_tokens<Mac, Format, kLimbs, 2>(call);
    case 3:
      return gemm_few_tokens<Mac, Format, kLimbs, 3>(call);
    case 4:
      return gemm_few_tokens<Mac, Format, kLimbs, 4>(call);
    default:
      return gemm_many_tokens<Mac, Format, kLimbs>(call);
  }
}

template <class Mac>
inline constexpr GemmFunctions kFunctions{{gemm<Mac, Mxfp4, 1>, gemm<Mac, Mxfp4, 2>},
                                          {gemm<Mac, Nvfp4, 1>, gemm<Mac, Nvfp4, 2>},
                                          {pack_tokens<1>, pack_tokens<2>},
                                          {panel_bytes<1>, panel_bytes<2>}};

}  // namespace
}  // namespace fp4moe::kernels::cpu
