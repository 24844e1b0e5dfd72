// The GEMM of tiles of at most 64 tokens. It waits for memory: every lane loads the weights that it will
// multiply straight into registers, kDepth K blocks ahead. Only tokens go through shared memory.
//
//   weights ─ ld.global, 16 bytes a lane ─► registers, kDepth K blocks ─ shifts ─► A fragments ─┐
//   tokens  ─ cp.async ─► 3 stages of 2 or 4 K blocks ─ ldmatrix ────────────────► B fragments ─┤
//                                                                                   mma.sync ◄──┘
//
// MXFP4, up to 32 tokens: block scales multiply the sums of their 32 columns (dequantize.cuh).
//
//   role             one work tile                                                          time ─►
//
//   weights          K blocks 0 to 7 to registers ────────► K block 8 ─► 9 ─► 10 ...
//                      ▲                                     ▲ after mma of 0, then of 1, 2 ...
//   tokens             │  stages 0, 1       stage 2          │            stage 3, over 0
//                      │    ▲       │ 0 full  ▲              │    │ 1 full  ▲
//                issue │    │       ▼         │ issue        │    ▼         │ issue
//   all four warps   ──┴────┴────── B ────────┴─► mma of stage 0 ─ B ───────┴─► mma of stage 1 ...
//                                                                                   ... ─► epilogue
//
//   B   wait_group and __syncthreads: the stage is complete, the one before it is free
//
// A block takes 64 rows of weights, each warp 16 of them. There is an instance for each number of row
// groups.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm80/grouped_gemm/epilogue.cuh"
#include "fp4moe/kernels/cuda/sm80/grouped_gemm/params.hpp"
#include "fp4moe/kernels/cuda/sm80/grouped_gemm/shape.hpp"
#include "fp4moe/kernels/cuda/sm90/dequantize.cuh"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm/shape.hpp"

namespace fp4moe::kernels::cuda::sm80::grouped_gemm {

// Copies the tokens of a tile into the stages. Padding rows are skipped: their output is not read.
// `tokens`: max of the kernel; `groups`: row groups of the tile.
template <int tokens, int groups>
class FewTokensLoader {
 public:
  __device__ FewTokensLoader(const GroupedGemmParams& p, const sm90::TokenTile& tile)
      : left_(p.gemm.matrix.k_blocks * kKBlockBytes) {
    from_ = p.gemm.tiles +
            std::uint64_t{tile.first_row} * p.gemm.matrix.k_blocks * sm90::kBlockRowBytes +
            threadIdx.x * 16;
    const std::uint32_t row = (groups - 1) * sm90::kRowGroup + threadIdx.x / 8 % 8;
    has_last_row_ = p.assignment_of_row[tile.first_row + row] >= 0;
  }

  // Starts the copies of the next stage; behind the last one there are none.
  __device__ void load_next(std::uint32_t shared) {
    const std::uint32_t to = shared + stage_ * kStageBytes + threadIdx.x * 16;
#pragma unroll
    for (std::uint32_t at = 0; at < kCopyBytes; at += kGemmThreads * 16) {
      const bool is_last_group = (at + threadIdx.x * 16) / 1024 % groups == groups - 1;
      if (at + threadIdx.x * 16 < left_ && (has_last_row_ || !is_last_group))
        sm90::cp_async_16(to + at, from_ + at);
    }
    from_ += kCopyBytes;
    left_ = left_ < kCopyBytes ? 0 : left_ - kCopyBytes;
    sm90::cp_async_commit();
    stage_ = stage_ + 1 == kFewTokensStages ? 0 : stage_ + 1;
  }

  static constexpr std::uint32_t kKBlockBytes = groups * sm90::kRowGroup * sm90::kBlockRowBytes;
  static constexpr std::uint32_t kStageBytes = SharedStorage{tokens}.stage_bytes();

 private:
  static constexpr std::uint32_t kCopyBytes = stage_k_blocks(tokens) * kKBlockBytes;

  const std::uint8_t* from_;
  std::uint32_t left_;  // bytes
  std::uint32_t stage_ = 0;
  bool has_last_row_;  // the thread's row of the last group is a token
};

// Half a K block, 32 columns: two k steps of mma.sync. `tokens`: what the lane gives ldmatrix.
template <int half, int groups, class Format>
__device__ inline void mma_half(const sm90::LaneWeights<Format>& weights, std::uint32_t tokens,
                                float* sums) {
  const sm90::AFragment first = weights.template dequantize_step<2 * half>();
  const sm90::AFragment second = weights.template dequantize_step<2 * half + 1>();
#pragma unroll
  for (int begin = 0; begin < groups; begin += 4) {  // so many are in registers
    const int count = groups - begin < 4 ? groups - begin : 4;
    uint4 b[4];
#pragma unroll
    for (int n = 0; n < count; ++n) b[n] = sm90::ldmatrix_x4(tokens + (begin + n) * 1024);
#pragma unroll
    for (int n = 0; n < count; ++n)
      sm90::mma_m16n8k16(sums + 4 * (begin + n), first, b[n].x, b[n].y);
#pragma unroll
    for (int n = 0; n < count; ++n)
      sm90::mma_m16n8k16(sums + 4 * (begin + n), second, b[n].z, b[n].w);
  }
}

// All columns of a work tile. All threads of the block call.
template <class Format, int tokens, int groups>
__device__ inline void mainloop_row_groups(const GroupedGemmParams& p, const WarpTile& of,
                                           std::uint32_t shared, float* sums) {
  using Loader = FewTokensLoader<tokens, groups>;
  constexpr std::uint32_t kDepth = 8, kStageKBlocks = stage_k_blocks(tokens);
  constexpr bool kIsPrescaled = sm90::activation_prescale(tokens, Format::kIsNvfp4) != 1.0f;
  const sm90::WeightMatrix& matrix = p.gemm.matrix;
  const std::uint32_t k_blocks = matrix.k_blocks;
  const std::uint8_t* tile = matrix.tiles +
                             static_cast<std::uint64_t>(of.tile.expert) * matrix.expert_bytes +
                             std::uint64_t{of.m_block} * k_blocks * Format::kTileBytes;
  const std::uint8_t* codes = tile + of.fragment * 512 + of.lane * 16;
  const std::uint8_t* scales =
      tile + sm90::kTileCodeBytes + (of.fragment * 8 + of.lane / 4) * Format::kRowPairScaleBytes;
  sm90::LaneWeights<Format> weights[kDepth];
  const auto load_weights = [&](std::uint32_t i, std::uint32_t k_block) {
    weights[i] = {sm90::ld_global_nc_16(codes + k_block * Format::kTileBytes),
                  Format::load(scales + k_block * Format::kTileBytes)};
  };
#pragma unroll
  for (std::uint32_t i = 0; i < kDepth; ++i)
    if (i < k_blocks) load_weights(i, i);

  Loader loader(p, of.tile);
  for (std::uint32_t i = 0; i + 1 < kFewTokensStages; ++i) loader.load_next(shared);
  const std::uint32_t row = sm90::ldmatrix_row_offset(of.lane);
  std::uint32_t stage = 0;
#pragma unroll 1
  for (std::uint32_t first = 0; first < k_blocks; first += kDepth) {
#pragma unroll
    for (std::uint32_t i = 0; i < kDepth; ++i) {
      if (first + i >= k_blocks) break;
      if (i % kStageKBlocks == 0) {
        if (i != 0 || first != 0) stage = stage + 1 == kFewTokensStages ? 0 : stage + 1;
        sm90::cp_async_wait_group<kFewTokensStages - 2>();
        __syncthreads();  // everyone's tokens are here, and the stage before is free
        loader.load_next(shared);
      }
      const std::uint32_t k_block =
          shared + stage * Loader::kStageBytes + i % kStageKBlocks * Loader::kKBlockBytes;
      if constexpr (kIsPrescaled) {
        sm90::MmaOperands<Format, groups> operands;
        operands.weights = weights[i];
        operands.load_tokens(k_block, row);
        operands.mma_prescaled(sums);
      } else {
        mma_half<0, groups>(weights[i], k_block + row, sums);
        mma_half<1, groups>(weights[i], k_block + (row ^ 64), sums);
      }
      if (first + kDepth + i < k_blocks) load_weights(i, kDepth + i);
    }
    codes = sm90::keep_in_register(codes + kDepth * Format::kTileBytes);
    scales = sm90::keep_in_register(scales + kDepth * Format::kTileBytes);
  }
}

template <class Format, int tokens, int groups = 1>
__device__ inline void mainloop_few_tokens(const GroupedGemmParams& p, const WarpTile& of,
                                           std::uint32_t shared, float* sums) {
  if constexpr (groups * sm90::kRowGroup < tokens)
    if (of.tile.rows != groups * sm90::kRowGroup)
      return mainloop_few_tokens<Format, tokens, groups + 1>(p, of, shared, sums);
  mainloop_row_groups<Format, tokens, groups>(p, of, shared, sums);
}

}  // namespace fp4moe::kernels::cuda::sm80::grouped_gemm
