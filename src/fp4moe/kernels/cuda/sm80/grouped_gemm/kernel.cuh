// The grouped GEMM for every architecture since 8.0: weights of an expert times the tokens of a tile,
// for all tiles, with mma.sync. A block takes a work tile: one token tile, 64 or 128 rows of weights.
// few_tokens.cuh multiplies tiles of at most 64 tokens; this file the others:
//
//   weights ─ cp.async, 16 bytes a lane ─► stages ─► registers ─ dequantize ─► A fragments ─┐
//   tokens  ─ cp.async, all threads ─────► stages ─ ldmatrix ────────────────► B fragments ─┤
//                                                                               mma.sync ◄──┘
//                                                 float32 sums ─ epilogue.cuh ─► output
//
//   role             one work tile, S stages                                                time ─►
//
//   copies           stages 0 to S-2      stage S-1             stage S, over 0       stage S+1
//                      ▲       │ 0 full     ▲         │ 1 full    ▲         │ 2 full    ▲
//                issue │       ▼            │ issue   ▼           │ issue   ▼           │
//   all four warps   ──┴────── B ───────────┴─► mma 0 B ──────────┴─► mma 1 B ──────────┴─► mma 2
//                                                          ... ─► epilogue ─► __syncthreads ─► next
//
//   B     wait_group and __syncthreads: the stage is complete, the one before it is free
//   mma   ldmatrix, dequantize, mma.sync
//
// Weights are in the order of fragments: a lane copies what it will multiply, so no warp waits for
// another's weights. Tokens are shared by the warps: one barrier for each stage. Every sum is added up
// by one lane in the order of columns.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm80/grouped_gemm/epilogue.cuh"
#include "fp4moe/kernels/cuda/sm80/grouped_gemm/few_tokens.cuh"
#include "fp4moe/kernels/cuda/sm80/grouped_gemm/params.hpp"
#include "fp4moe/kernels/cuda/sm80/grouped_gemm/shape.hpp"
#include "fp4moe/kernels/cuda/sm90/dequantize.cuh"

namespace fp4moe::kernels::cuda::sm80::grouped_gemm {

// The kernel for token tiles of at most `tokens` tokens.
template <class WeightFormat, int tokens>
struct Config {
  using Format = WeightFormat;
  static constexpr std::uint32_t kTokens = tokens;
  static constexpr bool kIsFew = tokens <= kMaxFewTokens;
  static constexpr std::uint32_t kFragments = warp_fragments(tokens);  // of a warp
  static constexpr std::uint32_t kMBlocks = block_m_blocks(tokens);
  static constexpr std::uint32_t kStageKBlocks = stage_k_blocks(tokens);
  static constexpr std::uint32_t kRowGroups = tokens / sm90::kRowGroup;
  // Row groups multiplied together. Groups that the tile does not have cost nothing.
  static constexpr std::uint32_t kGroupStep = 4;
  __device__ static constexpr SharedStorage storage() { return {tokens, Format::kIsNvfp4}; }

  using Sums = WarpSums<kFragments, kRowGroups>;
};

// Waits until at most `pending` of this thread's groups of copies are incomplete.
__device__ inline void wait_for_copies(std::uint32_t pending) {
  static_assert(kMaxStages == 4);
  if (pending == 0)
    sm90::cp_async_wait_group<0>();
  else if (pending == 1)
    sm90::cp_async_wait_group<1>();
  else
    sm90::cp_async_wait_group<2>();
}

// Copies tokens and weights of one work tile into the stages.
template <class C>
class Loader {
 public:
  __device__ Loader(const sm90::Gemm& gemm, const WarpTile& of, std::uint32_t stages)
      : k_blocks_(gemm.matrix.k_blocks), stages_(stages), of_(of) {
    tokens_ = gemm.tiles + std::uint64_t{of.tile.first_row} * k_blocks_ * sm90::kBlockRowBytes +
              threadIdx.x * 16;
    weights_ = gemm.matrix.tiles +
               static_cast<std::uint64_t>(of.tile.expert) * gemm.matrix.expert_bytes +
               std::uint64_t{of.m_block} * k_blocks_ * C::Format::kTileBytes;
  }

  // Starts the copies of the next stage; behind the last one there are none.
  __device__ void load_next(std::uint32_t shared) {
    const std::uint32_t stage = shared + stage_ * C::storage().stage_bytes();
#pragma unroll
    for (std::uint32_t i = 0; i < C::kStageKBlocks; ++i)
      if (next_k_block_ + i < k_blocks_) load_k_block(stage + i * C::storage().k_block_bytes());
    next_k_block_ += C::kStageKBlocks;
    sm90::cp_async_commit();
    stage_ = stage_ + 1 == stages_ ? 0 : stage_ + 1;
  }

 private:
  __device__ void load_k_block(std::uint32_t to) {
    const std::uint32_t bytes = of_.tile.rows * sm90::kBlockRowBytes;
    for (std::uint32_t at = threadIdx.x * 16; at < bytes; at += kGemmThreads * 16)
      sm90::cp_async_16(to + at, tokens_ + (at - threadIdx.x * 16));
    tokens_ += bytes;
    if (!of_.has_rows) return;
#pragma unroll
    for (std::uint32_t f = 0; f < C::kFragments; ++f) {
      const std::uint32_t in_tile = of_.fragment + f, in_block = of_.warp * C::kFragments + f;
      sm90::cp_async_16(to + C::storage().codes(in_block, of_.lane),
                        weights_ + in_tile * 512 + of_.lane * 16);
      const std::uint8_t* scales = weights_ + sm90::kTileCodeBytes +
                                   (in_tile * 8 + of_.lane / 4) * C::Format::kRowPairScaleBytes;
      const std::uint32_t to_scales = to + C::storage().scales(in_block, of_.lane);
      if constexpr (C::Format::kIsNvfp4)
        sm90::cp_async_8(to_scales, scales);
      else
        sm90::cp_async_4(to_scales, scales);
    }
    weights_ += C::Format::kTileBytes;
  }

  std::uint32_t k_blocks_, stages_, stage_ = 0, next_k_block_ = 0;
  const WarpTile& of_;
  const std::uint8_t* tokens_;
  const std::uint8_t* weights_;
};

// Half a K block, 32 columns: two k steps of mma.sync. `tokens`: address of the K block; `row`: what
// the lane gives ldmatrix of eight tokens.
template <class C, int half>
__device__ inline void mma_columns(
    const sm90::LaneWeights<typename C::Format> (&weights)[C::kFragments], std::uint32_t tokens,
    std::uint32_t row, std::uint32_t groups, typename C::Sums& sums) {
  sm90::AFragment a[C::kFragments][2];
#pragma unroll
  for (std::uint32_t f = 0; f < C::kFragments; ++f) {
    a[f][0] = weights[f].template dequantize_step<2 * half>();
    a[f][1] = weights[f].template dequantize_step<2 * half + 1>();
  }
#pragma unroll
  for (std::uint32_t first = 0; first < C::kRowGroups; first += C::kGroupStep) {
    if (first >= groups) break;
    uint4 b[C::kGroupStep];
#pragma unroll
    for (std::uint32_t i = 0; i < C::kGroupStep; ++i)
      b[i] = sm90::ldmatrix_x4(tokens + (first + i) * 1024 + (row ^ (half * 64)));
#pragma unroll
    for (std::uint32_t f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (std::uint32_t i = 0; i < C::kGroupStep; ++i)
        sm90::mma_m16n8k16(sums.of[f][first + i], a[f][0], b[i].x, b[i].y);
#pragma unroll
    for (std::uint32_t f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (std::uint32_t i = 0; i < C::kGroupStep; ++i)
        sm90::mma_m16n8k16(sums.of[f][first + i], a[f][1], b[i].z, b[i].w);
  }
}

template <class C>
__device__ inline void mma_k_block(const WarpTile& of, std::uint32_t k_block,
                                   typename C::Sums& sums) {
  using Format = typename C::Format;
  sm90::LaneWeights<Format> weights[C::kFragments];
#pragma unroll
  for (std::uint32_t f = 0; f < C::kFragments; ++f) {
    const std::uint32_t in_block = of.warp * C::kFragments + f;
    weights[f] = {sm90::ld_shared_16(k_block + C::storage().codes(in_block, of.lane)),
                  Format::load(k_block + C::storage().scales(in_block, of.lane))};
  }
  const std::uint32_t row = sm90::ldmatrix_row_offset(of.lane);
  const std::uint32_t groups = of.tile.rows / sm90::kRowGroup;
  mma_columns<C, 0>(weights, k_block, row, groups, sums);
  mma_columns<C, 1>(weights, k_block, row, groups, sums);
}

// All columns of a work tile. All threads of the block call.
template <class C>
__device__ inline void mainloop(const GroupedGemmParams& p, const WarpTile& of,
                                std::uint32_t shared, typename C::Sums& sums) {
  const std::uint32_t k_blocks = p.gemm.matrix.k_blocks, stages = p.stages;
  Loader<C> loader(p.gemm, of, stages);
  for (std::uint32_t i = 0; i + 1 < stages; ++i) loader.load_next(shared);
  std::uint32_t index = 0;
#pragma unroll 1
  for (std::uint32_t first = 0; first < k_blocks; first += C::kStageKBlocks) {
    wait_for_copies(stages - 2);
    __syncthreads();  // everyone's tokens are here, and the stage before is free
    loader.load_next(shared);
    const std::uint32_t stage = shared + index * C::storage().stage_bytes();
    if (of.has_rows) {
#pragma unroll
      for (std::uint32_t i = 0; i < C::kStageKBlocks; ++i)
        if (first + i < k_blocks)
          mma_k_block<C>(of, stage + i * C::storage().k_block_bytes(), sums);
    }
    index = index + 1 == stages ? 0 : index + 1;
  }
}

// Loads the tile at once, also where there is none: the workspace has an entry for every block, and the
// number of tiles arrives at the same time.
__device__ inline sm90::TokenTile load_tile(const sm90::TokenTile* from) {
  const uint4 words = sm90::ld_global_no_allocate_16(from);
  return {static_cast<std::int32_t>(words.x), words.y, words.z, words.w};
}

template <class C>
__device__ inline void run(const GroupedGemmParams& p) {
  extern __shared__ __align__(128) std::uint8_t stages_memory[];
  const std::uint32_t shared = sm90::shared_address(stages_memory);
  const std::uint32_t m_blocks = p.gemm.matrix.m_blocks;
  const std::uint32_t work_tiles = (m_blocks + C::kMBlocks - 1) / C::kMBlocks;  // of a token tile
  const std::uint32_t tile_count = sm90::ld_global_nc_4(p.tile_count);
#pragma unroll 1
  for (std::uint32_t work = blockIdx.x, index = work / work_tiles;;) {
    const sm90::TokenTile tile = load_tile(p.tiles + index);
    if (index >= tile_count) return;
    const WarpTile of(tile, (work - index * work_tiles) * C::kMBlocks, m_blocks, C::kFragments);
    const RowFactors<C::kFragments> factors(p.gemm, of);
    typename C::Sums sums{};
    if constexpr (C::kIsFew)
      mainloop_few_tokens<typename C::Format, C::kTokens>(p, of, shared, &sums.of[0][0][0]);
    else
      mainloop<C>(p, of, shared, sums);
    if (of.has_rows) store(p.gemm, of, factors, sums);
    work += gridDim.x;
    index = work / work_tiles;
    if (index >= tile_count) return;  // the workspace may have no entry there
    __syncthreads();                  // the stages are reused
  }
}

}  // namespace fp4moe::kernels::cuda::sm80::grouped_gemm
