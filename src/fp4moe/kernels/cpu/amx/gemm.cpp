// GEMM with AMX tiles of bytes, 32 rows at a time. A chunk of weights is decoded to right operands,
// which are multiplied with tiles of up to 16 tokens; the integer sums go through memory to the
// floating-point sums. Tile instructions and their stores have a long latency, so the loop is a
// pipeline: while the tiles of one work tile (a chunk and a tile of tokens) are multiplied, the
// sums of the previous one are added and the next chunk is decoded.
//
// Few tokens do not fill tiles, and NVFP4 has too many scales for tiles: both use the kernel of
// avx512_vnni/.
#include "fp4moe/kernels/cpu/amx/gemm.hpp"

#include "fp4moe/kernels/cpu/amx/gemm_operands.hpp"

namespace fp4moe::kernels::cpu::amx {
namespace {

constexpr std::size_t kTileTokens = 16;  // at most, of a tile
constexpr std::size_t kFewTokens = 4;    // at most, without tiles
constexpr std::size_t kAheadChunks = 4;  // whose codes are prefetched
constexpr std::size_t kStages = 2;       // chunks whose operands or scales are in use

// Tokens in tiles of equal heights.
struct TilePadding {
  static constexpr std::size_t tiles(std::size_t tokens) {
    return (tokens + kTileTokens - 1) / kTileTokens;
  }
  static constexpr std::size_t height(std::size_t tokens) {
    return (tokens + tiles(tokens) - 1) / tiles(tokens);
  }
  static constexpr std::size_t padded(std::size_t tokens) { return tiles(tokens) * height(tokens); }
};

// A chunk of a tile of tokens.
struct WorkTile {
  std::size_t chunk = 0, parts = 0;
  std::size_t first_token = 0, tokens = 0;
};

template <std::size_t kLimbs, std::size_t kGroups>
struct TileGemm {
  const GemmCall& call;
  const std::size_t chunks, steps;
  const X86Panel<kLimbs> panel;
  std::size_t group = 0;  // the first one
  Operands operands[kStages][kGroups];
  std::size_t parts[kStages];
  // One group's tiles are stored while the other's are added. Their lower address bits differ,
  // otherwise loads would wait for unrelated stores.
  alignas(4096) TileSums tile_sums[kMaxParts][2];
  alignas(64) float sums[kGemmTokens][kGroups][kX86Group];
  WorkTile earlier{};
  TileSums* pending = nullptr;  // the sums of the second group's tiles

  explicit TileGemm(const GemmCall& gemm)
      : call(gemm),
        chunks((gemm.weights.blocks + 1) / 2),
        steps(padded_tokens(gemm.tokens.tokens)),
        panel(gemm.tokens.panel, TilePadding::padded(gemm.tokens.tokens), chunks) {}

  [[gnu::always_inline]] void decode(std::size_t chunk) {
    const std::size_t stage = chunk % kStages, later = chunk + kAheadChunks;
    ChunkAt at[kGroups];
    std::size_t max = 1;
    for (std::size_t g = 0; g < kGroups; ++g) {
      at[g] = chunk_at(call.weights, group + g, chunk);
      max = parts_of(at[g]) == 1 ? max : kMaxParts;
    }
    parts[stage] = max;
    for (std::size_t g = 0; g < kGroups; ++g) {
      decode_operands(at[g], max, operands[stage][g]);
      fetch(later < chunks ? chunk_at(call.weights, group + g, later)
                           : chunk_at(call.weights, group + g + kGroups, later - chunks));
    }
    written(operands);
  }

  [[gnu::always_inline]] static void fetch(const ChunkAt& at) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < 2 * kX86TileBytes; i += 64)
      _mm_prefetch(reinterpret_cast<const char*>(at.codes + i), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(at.scales), _MM_HINT_T0);
  }

  // From integer sums to the sums of 16 rows. Written out, because loops of changing lengths end in
  // mispredicted branches; all that tokens share is in registers.
  template <std::size_t kParts, std::size_t kWhich>
  [[gnu::always_inline]] void add_parts() {
    const float* half_steps = call.tokens.half_steps + earlier.chunk * steps + earlier.first_token;
    float(*to)[kGroups][kX86Group] = sums + earlier.first_token;
    const TileSums(*from)[2] = tile_sums;
    __m512 scales[kParts];
    for (std::size_t p = 0; p < kParts; ++p)
      scales[p] = _mm512_load_ps(operands[earlier.chunk % kStages][kWhich].scales[p]);
    const auto add_token = [&](std::size_t t) __attribute__((always_inline)) {
      __m512 total = _mm512_setzero_ps();
#pragma GCC unroll 2
      for (std::size_t p = 0; p < kParts; ++p) {
        const auto& limbs = from[p][kWhich].limbs;
        __m512i sum = load512(limbs[0][t]);
        if constexpr (kLimbs == 2)
          sum = _mm512_add_epi32(_mm512_slli_epi32(sum, 8), load512(limbs[1][t]));
        total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scales[p], total);
      }
      float* sum = to[t][kWhich];
      _mm512_store_ps(sum,
                      _mm512_fmadd_ps(total, _mm512_set1_ps(half_steps[t]), _mm512_load_ps(sum)));
    };
    const std::size_t tokens = earlier.tokens;
    if (tokens == kTileTokens) {
#pragma GCC unroll 16
      for (std::size_t t = 0; t < kTileTokens; ++t) add_token(t);
    } else {
#pragma GCC unroll 16
      for (std::size_t t = 0; t < kTileTokens; ++t) {
        if (t >= tokens) break;
        add_token(t);
      }
    }
  }
  template <std::size_t kWhich>
  [[gnu::always_inline]] void add() {
    if (earlier.parts == 1)
      add_parts<1, kWhich>();
    else
      add_parts<kMaxParts, kWhich>();
  }

  [[gnu::always_inline]] void store_pending() {
    if constexpr (kGroups == 2)
      if (pending != nullptr) store_tiles<kLimbs, 1>(*pending);
    pending = nullptr;
  }

  // Tokens come from the L2 cache: those of the next work tile are loaded before it begins. A
  // chunk's only operand stays loaded for all tiles of tokens.
  [[gnu::always_inline]] void mma_work_tile(const WorkTile& tile, const std::int8_t* next_tokens) {
    const auto& stage = operands[tile.chunk % kStages];
    const bool loads = tile.first_token == 0 || tile.parts != 1;
    for (std::size_t p = 0; p < tile.parts; ++p) {
      if (loads) load_weights<0>(stage[0].weights[p]);
      mma_tiles<kLimbs, 0>();
      store_pending();
      if (p == 0) add<0>();
      if constexpr (kGroups == 2) {
        if (loads) load_weights<1>(stage[1].weights[p]);
        mma_tiles<kLimbs, 1>();
      }
      store_tiles<kLimbs, 0>(tile_sums[p][0]);
      if constexpr (kGroups == 2) {
        pending = &tile_sums[p][1];
        if (p == 0) add<1>();
      }
    }
    load_tokens<kLimbs>(next_tokens, X86Panel<kLimbs>::kLine);
    earlier = tile;
  }

  // Adds what is left.
  void finish() {
    store_pending();
    add<0>();
    if constexpr (kGroups == 2) add<1>();
    earlier.tokens = 0;
  }

  void gemm_rows(std::size_t row) {
    const std::size_t tokens = call.tokens.tokens, height = TilePadding::height(tokens);
    group = (call.first_row + row) / kX86Group;
    for (std::size_t t = 0; t < tokens; ++t)
      for (auto& sum : sums[t]) _mm512_store_ps(sum, _mm512_setzero_ps());
    decode(0);
    load_tokens<kLimbs>(panel.line(0, 0), X86Panel<kLimbs>::kLine);
    for (std::size_t c = 0; c < chunks; ++c)
      for (std::size_t t = 0; t < tokens; t += height) {
        const bool is_last = t + height >= tokens;
        const std::size_t next_chunk = is_last && c + 1 < chunks ? c + 1 : c;
        mma_work_tile({.chunk = c,
                       .parts = parts[c % kStages],
                       .first_token = t,
                       .tokens = tokens - t < height ? tokens - t : height},
                      panel.line(next_chunk, is_last ? 0 : t + height));
        if (t == 0 && c + 1 < chunks) decode(c + 1);
      }
    finish();
    for (std::size_t t = 0; t < tokens; ++t)
      for (std::size_t g = 0; g < kGroups; ++g)
        _mm512_storeu_ps(call.sums + t * call.stride + row + g * kX86Group,
                         _mm512_load_ps(sums[t][g]));
  }
};

template <std::size_t kLimbs>
void gemm_mxfp4(const GemmCall& call) noexcept {
  const std::size_t tokens = call.tokens.tokens;
  if (tokens <= kFewTokens) return vnni_gemm<VnniMxfp4, kLimbs, TilePadding>(call);
  const TileConfig tiles = tiles_of(TilePadding::height(tokens));
  written(&tiles);
  _tile_loadconfig(&tiles);
  written(call.tokens.panel);
  std::size_t row = 0;
  if (call.rows >= 2 * kX86Group) {
    TileGemm<kLimbs, 2> gemm(call);
    for (; row + 2 * kX86Group <= call.rows; row += 2 * kX86Group) gemm.gemm_rows(row);
  }
  if (row < call.rows) {
    TileGemm<kLimbs, 1> gemm(call);
    gemm.gemm_rows(row);
  }
  _tile_release();
}

}  // namespace

extern const GemmFunctions kGemm;
constexpr GemmFunctions kGemm{
    {gemm_mxfp4<1>, gemm_mxfp4<2>},
    {vnni_gemm<VnniNvfp4, 1, TilePadding>, vnni_gemm<VnniNvfp4, 2, TilePadding>},
    {x86_pack_tokens<1, TilePadding>, x86_pack_tokens<2, TilePadding>},
    {x86_panel_bytes<1, TilePadding>, x86_panel_bytes<2, TilePadding>}};

}  // namespace fp4moe::kernels::cpu::amx
