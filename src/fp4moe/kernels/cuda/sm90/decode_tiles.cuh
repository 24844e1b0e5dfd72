// What the roles of a decode block share: its barriers and memory, numbers that blocks leave for
// each other, and the tiles of tokens that consumers and finishers stage together.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/decode_tables.cuh"
#include "fp4moe/kernels/cuda/sm90/pieces.cuh"
#include "fp4moe/kernels/cuda/sm90/weights.cuh"

namespace fp4moe::kernels::cuda::sm90::decode {

inline constexpr std::uint32_t kConsumerThreads = kConsumers * 128;
inline constexpr std::uint32_t kFinishers = 96;
inline constexpr std::uint32_t kStagers = kConsumerThreads + kFinishers;  // all but the producer
enum Barriers : std::uint32_t {
  kStagersMeet = 1,
  kListIsThere,
  kRoutersMeet,
  kWeightsAreThere,
  kSumsAreThere  // and the next: consumers filled the first or second place of sums
};

// Numbers for other blocks, and from them.
__device__ inline void leave(std::uint64_t* at, float value, std::uint32_t launch) {
  const std::uint64_t word = std::uint64_t{launch} << 32 | __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}
__device__ inline std::uint64_t look(const std::uint64_t* at) {
  std::uint64_t word;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
  return word;
}
// Two neighbours; each comes whole, in whatever order.
__device__ inline ulonglong2 look_at_two(const std::uint64_t* at) {
  ulonglong2 words;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(words.x), "=l"(words.y)
               : "l"(at)
               : "memory");
  return words;
}
__device__ inline bool is_of(std::uint64_t word, std::uint32_t launch) {
  return static_cast<std::uint32_t>(word >> 32) == launch;
}
__device__ inline float number_of(std::uint64_t word) {
  return __uint_as_float(static_cast<std::uint32_t>(word));
}
// Two of them, here and there: looked at together, and then until they are there.
__device__ inline ulonglong2 look(const std::uint64_t* first, const std::uint64_t* second) {
  return {look(first), look(second)};
}
__device__ inline float2 await(ulonglong2 looked, const std::uint64_t* first,
                               const std::uint64_t* second, std::uint32_t launch) {
  while (!is_of(looked.x, launch)) looked.x = look(first);
  while (!is_of(looked.y, launch)) looked.y = look(second);
  return {number_of(looked.x), number_of(looked.y)};
}

// MXFP4 weights go unscaled, tokens raised.
template <class Format>
inline constexpr bool kRaises = !Format::kIsNvfp4;

struct Memory {
  Tables& tables;
  std::uint32_t tokens;  // the tile that is multiplied: [unit][rows][128 bytes]
  std::uint32_t ring;
  float* sums;  // [2][consumers][kDecodeColumns][kSumStride]
  std::uint32_t launch;
  bool raises;
};

__device__ inline std::uint32_t stager() {
  return threadIdx.x < kConsumerThreads ? threadIdx.x : threadIdx.x - 32;
}

// Where a piece of a tile of `rows` lies.
__device__ inline std::uint32_t place_of(const Memory& memory, std::uint32_t rows,
                                         std::uint32_t row, std::uint32_t piece) {
  return memory.tokens + (piece / 8 * rows + row) * 128 + ((piece % 8) ^ (row % 8)) * 16;
}
__device__ inline void store_tokens(std::uint32_t to, uint4 words, bool raises) {
  constexpr std::uint32_t kRaisePair = 0x5F805F80u;  // 2^64 as BF16
  if (raises) words = mul_bf16x2(words, kRaisePair);
  st_shared_16(to, words);
}

// Tokens as they are, by the first `stagers`: several loads go together.
__device__ inline void stage_words(const DecodeParams& p, const Memory& memory,
                                   std::uint32_t stagers, bool raises) {
  constexpr std::uint32_t kTogether = 4;
  const std::uint32_t pieces = p.layer.w13.units * (kUnit / kPiece);
  const std::uint32_t real = p.layer.hidden / kPiece, all = p.call.tokens * pieces;
  const auto* x = static_cast<const std::uint8_t*>(p.call.x.data);
  for (std::uint32_t begin = stager(); begin < all; begin += kTogether * stagers) {
    uint4 words[kTogether];
#pragma unroll
    for (std::uint32_t i = 0; i < kTogether; ++i) {
      const std::uint32_t at = begin + i * stagers, row = at / pieces, piece = at - row * pieces;
      words[i] = {0, 0, 0, 0};
      if (at < all && piece < real)
        words[i] =
            *reinterpret_cast<const uint4*>(x + (row * p.call.x.stride + piece * kPiece) * 2);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kTogether; ++i) {
      const std::uint32_t at = begin + i * stagers, row = at / pieces, piece = at - row * pieces;
      if (at < all) store_tokens(place_of(memory, p.tile_rows, row, piece), words[i], raises);
    }
  }
}

// Rows of `width` columns into a tile of `tile_rows`, by the first `stagers`: those of a set of
// bits. `global`: of a quantiser.
struct Staged {
  std::uint32_t rows, tile_rows, width, stagers;
  float global;
};
// load(row, piece) gives eight columns. Zero beyond the width.
template <Quantise kind, class Load>
__device__ inline void stage_rows(const DecodeParams& p, const Memory& memory, const Staged& what,
                                  const Load& load) {
  const std::uint32_t pieces = (what.width + kUnit - 1) / kUnit * (kUnit / kPiece);
  // Whole warps stay together: blocks of quantised values span lanes.
  const std::uint32_t segments = (pieces + 31) / 32;
  std::uint32_t left = what.rows, segment = 0;  // of the first row that is left
  const auto pass = [&](std::uint32_t count) {
    for (segment += count; segment >= segments && left != 0; segment -= segments) left &= left - 1;
  };
  const SharedScale shared = shared_scale(kind, what.global);
  pass(warp_uniform(stager() / 32));
#pragma unroll 1
  while (left != 0) {
    const std::uint32_t row = __ffs(static_cast<int>(left)) - 1;
    const std::uint32_t piece = segment * 32 + threadIdx.x % 32;
    const bool is_real = piece * kPiece < what.width;
    const Piece values = is_real ? load(row, piece) : no_piece();
    const float amax = kind == Quantise::none ? 0.0f : block_amax(kind, values);
    uint4 words = placed_words<kind>(values, amax, shared, p.layer.activations_in_bf16 != 0);
    if (!is_real) words = {0, 0, 0, 0};
    if (piece < pieces)
      store_tokens(place_of(memory, what.tile_rows, row, piece), words, memory.raises);
    pass(what.stagers / 32);
  }
}

// Scales of whole rows are not for here.
template <class Load>
__device__ inline void stage_rows(Quantise kind, const DecodeParams& p, const Memory& memory,
                                  const Staged& what, const Load& load) {
  with_kind(kind, [&]<Quantise one>(Kind<one>) {
    if constexpr (one != Quantise::fp8_token) stage_rows<one>(p, memory, what, load);
  });
}

__device__ inline bool rounds_inputs(const DecodeParams& p) {
  return p.call.x_is_quantised == 0 && p.layer.quantise != Quantise::none;
}
__device__ inline Piece load_input(const DecodeParams& p, std::uint32_t row, std::uint32_t piece) {
  return load_aligned(p.call.x.data, p.call.x.type, row * p.call.x.stride + piece * kPiece);
}
// All tokens, by the first `stagers`. Those that will be rounded are left as they are, or where
// they are, if they do not fit the tile so.
__device__ inline void stage_inputs(const DecodeParams& p, const Memory& memory,
                                    std::uint32_t stagers) {
  const bool rounds = rounds_inputs(p);
  if (p.call.x.type == Type::bf16 || (rounds && p.call.x.type == Type::f16))
    return stage_words(p, memory, stagers, memory.raises && !rounds);
  if (rounds) return;
  const Staged what{(1u << p.call.tokens) - 1, p.tile_rows, p.layer.hidden, stagers, 1.0f};
  stage_rows<Quantise::none>(p, memory, what, [&](std::uint32_t row, std::uint32_t piece) {
    return load_input(p, row, piece);
  });
}
// Then those of them that the block multiplies: `rows`, a bit each.
__device__ inline void round_inputs(const DecodeParams& p, const Memory& memory, std::uint32_t rows,
                                    float global) {
  const Staged what{rows, p.tile_rows, p.layer.hidden, kStagers, global};
  stage_rows(p.layer.quantise, p, memory, what, [&](std::uint32_t row, std::uint32_t piece) {
    if (p.call.x.type == Type::f32) return load_input(p, row, piece);
    const uint4 words = ld_shared_16(place_of(memory, p.tile_rows, row, piece));
    return p.call.x.type == Type::bf16 ? from_bf16(words) : from_f16(words);
  });
}

// Where a column of h is left. Lanes take eight columns each, two at once: those that are taken
// together by the lanes of a unit lie together, so that whole lines are read.
inline constexpr std::uint32_t kHiddenPair = 2 * kUnit / kPiece;  // words from pair to pair
__device__ inline std::uint32_t hidden_place(std::uint32_t column) {
  return column / kUnit * kUnit + column % kPiece / 2 * kHiddenPair + column % kUnit / kPiece * 2 +
         column % 2;
}

// h of an entry, as it comes.
__device__ inline void stage_hidden(const DecodeParams& p, const Memory& memory,
                                    std::uint32_t entry) {
  const Tables& tables = memory.tables;
  const std::uint64_t stride = std::uint64_t{p.layer.w2.units} * kUnit;
  const auto expert = static_cast<std::uint32_t>(tables.expert[entry]);
  const Staged what{(1u << tables.rows[entry]) - 1, kDecodeColumns, p.layer.intermediate, kStagers,
                    hidden_scale(p.layer, expert)};
  named_barrier_sync(kStagersMeet, kStagers);  // nobody multiplies the tile before
  const auto load = [&](std::uint32_t row, std::uint32_t piece) {
    const std::uint64_t* at =
        p.hidden + tables.slot(entry, row) * stride + hidden_place(piece * kPiece);
    ulonglong2 pairs[kPiece / 2];
    bool is_there = false;
    while (!is_there) {
      is_there = true;
#pragma unroll
      for (std::uint32_t i = 0; i < kPiece / 2; ++i) pairs[i] = look_at_two(at + i * kHiddenPair);
#pragma unroll
      for (const ulonglong2& pair : pairs)
        is_there = is_there && is_of(pair.x, memory.launch) && is_of(pair.y, memory.launch);
    }
    Piece made;
#pragma unroll
    for (std::uint32_t i = 0; i < kPiece; ++i)
      made.v[i] = number_of(i % 2 == 0 ? pairs[i / 2].x : pairs[i / 2].y);
    return made;
  };
  stage_rows(p.layer.quantise, p, memory, what, load);
  named_barrier_sync(kStagersMeet, kStagers);
}

}  // namespace fp4moe::kernels::cuda::sm90::decode
