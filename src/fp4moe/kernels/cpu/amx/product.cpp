// Products by tiles of bytes. A few chunks of 16 or 32 rows are decoded to right operands, which
// stay in the first cache while groups of up to 16 tokens pass by; the integer sums of each go
// through memory to the floating-point sums.
//
// MXFP4: a chunk is one operand where its two scales can be folded for all 16 rows (product.hpp):
// the shift is a part of the lookup, whose table holds the weights four times. Otherwise it is two
// operands, each with zeros for the other block. NVFP4: a chunk is four operands of 16 columns.
//
// Few tokens leave tiles empty, and are multiplied as in avx512_vnni/.
#include "fp4moe/kernels/cpu/amx/product.hpp"

#include "fp4moe/kernels/cpu/avx512_vnni/product.hpp"

namespace fp4moe::kernels::cpu::amx {
namespace {

constexpr std::size_t kTileTokens = 16;   // at most, of a tile
constexpr std::size_t kMostOperands = 8;  // of a stage
constexpr std::size_t kOperandBytes = 1024;
constexpr int kFoldBelow = 223;  // larger scales could overflow in one block but not in their sum

// Tokens in tiles of equal heights.
struct TileRoom {
  static constexpr std::size_t tiles(std::size_t tokens) {
    return (tokens + kTileTokens - 1) / kTileTokens;
  }
  static constexpr std::size_t height(std::size_t tokens) {
    return (tokens + tiles(tokens) - 1) / tiles(tokens);
  }
  static constexpr std::size_t slots(std::size_t tokens) { return tiles(tokens) * height(tokens); }
};

// Some chunks of 16 rows, ready for tiles.
struct Stage {
  alignas(64) std::int8_t operands[kMostOperands][kOperandBytes];
  alignas(64) float scales[kMostOperands][kX86Group];
  std::size_t parts[kMostOperands];  // operands of each chunk
};
struct alignas(64) StageSums {
  std::int32_t sums[kMostOperands][2][kTileSums];
};

// Doubled weights, shifted by 0 ... 3 in turn.
[[gnu::always_inline]] inline __m512i shifted_table() {
  const __m128i doubled = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  const __m128i twice = _mm_add_epi8(doubled, doubled), fourfold = _mm_add_epi8(twice, twice);
  __m512i table = _mm512_castsi128_si512(doubled);
  table = _mm512_inserti32x4(table, twice, 1);
  table = _mm512_inserti32x4(table, fourfold, 2);
  return _mm512_inserti32x4(table, _mm_add_epi8(fourfold, fourfold), 3);
}

// `kVectors` x 8 columns of 16 rows; `shifts` holds 16 times the shift of each byte's row.
template <std::size_t kVectors>
[[gnu::always_inline]] inline void decode_operand(const std::uint8_t* codes, __m512i shifts,
                                                  std::int8_t* operand) {
  constexpr int kAndOr = 0xEA;  // (a & b) | c
  const __m512i table = shifted_table(), nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kVectors; ++i) {
    const __m512i bytes = load512(codes + 64 * i);
    const __m512i low = _mm512_ternarylogic_epi32(bytes, nibble, shifts, kAndOr);
    const __m512i high =
        _mm512_ternarylogic_epi32(_mm512_srli_epi16(bytes, 4), nibble, shifts, kAndOr);
    _mm512_store_si512(operand + 128 * i, _mm512_permutexvar_epi8(low, table));
    _mm512_store_si512(operand + 128 * i + 64, _mm512_permutexvar_epi8(high, table));
  }
}

[[gnu::always_inline]] inline void clear(std::int8_t* operand, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64)
    _mm512_store_si512(operand + i, _mm512_setzero_si512());
}

// A byte of each row, four times.
[[gnu::always_inline]] inline __m512i per_row(__m128i bytes) {
  const __m128i lowest = _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
  return _mm512_shuffle_epi8(_mm512_cvtepu8_epi32(bytes), _mm512_broadcast_i32x4(lowest));
}

struct Mxfp4 {
  using Few = VnniMxfp4;
  static constexpr std::size_t kChunks = 4;     // of a stage
  static constexpr std::size_t kColumns = 64;   // of an operand
  static constexpr std::size_t kParts = 1;      // operands of a chunk, as a rule
  static constexpr std::size_t kScales = 2;     // of a chunk and row
  static constexpr std::size_t kFewTokens = 4;  // at most, without tiles

  // One chunk, into `stage` from operand `at`. Returns how many it takes.
  [[gnu::always_inline]] static std::size_t decode(const ProductWeights& weights, std::size_t group,
                                                   std::size_t chunk, Stage& stage,
                                                   std::size_t at) {
    const std::size_t block = 2 * chunk;
    const std::uint8_t* codes = weights.codes + (group * weights.blocks + block) * kX86TileBytes;
    const std::uint8_t* bytes =
        weights.scales + (group * weights.scale_columns + block) * kX86Group;
    const bool whole = block + 2 <= weights.blocks;
    const __m128i first = load_scales(bytes);
    const __m128i second = whole ? load_scales(bytes + kX86Group) : first;
    const __m128i least = _mm_min_epu8(first, second);
    const __m128i first_shift = _mm_sub_epi8(first, least);
    const __m128i second_shift = _mm_sub_epi8(second, least);
    const __m128i apart = _mm_or_si128(first_shift, second_shift);
    const bool folds = foldable(least, apart);
    const __m512i zero = _mm512_setzero_si512();
    std::int8_t* operand = stage.operands[at];
    if (folds || !whole) {
      decode_operand<4>(codes, per_row(_mm_slli_epi16(first_shift, 4)), operand);
      if (whole)
        decode_operand<4>(codes + kX86TileBytes, per_row(_mm_slli_epi16(second_shift, 4)),
                          operand + kOperandBytes / 2);
      else
        clear(operand + kOperandBytes / 2, kOperandBytes / 2);
      _mm512_store_ps(stage.scales[at], e8m0_scales(least));
      return 1;
    }
    decode_operand<4>(codes, zero, operand);
    clear(operand + kOperandBytes / 2, kOperandBytes);
    decode_operand<4>(codes + kX86TileBytes, zero, operand + kOperandBytes / 2 * 3);
    _mm512_store_ps(stage.scales[at], e8m0_scales(first));
    _mm512_store_ps(stage.scales[at + 1], e8m0_scales(second));
    return 2;
  }

  // Rows without scales, which pad a matrix, fold with anything.
  [[gnu::always_inline]] static bool foldable(__m128i least, __m128i apart) {
    const __mmask16 close = _mm_cmple_epu8_mask(apart, _mm_set1_epi8(kFoldSteps));
    const __m128i above = _mm_sub_epi8(least, _mm_set1_epi8(kFoldFrom));
    const __mmask16 normal =
        _mm_cmple_epu8_mask(above, _mm_set1_epi8(static_cast<char>(kFoldBelow - kFoldFrom)));
    const __mmask16 none = _mm_testn_epi8_mask(_mm_or_si128(least, apart), _mm_set1_epi8(-1));
    return ((close & normal) | none) == 0xFFFF;
  }
};

struct Nvfp4 {
  using Few = VnniNvfp4;
  static constexpr std::size_t kChunks = 2;
  static constexpr std::size_t kColumns = 16;
  static constexpr std::size_t kParts = 4;
  static constexpr std::size_t kScales = 4;
  static constexpr std::size_t kFewTokens = 4;

  [[gnu::always_inline]] static std::size_t decode(const ProductWeights& weights, std::size_t group,
                                                   std::size_t chunk, Stage& stage,
                                                   std::size_t at) {
    const std::size_t column = kParts * chunk;
    const std::uint8_t* codes =
        weights.codes + (group * weights.blocks + 2 * chunk) * kX86TileBytes;
    const std::uint8_t* bytes =
        weights.scales + (group * weights.scale_columns + column) * kX86Group;
    const std::size_t left = weights.scale_columns - column, parts = left < kParts ? left : kParts;
    for (std::size_t p = 0; p < parts; ++p) {
      decode_operand<2>(codes + p * kX86TileBytes / 2, _mm512_setzero_si512(),
                        stage.operands[at + p]);
      _mm512_store_ps(stage.scales[at + p], e4m3_scales(load_scales(bytes + p * kX86Group)));
    }
    return parts;
  }
};

// What a stage is a part of.
struct StageCall {
  const ProductCall* call = nullptr;
  std::size_t row = 0;                      // first one, counted from the call's
  std::size_t first = 0, chunks = 0;        // of the stage
  std::size_t first_token = 0, tokens = 0;  // of a tile
};

template <class Format>
[[gnu::always_inline]] inline void decode_stage(const StageCall& at, std::size_t group,
                                                Stage& stage) {
  std::size_t operand = 0;
  for (std::size_t c = 0; c < at.chunks; ++c) {
    stage.parts[c] = Format::decode(at.call->weights, group, at.first + c, stage, operand);
    operand += stage.parts[c];
  }
}

// Integer sums of a tile of tokens and all operands of one or two stages.
template <class Format, std::size_t kLimbs, std::size_t kGroups>
[[gnu::always_inline]] inline void multiply_stage(const StageCall& at,
                                                  const X86Panel<kLimbs>& panel,
                                                  const Stage (&stages)[kGroups],
                                                  StageSums (&sums)[kGroups]) {
  constexpr std::size_t kLine = X86Panel<kLimbs>::kLine;
  std::size_t operands[2] = {};
  for (std::size_t c = 0; c < at.chunks; ++c) {
    const std::int8_t* lines = panel.line(at.first + c, at.first_token);
    if constexpr (Format::kColumns == kChunk) {
      load_tokens<kLimbs>(lines, kLine);
      for (std::size_t p = 0; p < stages[0].parts[c]; ++p, ++operands[0])
        multiply_tiles<kLimbs, 0>(stages[0].operands[operands[0]], sums[0].sums[operands[0]][0]);
      if constexpr (kGroups == 2)
        for (std::size_t p = 0; p < stages[1].parts[c]; ++p, ++operands[1])
          multiply_tiles<kLimbs, 1>(stages[1].operands[operands[1]], sums[1].sums[operands[1]][0]);
    } else {
      for (std::size_t p = 0; p < stages[0].parts[c]; ++p, ++operands[0]) {
        const std::size_t operand = operands[0];
        load_tokens<kLimbs>(lines + p * Format::kColumns, kLine);
        multiply_tiles<kLimbs, 0>(stages[0].operands[operand], sums[0].sums[operand][0]);
        if constexpr (kGroups == 2)
          multiply_tiles<kLimbs, 1>(stages[1].operands[operand], sums[1].sums[operand][0]);
      }
    }
  }
}

template <std::size_t kLimbs>
[[gnu::always_inline]] inline __m512 add_operand(const Stage& stage, const StageSums& sums,
                                                 std::size_t operand, std::size_t token,
                                                 __m512 total) {
  const std::int32_t* at = sums.sums[operand][0] + token * kX86Group;
  __m512i sum = load512(at);
  if constexpr (kLimbs == 2)
    sum = _mm512_add_epi32(_mm512_slli_epi32(sum, 8), load512(at + kTileSums));
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_load_ps(stage.scales[operand]), total);
}

// From integer sums to the sums of 16 rows. `kPlain`: all chunks are there, with as many operands
// as is the rule.
template <class Format, std::size_t kLimbs, bool kPlain>
[[gnu::always_inline]] inline void add_stage(const StageCall& at, std::size_t row,
                                             const Stage& stage, const StageSums& sums) {
  const ProductCall& call = *at.call;
  const std::size_t steps = padded_tokens(call.tokens.tokens);
  const std::size_t chunks = kPlain ? Format::kChunks : at.chunks;
#pragma GCC unroll 1
  for (std::size_t t = 0; t < at.tokens; ++t) {
    float* to = call.sums + (at.first_token + t) * call.stride + row;
    const float* half_steps = call.tokens.half_steps + at.first * steps + at.first_token + t;
    __m512 sum = at.first == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(to);
    std::size_t operand = 0;
    for (std::size_t c = 0; c < chunks; ++c) {
      const std::size_t parts = kPlain ? Format::kParts : stage.parts[c];
      __m512 total = _mm512_setzero_ps();
      for (std::size_t p = 0; p < parts; ++p)
        total = add_operand<kLimbs>(stage, sums, operand++, t, total);
      sum = _mm512_fmadd_ps(total, _mm512_set1_ps(half_steps[c * steps]), sum);
    }
    _mm512_storeu_ps(to, sum);
  }
}

template <class Format>
bool is_plain(const Stage& stage, std::size_t chunks) {
  bool plain = chunks == Format::kChunks;
  for (std::size_t c = 0; c < chunks; ++c) plain = plain && stage.parts[c] == Format::kParts;
  return plain;
}

// Brings the codes of a later stage near while tiles are busy.
template <class Format>
[[gnu::always_inline]] inline void fetch_stage(const ProductWeights& weights, std::size_t group,
                                               std::size_t chunk) {
  const std::uint8_t* codes = weights.codes + (group * weights.blocks + 2 * chunk) * kX86TileBytes;
  for (std::size_t i = 0; i < Format::kChunks * 2 * kX86TileBytes; i += 64)
    _mm_prefetch(reinterpret_cast<const char*>(codes + i), _MM_HINT_T0);
  const std::uint8_t* scales =
      weights.scales + (group * weights.scale_columns + Format::kScales * chunk) * kX86Group;
  for (std::size_t i = 0; i < kMostOperands * kX86Group; i += 64)
    _mm_prefetch(reinterpret_cast<const char*>(scales + i), _MM_HINT_T0);
}

// All tokens and `kGroups` groups of 16 rows.
template <class Format, std::size_t kLimbs, std::size_t kGroups>
void multiply_rows(const ProductCall& call, std::size_t row, const X86Panel<kLimbs>& panel) {
  const std::size_t chunks = (call.weights.blocks + 1) / 2, tokens = call.tokens.tokens;
  const std::size_t group = (call.first_row + row) / kX86Group, height = TileRoom::height(tokens);
  Stage stages[kGroups];
  StageSums sums[kGroups];
  for (std::size_t c = 0; c < chunks; c += Format::kChunks) {
    const std::size_t left = chunks - c;
    StageCall at{.call = &call,
                 .row = row,
                 .first = c,
                 .chunks = left < Format::kChunks ? left : Format::kChunks};
    for (std::size_t g = 0; g < kGroups; ++g) decode_stage<Format>(at, group + g, stages[g]);
    for (std::size_t g = 0; g < kGroups; ++g) {
      const bool last = c + Format::kChunks >= chunks;
      fetch_stage<Format>(call.weights, last ? group + kGroups + g : group + g,
                          last ? 0 : c + Format::kChunks);
    }
    written(stages);
    for (std::size_t t = 0; t < tokens; t += height) {
      at.first_token = t;
      at.tokens = tokens - t < height ? tokens - t : height;
      multiply_stage<Format, kLimbs, kGroups>(at, panel, stages, sums);
      for (std::size_t g = 0; g < kGroups; ++g) {
        if (is_plain<Format>(stages[g], at.chunks))
          add_stage<Format, kLimbs, true>(at, row + g * kX86Group, stages[g], sums[g]);
        else
          add_stage<Format, kLimbs, false>(at, row + g * kX86Group, stages[g], sums[g]);
      }
    }
  }
}

template <class Format, std::size_t kLimbs>
void multiply(const ProductCall& call) noexcept {
  const std::size_t tokens = call.tokens.tokens;
  if (tokens <= Format::kFewTokens)
    return vnni_multiply<typename Format::Few, kLimbs, TileRoom>(call);
  const ProductTiles tiles(TileRoom::height(tokens), Format::kColumns);
  written(&tiles);
  _tile_loadconfig(&tiles);
  const X86Panel<kLimbs> panel(call.tokens.panel, TileRoom::slots(tokens),
                               (call.weights.blocks + 1) / 2);
  written(call.tokens.panel);
  std::size_t row = 0;
  for (; row + 2 * kX86Group <= call.rows; row += 2 * kX86Group)
    multiply_rows<Format, kLimbs, 2>(call, row, panel);
  if (row < call.rows) multiply_rows<Format, kLimbs, 1>(call, row, panel);
  _tile_release();
}

}  // namespace

extern const ProductFunctions kProduct;
constexpr ProductFunctions kProduct{{multiply<Mxfp4, 1>, multiply<Mxfp4, 2>},
                                    {multiply<Nvfp4, 1>, multiply<Nvfp4, 2>},
                                    {x86_place<1, TileRoom>, x86_place<2, TileRoom>},
                                    {x86_panel_bytes<1, TileRoom>, x86_panel_bytes<2, TileRoom>}};

}  // namespace fp4moe::kernels::cpu::amx
