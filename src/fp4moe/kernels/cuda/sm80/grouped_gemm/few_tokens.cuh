// The GEMM of tiles of at most 32 tokens. It waits for memory: every lane loads the weights that it will
// multiply straight into registers, kDepth K blocks ahead. Only tokens go through shared memory.
//
//   weights ─ ld.global, 16 bytes a lane ─► registers, kDepth K blocks ─ shifts ─► A fragments ─┐
//   tokens  ─ cp.async ─► 3 stages of 4 K blocks ─ ldmatrix ────────────────────► B fragments ─┤
//                                                                                 mma.sync ◄─┘
//                        MXFP4: block scales multiply the sums of their 32 columns (dequantize.cuh)
//
// A block takes 64 rows of weights, each warp 16 of them. There is an instance for each number of row
// groups.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm80/grouped_gemm/epilogue.cuh"
#include "fp4moe/kernels/cuda/sm80/grouped_gemm/params.hpp"
#include "fp4moe/kernels/cuda/sm80/grouped_gemm/shape.hpp"
#include "fp4moe/kernels/cuda/sm90/dequantize.cuh"

namespace fp4moe::kernels::cuda::sm80::grouped_gemm {

// Copies the tokens of a tile into the stages. Padding rows are left out: nobody reads their output.
template <int groups>
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
    for (std::uint32_t at = 0; at < 4 * kKBlockBytes; at += kGemmThreads * 16) {
      const bool is_last_group = (at + threadIdx.x * 16) / 1024 % groups == groups - 1;
      if (at + threadIdx.x * 16 < left_ && (has_last_row_ || !is_last_group))
        sm90::cp_async_16(to + at, from_ + at);
    }
    from_ += 4 * kKBlockBytes;
    left_ = left_ < 4 * kKBlockBytes ? 0 : left_ - 4 * kKBlockBytes;
    sm90::cp_async_commit();
    stage_ = stage_ + 1 == kFewTokensStages ? 0 : stage_ + 1;
  }

  static constexpr std::uint32_t kKBlockBytes = groups * sm90::kRowGroup * sm90::kBlockRowBytes;
  static constexpr std::uint32_t kStageBytes = SharedStorage{kMaxFewTokens}.stage_bytes();
  static_assert(stage_k_blocks(kMaxFewTokens) == 4);

 private:
  const std::uint8_t* from_;
  std::uint32_t left_;  // bytes
  std::uint32_t stage_ = 0;
  bool has_last_row_;  // the thread's row of the last group is a token
};

// All columns of a work tile. All threads of the block call.
template <class Format, int groups>
__device__ inline void multiply_row_groups(const GroupedGemmParams& p, const WarpTile& of,
                                           std::uint32_t shared, float* sums) {
  using Loader = FewTokensLoader<groups>;
  constexpr std::uint32_t kDepth = 8;
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
      if (i % 4 == 0) {
        if (i != 0 || first != 0) stage = stage + 1 == kFewTokensStages ? 0 : stage + 1;
        sm90::cp_async_wait_group<kFewTokensStages - 2>();
        __syncthreads();  // everyone's tokens are here, and the stage before is free
        loader.load_next(shared);
      }
      sm90::MmaOperands<Format, groups> operands;
      operands.weights = weights[i];
      operands.load_tokens(shared + stage * Loader::kStageBytes + i % 4 * Loader::kKBlockBytes,
                           row);
      if constexpr (Format::kIsNvfp4)
        operands.mma(sums);
      else
        operands.mma_prescaled(sums);
      if (first + kDepth + i < k_blocks) load_weights(i, kDepth + i);
    }
    codes = sm90::keep_in_register(codes + kDepth * Format::kTileBytes);
    scales = sm90::keep_in_register(scales + kDepth * Format::kTileBytes);
  }
}

template <class Format>
__device__ inline void multiply_few_tokens(const GroupedGemmParams& p, const WarpTile& of,
                                           std::uint32_t shared, float* sums) {
  switch (of.tile.rows / sm90::kRowGroup) {
    case 1:
      return multiply_row_groups<Format, 1>(p, of, shared, sums);
    case 2:
      return multiply_row_groups<Format, 2>(p, of, shared, sums);
    case 3:
      return multiply_row_groups<Format, 3>(p, of, shared, sums);
    default:
      return multiply_row_groups<Format, 4>(p, of, shared, sums);
  }
}

}  // namespace fp4moe::kernels::cuda::sm80::grouped_gemm
