// The warps that bring operands to shared memory: weights of each stage, and tokens from token tiles or
// from their own rows. See kernel.cuh for the whole.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/grouped_gemm/storage.cuh"
#include "fp4moe/kernels/cuda/sm90/pipeline.cuh"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"

namespace fp4moe::kernels::cuda::sm90::grouped_gemm {

// --- Weight loader: one warp. Its values are the same in all lanes, and computed once per warp.

// Weights are read once where an expert usually has one tile.
__device__ inline std::uint64_t weights_l2_policy(int tile_tokens) {
  return tile_tokens <= 128 ? l2_evict_first() : l2_evict_normal();
}

// The weights of a work tile that are not sent yet.
template <class Format>
struct WeightStream {
  const std::uint8_t* from;
  std::uint32_t m_block_bytes, k_blocks;

  __device__ WeightStream(const GroupedGemmParams& p, const WorkTile& work) {
    const WeightMatrix& matrix = p.gemms[warp_uniform(work.gemm)].matrix;
    k_blocks = matrix.k_blocks;
    m_block_bytes = k_blocks * Format::kTileBytes;
    from = matrix.tiles +
           std::uint64_t{warp_uniform(static_cast<std::uint32_t>(work.tile.expert))} *
               matrix.expert_bytes +
           std::uint64_t{warp_uniform(work.first_m_block)} * m_block_bytes;
  }
  __device__ std::uint32_t bytes(std::uint32_t max_k_blocks) const {
    return min(max_k_blocks, k_blocks) * Format::kTileBytes;
  }
  __device__ void advance(std::uint32_t max_k_blocks) {
    from += bytes(max_k_blocks);
    k_blocks -= min(max_k_blocks, k_blocks);
  }
};

// Sends one stage. One lane issues the copies.
template <class Config>
__device__ inline void send_weights(const WeightStream<typename Config::Format>& weights,
                                    std::uint32_t m_blocks, std::uint32_t to, std::uint32_t full,
                                    std::uint64_t policy) {
  using Format = typename Config::Format;
  const std::uint32_t bytes = weights.bytes(Config::kStageKBlocks);
  if (elect_one()) {
    mbarrier_arrive_expect_tx(full, m_blocks * bytes);
#pragma unroll
    for (std::uint32_t m = 0; m < Config::kWarpgroups; ++m)
      if (m < m_blocks)
        cp_async_bulk(to + m * Config::kStageKBlocks * Format::kTileBytes,
                      weights.from + m * weights.m_block_bytes, bytes, full, policy);
  }
  __syncwarp();
}

// Puts a work tile into the queue, for all other roles.
__device__ inline void publish(SharedHeader& header, const PipelineState& queue,
                               const WorkTile& work) {
  mbarrier_wait(shared_address(&header.queue_empty[queue.index]), queue.phase ^ 1);
  __syncwarp();  // no lane may miss a phase
  if (threadIdx.x % 32 == 0) {
    header.queue[queue.index] = work;
    mbarrier_arrive(shared_address(&header.queue_full[queue.index]));
  }
  __syncwarp();
}

// The first work tile of the block and the number of the second, in lane 0 of the weight loader.
struct FirstWork {
  std::uint32_t number = 0, next = 0;
  WorkTile work{};

  __device__ void take(const GroupedGemmParams& p) {
    number = atomicAdd(p.work_counter, 1u);
    next = atomicAdd(p.work_counter, 1u);
  }
};

// A work tile's number is taken while the one before it is sent, its token tile is loaded while the
// weights are sent. `is_started`: the first work tile is published and its first stage is sent.
template <class Config>
__device__ void load_weights(const GroupedGemmParams& p, const TileTables& tables,
                             const FirstWork& first, SharedHeader& header, std::uint32_t stages,
                             bool is_started) {
  using Format = typename Config::Format;
  const std::uint64_t policy = weights_l2_policy(Config::kTileTokens);
  std::uint32_t number = first.next;
  WorkTile work = first.work;
  PipelineState stage, queue;
  for (;;) {
    if (!is_started) publish(header, queue, work);
    queue.advance(kQueueSize);
    const std::uint32_t m_blocks = warp_uniform(work.m_blocks);
    if (m_blocks == 0) return;
    WeightStream<Format> weights(p, work);
    work = make_work_tile(header.scheduler.tile(warp_uniform(number)),
                          [&](std::uint32_t tile) { return load_tile(tables.tiles, tile); });
    if (threadIdx.x % 32 == 0) number = atomicAdd(p.work_counter, 1u);
    if (is_started) {
      weights.advance(Config::kStageKBlocks);
      stage.advance(p.stages);
    }
    is_started = false;
    while (weights.k_blocks > 0) {
      mbarrier_wait(shared_address(&header.empty[stage.index]), stage.phase ^ 1);
      send_weights<Config>(weights, m_blocks, stages + stage.index * Config::kStageBytes,
                           shared_address(&header.full[stage.index]), policy);
      weights.advance(Config::kStageKBlocks);
      stage.advance(p.stages);
    }
  }
}

// --- Token loaders.

// Bytes from row to row, of tokens that are not in tiles.
__device__ inline std::uint32_t row_bytes(const Gemm& gemm) {
  return static_cast<std::uint32_t>(gemm.rows.stride) * 2;
}
// Stages of the first work tile that SortAndStart fills: as many as there are.
template <class Config>
__device__ inline std::uint32_t started_stages(const GroupedGemmParams& p) {
  const std::uint32_t k_blocks = p.gemms[0].matrix.k_blocks;
  return min(p.stages, (k_blocks + Config::kStageKBlocks - 1) / Config::kStageKBlocks);
}

// Two warps gather rows, each four of every eight. One warp copies tiles.
template <class Config>
class TokenLoader {
 public:
  __device__ TokenLoader(const GroupedGemmParams& p, const TileTables& tables, SharedHeader& header,
                         std::uint32_t stages, std::uint32_t warp)
      : p_(p),
        token_of_row_(tables.token_of_row),
        header_(header),
        to_(stages + Config::kWeightBytes),
        warp_(warp) {}

  __device__ void run() {
    for (PipelineState queue;; queue.advance(kQueueSize)) {
      mbarrier_wait(shared_address(&header_.queue_full[queue.index]), queue.phase);
      const WorkTile& work = header_.queue[queue.index];
      const std::uint32_t m_blocks = work.m_blocks, tile_index = work.tile_index, which = work.gemm;
      const std::uint32_t first = work.tile.first_row, rows = work.tile.rows;
      __syncwarp();
      if (lane() == 0) mbarrier_arrive(shared_address(&header_.queue_empty[queue.index]));
      if (m_blocks == 0) return;
      const Gemm& gemm = p_.gemms[which];
      if (Config::kGathersTokens && gemm.tiles == nullptr) {
        gather_rows(gemm, first, rows);
      } else {
        if (is_first()) wait_for_tile(which, tile_index, rows);
        __syncwarp();
        copy_tile(gemm, first, rows);
      }
    }
  }

 private:
  __device__ static std::uint32_t lane() { return threadIdx.x % 32; }
  __device__ bool is_first() const { return warp_ == 0 && lane() == 0; }
  // Blocks of tokens for K blocks of weights.
  __device__ static std::uint32_t token_blocks(std::uint32_t k_blocks) {
    return (k_blocks + Config::kTokenKBlocks - 1) / Config::kTokenKBlocks;
  }

  // Waits for the row groups of the deferred gather and, before GEMM2, for all M blocks of GEMM1.
  __device__ void wait_for_tile(std::uint32_t which, std::uint32_t tile_index, std::uint32_t rows) {
    const std::uint32_t groups = tile_index >= p_.deferred_gather.first_tile ? rows / kRowGroup : 0;
    const std::uint32_t count = groups + (which != 0 ? p_.gemms[0].matrix.m_blocks : 0);
    if (count != 0) spin_until_count(p_.tables.tile_progress + tile_index, count);
  }
  // Calls send(first K block, K blocks, address in shared memory, full barrier) for each stage.
  template <class Send>
  __device__ void for_stages(std::uint32_t k_blocks, const Send& send) {
    for (std::uint32_t k_block = 0; k_block < k_blocks; k_block += Config::kStageKBlocks) {
      mbarrier_wait(shared_address(&header_.empty[stage_.index]), stage_.phase ^ 1);
      send(k_block, min(Config::kStageKBlocks, k_blocks - k_block),
           to_ + stage_.index * Config::kStageBytes, shared_address(&header_.full[stage_.index]));
      stage_.advance(p_.stages);
    }
  }
  // All lanes arrive at the full barrier, as they do in gather_rows.
  __device__ void copy_tile(const Gemm& gemm, std::uint32_t first, std::uint32_t rows) {
    const std::uint32_t k_block_bytes = rows * Config::kTokenRowBytes;
    const std::uint8_t* from = gemm.tiles + std::uint64_t{first} * Config::kTokenRowBytes *
                                                token_blocks(gemm.matrix.k_blocks);
    for_stages(gemm.matrix.k_blocks, [&](std::uint32_t k_block, std::uint32_t k_blocks,
                                         std::uint32_t to, std::uint32_t full) {
      if (warp_ == 0 && elect_one()) {
        fence_proxy_async();  // gather_rows may have used this stage before
        const std::uint32_t bytes = token_blocks(k_blocks) * k_block_bytes;
        mbarrier_arrive_expect_tx(full, bytes);
        cp_async_bulk(to, from + std::uint64_t{k_block / Config::kTokenKBlocks} * k_block_bytes,
                      bytes, full, l2_evict_normal());
      } else {
        mbarrier_arrive(full);
      }
    });
  }
  // Lane l has 16 bytes of row warp * 4 + l / 8 of every row group.
  __device__ void gather_rows(const Gemm& gemm, std::uint32_t first, std::uint32_t rows) {
    constexpr std::uint32_t kGroups = Config::kTileTokens / kRowGroup;
    constexpr std::uint32_t kKBlocks = Config::kStageKBlocks;
    const std::uint32_t row = warp_ * 4 + lane() / 8, chunk = lane() % 8;
    const std::uint32_t started = is_started_ ? started_stages<Config>(p_) : 0;
    const std::uint32_t sent = min(started * kKBlocks, gemm.matrix.k_blocks);
    for (std::uint32_t stage = 0; stage < started; ++stage) {
      mbarrier_arrive(shared_address(&header_.full[stage]));
      stage_.advance(p_.stages);
    }
    __syncwarp();
    if (!is_started_)  // the rows of this warp
      for (std::uint32_t own = lane() / 4 * 8 + warp_ * 4 + lane() % 4; own < rows; own += 64)
        header_.token_of_row[own] = token_of_row_[first + own];
    is_started_ = false;
    __syncwarp();
    const auto* data = static_cast<const std::uint8_t*>(gemm.rows.data) + chunk * 16 + sent * 128;
    const std::uint32_t stride = keep_in_register(row_bytes(gemm));
    const std::uint8_t* from[kGroups];  // the lane's row of each row group
#pragma unroll
    for (std::uint32_t i = 0; i < kGroups; ++i)
      from[i] = data + std::uint64_t{header_.token_of_row[i * kRowGroup + row]} * stride;
    for_stages(gemm.matrix.k_blocks - sent,
               [&](std::uint32_t, std::uint32_t k_blocks, std::uint32_t to, std::uint32_t full) {
                 std::uint32_t at[kKBlocks];
#pragma unroll
                 for (std::uint32_t k = 0; k < kKBlocks; ++k)
                   at[k] = keep_in_register(to + (k * rows + row) * 128 + (chunk ^ row) * 16);
#pragma unroll
                 for (std::uint32_t i = 0; i < kGroups; ++i) {
                   if (i * kRowGroup >= rows) break;
                   from[i] += kKBlocks * 128;
#pragma unroll
                   for (std::uint32_t k = 0; k < kKBlocks; ++k)
                     if (k < k_blocks)
                       cp_async_16(at[k] + i * 1024, from[i] - (kKBlocks - k) * 128);
                 }
                 cp_async_mbarrier_arrive_noinc(full);
               });
  }

  const GroupedGemmParams& p_;
  const std::uint16_t* token_of_row_;
  SharedHeader& header_;
  std::uint32_t to_, warp_;
  PipelineState stage_{};
  bool is_started_ = true;  // SortAndStart has sent the first stages of the first tile
};

}  // namespace fp4moe::kernels::cuda::sm90::grouped_gemm
