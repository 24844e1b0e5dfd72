// Stream-K: the K blocks of one GEMM of all batches form a line (batch, M block, K block). Blocks
// have equal contiguous shares of the line, wherever the borders fall. An output tile (batch x M
// block) may lie in several shares; its sums are then added up across blocks (reduce.cuh).
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/decode/storage.cuh"
#include "fp4moe/kernels/cuda/sm90/divisor.cuh"

namespace fp4moe::kernels::cuda::sm90::decode {

// K blocks times blocks fit 32 bits, see decode_shape.
struct StreamK {
  std::uint32_t m_blocks, k_blocks, total = 0;
  Divisor by_blocks, by_k_blocks, by_m_blocks;

  // The divisors are made before the number of batches is known.
  __device__ explicit StreamK(const WeightMatrix& matrix)
      : m_blocks(matrix.m_blocks),
        k_blocks(matrix.k_blocks),
        by_blocks(gridDim.x),
        by_k_blocks(k_blocks),
        by_m_blocks(m_blocks) {}
  __device__ StreamK(const WeightMatrix& matrix, std::uint32_t batches) : StreamK(matrix) {
    set_batches(batches);
  }
  __device__ void set_batches(std::uint32_t batches) { total = batches * m_blocks * k_blocks; }

  __device__ std::uint32_t begin_of(std::uint32_t block) const {
    return by_blocks.of(total * block);
  }
  __device__ std::uint32_t batch_of(std::uint32_t k_block) const {
    return by_m_blocks.of(by_k_blocks.of(k_block));
  }
  // There may be more blocks than K blocks.
  __device__ bool is_empty(std::uint32_t block) const {
    return begin_of(block) == begin_of(block + 1);
  }
  // The block whose share holds a K block: the last one that begins at or before it.
  __device__ std::uint32_t block_of(std::uint32_t k_block) const {
    return ((k_block + 1) * gridDim.x - 1) / total;
  }
};

// K blocks [first, first + count) of one output tile.
struct WorkRange {
  std::uint32_t batch, m_block, first, count;
};
// The work ranges of this block's share, one after the other.
class WorkRanges {
 public:
  __device__ explicit WorkRanges(const StreamK& work)
      : work_(work), position_(work.begin_of(blockIdx.x)), end_(work.begin_of(blockIdx.x + 1)) {
    const std::uint32_t tile = work.by_k_blocks.of(position_);
    now_.first = position_ - tile * work.k_blocks;
    now_.batch = work.by_m_blocks.of(tile);
    now_.m_block = tile - now_.batch * work.m_blocks;
  }
  __device__ bool next(WorkRange& to) {
    if (position_ == end_) return false;
    to = now_;
    to.count = min(work_.k_blocks - now_.first, end_ - position_);
    position_ += to.count;
    now_.first = 0;
    if (++now_.m_block == work_.m_blocks) {
      now_.m_block = 0;
      ++now_.batch;
    }
    return true;
  }

 private:
  StreamK work_;
  std::uint32_t position_, end_;
  WorkRange now_{};
};

// Tokens of the batches in this block's share, one bit each.
__device__ inline std::uint32_t tokens_of_share(const DecodeParams& p, const DecodeHeader& header,
                                                const StreamK& work) {
  static_assert(kMaxDecodeTokens <= 32);
  const std::uint32_t begin = work.begin_of(blockIdx.x), end = work.begin_of(blockIdx.x + 1);
  if (begin == end) return 0;
  const std::uint32_t last = work.batch_of(end - 1), i = threadIdx.x % kDecodeTileTokens;
  std::uint32_t tokens = 0;
#pragma unroll 1
  for (std::uint32_t batch = work.batch_of(begin) + threadIdx.x % 32 / kDecodeTileTokens;
       batch <= last; batch += 32 / kDecodeTileTokens)
    if (i < header.tokens[batch]) tokens |= 1u << header.assignment(batch, i) / p.call.top_k;
  return __reduce_or_sync(kFullWarp, tokens);
}

}  // namespace fp4moe::kernels::cuda::sm90::decode
