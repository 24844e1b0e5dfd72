// The decode kernel: a whole layer for a few tokens in one cooperative launch, one block per SM.
//
//   role            phases of a block                                                     time ─►
//
//   router warps    route ─► list batches ─┐ (the first math warps, or the epilogue warps)
//                           kBatchesBarrier▼
//   loader          weights of the block's share of GEMM1 ──────────► of GEMM2 (no stop in between)
//                           full │ ▲ empty                      full │ ▲ empty
//   math (16 warps) x ─► tile    ▼ │ mma ─┐              h ─► tile   ▼ │ mma ─┐           ┐
//                                         │ kPartialsBarrier       ▲          │           ├ combine
//   epilogue (3)                          ▼ reduce, activate ─► h ─┘ tagged   ▼ reduce ─► ┘ tagged
//
// Both GEMMs are split with Stream-K (stream_k.cuh). The four math warpgroups take every fourth K
// block of a stage, each of their warps 16 rows. Their sums of an output tile go to one of two
// buffers in shared memory. Blocks exchange h and sums in tagged words (tagged.cuh): a reader spins
// until they are of this launch.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/decode/batches.cuh"
#include "fp4moe/kernels/cuda/sm90/decode/reduce.cuh"
#include "fp4moe/kernels/cuda/sm90/decode/storage.cuh"
#include "fp4moe/kernels/cuda/sm90/decode/stream_k.cuh"
#include "fp4moe/kernels/cuda/sm90/decode/tokens.cuh"
#include "fp4moe/kernels/cuda/sm90/pipeline.cuh"

namespace fp4moe::kernels::cuda::sm90::decode {

// --- Loader: one lane.

// Stages in flight. Copies arrive in any order: with more of them GEMM1 would wait for weights of
// GEMM2.
inline constexpr std::uint32_t kStagesInFlight = 3;

template <class Format>
__device__ void load_weights(const DecodeParams& p, const Block& block, StreamK gemm1,
                             StreamK gemm2) {
  DecodeHeader& header = block.header;
  const std::uint64_t policy = l2_evict_first();
  PipelineState stage, landed;
  std::uint32_t sent = 0;
  const auto stream = [&](const WeightMatrix& matrix, StreamK& work) {
    work.set_batches(header.batches);
    WorkRanges ranges(work);
    for (WorkRange range; ranges.next(range);) {
      const std::uint8_t* from =
          matrix.tiles + std::uint64_t(header.expert[range.batch]) * matrix.expert_bytes +
          (std::uint64_t{range.m_block} * matrix.k_blocks + range.first) * Format::kTileBytes;
      for (std::uint32_t left = range.count; left > 0;) {
        const std::uint32_t k_blocks = min(Storage::kStageKBlocks, left);
        const std::uint32_t barrier = shared_address(&header.full[stage.index]);
        mbarrier_wait(shared_address(&header.empty[stage.index]), stage.phase ^ 1);
        if (sent == kStagesInFlight) {
          mbarrier_wait(shared_address(&header.full[landed.index]), landed.phase);
          landed.advance(p.stages);
        } else {
          ++sent;
        }
        mbarrier_arrive_expect_tx(barrier, k_blocks * Format::kTileBytes);
        cp_async_bulk(block.stages + stage.index * Storage::kStageKBlocks * Format::kTileBytes,
                      from, k_blocks * Format::kTileBytes, barrier, policy);
        from += k_blocks * Format::kTileBytes;
        left -= k_blocks;
        stage.advance(p.stages);
      }
    }
  };
  stream(p.layer.w13, gemm1);
  stream(p.layer.w2, gemm2);
}

// --- Math warps.

struct MathWarp {
  std::uint32_t warpgroup, warp, lane;
  PipelineState stage, buffer;  // buffer: of the partial sums
};

// The offset in a K block of the tile at which a lane reads row `token` for ldmatrix.
__device__ inline std::uint32_t token_row_offset(std::uint32_t lane, std::uint32_t token) {
  return token * 128 + (lane / 8 ^ token % 8) * 16;
}

// Tokens of a stage: address of the first K block, offset of this lane's row, K blocks.
struct StageTokens {
  std::uint32_t at, row, k_block_bytes, k_blocks;
};
// The K blocks of a warpgroup in a stage: two if the stage `is_full`.
template <class Format, bool is_full>
__device__ inline void mma_stage(const DecodeParams& p, const Block& block, MathWarp& me,
                                 const StageTokens& tokens, float (&sums)[kDecodeTileTokens / 2]) {
  static_assert(Storage::kStageKBlocks == 2 * kMathWarpgroups);
  MmaOperands<Format, 1> now, next;
  mbarrier_wait(shared_address(&block.header.full[me.stage.index]), me.stage.phase);
  const std::uint32_t tile =
      block.stages + (me.stage.index * Storage::kStageKBlocks + me.warpgroup) * Format::kTileBytes;
  const bool has_one = is_full || me.warpgroup < tokens.k_blocks;
  const bool has_two = is_full || me.warpgroup + kMathWarpgroups < tokens.k_blocks;
  if (has_one) now.load(tile, me.warp, me.lane, tokens.at, tokens.row);
  if (has_two)
    next.load(tile + kMathWarpgroups * Format::kTileBytes, me.warp, me.lane,
              tokens.at + kMathWarpgroups * tokens.k_block_bytes, tokens.row);
  if constexpr (kIsPrescaled<Format>) {
    if (has_one) now.mma_prescaled(sums);
    if (has_two) next.mma_prescaled(sums);
  } else {
    if (has_one) now.mma(sums);
    if (has_two) next.mma(sums);
  }
  __syncwarp();
  if (me.lane == 0) mbarrier_arrive(shared_address(&block.header.empty[me.stage.index]));
  me.stage.advance(p.stages);
}

// One work range. `tile_and_row`: rows of the token tile, and the offset of this lane's row.
template <class Format>
__device__ inline void mma_range(const DecodeParams& p, const Block& block, MathWarp& me,
                                 const WorkRange& range, uint2 tile_and_row) {
  const std::uint32_t k_block_bytes = tile_and_row.x * 128, row = tile_and_row.y;
  float sums[kDecodeTileTokens / 2];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  std::uint32_t tokens = block.tokens + (range.first + me.warpgroup) * k_block_bytes,
                left = range.count;
  for (; left >= Storage::kStageKBlocks; left -= Storage::kStageKBlocks) {
    mma_stage<Format, true>(p, block, me, {tokens, row, k_block_bytes, left}, sums);
    tokens += Storage::kStageKBlocks * k_block_bytes;
  }
  if (left > 0) mma_stage<Format, false>(p, block, me, {tokens, row, k_block_bytes, left}, sums);
  mbarrier_wait(shared_address(&block.header.partials_empty[me.buffer.index]), me.buffer.phase ^ 1);
  float* to =
      block.partials +
      ((me.buffer.index * kMathWarpgroups + me.warpgroup) * kDecodeTileTokens + me.lane % 4 * 2) *
          Storage::kPartialStride +
      me.warp * 16 + me.lane / 4;
  to[0] = sums[0];
  to[Storage::kPartialStride] = sums[1];
  to[8] = sums[2];
  to[Storage::kPartialStride + 8] = sums[3];
  named_barrier_arrive(kPartialsBarrier + me.buffer.index, kWorkers);
  me.buffer.advance(2);
}

template <class Format>
__device__ void mma_share(const DecodeParams& p, const Block& block, const StreamK& gemm1,
                          std::uint32_t batches) {
  const DecodeHeader& header = block.header;
  const std::uint32_t lane = threadIdx.x % 32, warp = warp_uniform(threadIdx.x / 32);
  MathWarp me{warp / 4, warp % 4, lane, {}, {}};
  WorkRange range;
  for (WorkRanges all(gemm1); all.next(range);) {
    // The tile holds all tokens; the batch's are anywhere in it. Columns beyond repeat the first.
    const std::uint32_t i = lane % 8 < header.tokens[range.batch] ? lane % 8 : 0;
    const std::uint32_t token = header.assignment(range.batch, i) / p.call.top_k;
    mma_range<Format>(p, block, me, range, {p.tile_tokens, token_row_offset(lane, token)});
  }
  std::uint32_t filled = ~0u;
  for (WorkRanges all(StreamK(p.layer.w2, batches)); all.next(range);) {
    if (range.batch != filled) fill_hidden(p, block, range.batch);
    filled = range.batch;
    mma_range<Format>(p, block, me, range, {kDecodeTileTokens, token_row_offset(lane, lane % 8)});
  }
  if (filled == ~0u) named_barrier_sync(kWorkersBarrier, kWorkers);
}

// --- The kernel.

// No expert of this rank was chosen.
__device__ inline void clear_output(const DecodeParams& p) {
  const std::uint32_t all = p.call.tokens * p.layer.hidden;
  for (std::uint32_t i = blockIdx.x * kWorkers + worker(); i < all; i += gridDim.x * kWorkers)
    store_element(p.call.out.data, p.call.out.type,
                  i / p.layer.hidden * p.call.out.stride + i % p.layer.hidden, 0.0f);
}

// The last block counts the launch.
__device__ inline void count_launch(const DecodeParams& p, std::uint32_t epoch) {
  if (atomicAdd(p.counters + 1, 1u) + 1 != gridDim.x) return;
  p.counters[1] = 0;
  p.counters[0] = epoch;
}

// `p`: a specialization of `given`, the kernel's parameters.
template <class Format>
__device__ void run(const DecodeParams& p, const DecodeParams& given) {
  // Shared memory. Swizzled tokens need the alignment; kHeaderBytes contains the gap.
  extern __shared__ __align__(Storage::kAlignment) std::uint8_t bytes[];
  DecodeHeader& header = *reinterpret_cast<DecodeHeader*>(bytes);
  const Storage storage{
      Storage::token_tile_bytes(p.tile_tokens, p.layer.w13.k_blocks, p.layer.w2.k_blocks),
      Format::kTileBytes};
  const std::uint32_t ring_bytes = p.stages * storage.stage_bytes();
  const std::uint32_t begin = shared_address(bytes);
  const std::uint32_t tokens = Storage::aligned(begin + sizeof(DecodeHeader));
  std::uint8_t* ring = bytes + (tokens - begin) + storage.token_bytes;
  pdl_launch_dependents();
  prefetch_params(given);

  // Epilogue warps route if they are enough: then math warps have copied the tokens when the batches
  // are listed.
  const std::uint32_t warp = warp_uniform(threadIdx.x / 32);
  const std::uint32_t count = router_warps(p, ring_bytes / 4);
  const bool epilogue_routes = count <= kEpilogueThreads / 32,
             is_epilogue = warp >= first_warp(Role::epilogue);
  const RouterWarps routers{count, epilogue_routes ? warp - first_warp(Role::epilogue) : warp};

  // Barriers. The first router warp meets the loader at kBatchesBarrier, all others at kWorkersBarrier.
  if (routers.index == 0 && threadIdx.x % 32 == 0) {
    for (std::uint32_t i = 0; i < p.stages; ++i) {
      mbarrier_init(shared_address(&header.full[i]), 1);
      mbarrier_init(shared_address(&header.empty[i]), kMathWarpgroups * 4);
    }
    for (std::uint64_t& barrier : header.partials_empty)
      mbarrier_init(shared_address(&barrier), kEpilogueThreads);
    fence_mbarrier_init();
  }
  pdl_wait();
  const Block block{header,
                    tokens,
                    tokens + storage.token_bytes,
                    reinterpret_cast<float*>(ring + ring_bytes),
                    p.counters[0] + 1,
                    kIsPrescaled<Format>};

  // Routing. The scratch memory is the ring, and the partial sums, which are not used yet.
  constexpr std::uint32_t kBatchesThreads = 64;  // the first router warp and the loader
  PendingWeights pending;
  if (routers.index < count) {
    static_assert(kMaxExperts * 2 <= Storage::kPartialBytes);
    auto* next = reinterpret_cast<std::uint16_t*>(block.partials);
    pending = find_experts(p, given.route, header, reinterpret_cast<float*>(ring), next, routers);
    fence_proxy_async();  // bulk copies will write where routing did
    named_barrier_sync(kRoutersBarrier, count * 32);
    if (routers.index == 0) {
      list_batches(p, header, next);
      named_barrier_arrive(kBatchesBarrier, kBatchesThreads);
    }
  }

  // Loader.
  if (warp == first_warp(Role::loader)) {
    const StreamK gemm1(p.layer.w13), gemm2(p.layer.w2);
    named_barrier_sync(kBatchesBarrier, kBatchesThreads);
    if (threadIdx.x % 32 == 0 && header.batches != 0) load_weights<Format>(p, block, gemm1, gemm2);
    return;
  }

  // Tokens.
  StreamK gemm1(p.layer.w13);
  if (!epilogue_routes || !is_epilogue)
    fill_inputs(p, block, epilogue_routes ? kMathThreads : kWorkers);
  const bool is_quantizing = quantizes_inputs(p);
  const float global = is_quantizing ? input_scale(p.layer, 0) : 1.0f;
  named_barrier_sync(kWorkersBarrier, kWorkers);
  const std::uint32_t batches = warp_uniform(header.batches);
  gemm1.set_batches(batches);
  if (is_quantizing) {
    // Only the tokens of the block's share; a single token is always one of them.
    quantize_inputs(p, block, p.call.tokens == 1 ? 1 : tokens_of_share(p, header, gemm1), global);
    named_barrier_sync(kWorkersBarrier, kWorkers);
  }

  // Math and epilogue, then combine.
  if (batches == 0) {
    clear_output(p);
  } else {
    pending.finish(p.route);
    CombineWarps combine(
        p, block, batches,
        is_epilogue ? warp - first_warp(Role::epilogue) : warp + kEpilogueThreads / 32);
    if (is_epilogue) {
      named_barrier_sync(kRouterWeightsBarrier,
                         kEpilogueThreads + (epilogue_routes ? 0 : count * 32));
      EpilogueWarps epilogue(p, block);
      epilogue.prepare_assignments();
      combine.locate();
      epilogue.run(gemm1, batches);
    } else {
      if (!epilogue_routes && routers.index < count)
        named_barrier_arrive(kRouterWeightsBarrier, kEpilogueThreads + count * 32);
      mma_share<Format>(p, block, gemm1, batches);
    }
    combine.run();
  }
  if (threadIdx.x == first_warp(Role::epilogue) * 32) count_launch(p, block.epoch);
}

}  // namespace fp4moe::kernels::cuda::sm90::decode
