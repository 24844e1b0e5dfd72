// The grouped GEMM: GEMM1 and GEMM2 of all experts, one block per SM. Weights are FP4, the A operand,
// dequantized in registers; tokens are BF16, the B operand in shared memory. However few tokens an
// expert has, only their number is padded, to a multiple of 8.
//
//   role                one work tile (a token tile x one M block per math warpgroup)         time ─►
//
//   weight loader       take work tile ─┬─► weights of stage 0, 1, 2 ...           next work tile
//                            queue_full │        ▲ empty     │ full
//   token loaders (2)                   ├─► [tile_progress]─►│ tokens of stage 0, 1, 2 ...
//                                       │        ▲           ▼
//   math warpgroups (3-4)               ├─► factors          dequantize, mma ─ ... ─► epilogue ─┐
//                                       │                                         queue_empty │
//   completion signal                   └─► ................................................. ▼ count
//                                                                       tile_progress[tile] += M blocks
//   deferred gather     rows of later tiles ─► token tiles ─► tile_progress[tile] += row groups
//
// GEMM2 of a token tile starts when GEMM1 of that tile is complete in all blocks: token loaders wait
// for tile_progress. Work tiles are taken in order by running blocks only, so a block never waits
// for a block that has not started. Weights do not depend on other kernels: the weight loader starts
// before pdl_wait.
//
// Tokens come from token tiles (bulk copies) or, for tiles of at most kMaxGatheredTokens, from their
// own rows (cp.async, 16 bytes per lane). In the second case blocks sort the assignments themselves,
// see SortAndStart.
#pragma once
#include <cstdint>
#include <utility>

#include "fp4moe/kernels/cuda/sm90/grouped_gemm/block_sort.cuh"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm/deferred_gather.cuh"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm/epilogue.cuh"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm/loaders.cuh"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm/storage.cuh"
#include "fp4moe/kernels/cuda/sm90/pipeline.cuh"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/wgmma.cuh"

namespace fp4moe::kernels::cuda::sm90::grouped_gemm {

// --- Sort, and start of the first work tile.

// A block that sorts starts its first work tile meanwhile: the weights of its first stage are sent
// when experts are counted, its tokens when the rows are known. The tokens of the other stages follow
// when the sort does not need their memory any more.
template <class Config>
class SortAndStart {
 public:
  __device__ SortAndStart(const GroupedGemmParams& p, SharedHeader& header, std::uint32_t stages,
                          FirstWork& first)
      : p_(p), gemm_(p.gemms[0]), header_(header), stages_(stages), first_(first) {}

  // All threads of the block. `scratch`: for the sort.
  __device__ TileTables run(std::uint8_t* scratch) const {
    const std::uint32_t warp = warp_uniform(threadIdx.x / 32);
    // Usually every expert has one tile: the scheduler is made for that while the block waits.
    const std::uint32_t guess = min(p_.block_sort.assignments, p_.block_sort.experts);
    if (warp == kLoader) header_.scheduler.make(p_, guess, Config::kWarpgroups);
    BlockLocalSort sort(p_, scratch);
    sort.clear_rows();
    pdl_wait();
    pdl_launch_dependents();
    BlockLocalSort::Loaded loaded;
    sort.load(loaded);
    if (threadIdx.x == kLoader * 32) first_.take(p_);
    sort.scan(loaded);
    if (threadIdx.x < BlockLocalSort::kPlacers)
      sort.place_assignments(loaded);
    else if (threadIdx.x < BlockLocalSort::kPlacers + 32)
      start_weights(sort.tables(), guess);
    else
      sort.write_tiles();
    fence_proxy_async();  // bulk copies will write where the sort did
    __syncthreads();
    const std::uint16_t* token_of_row = sort.token_of_row() + header_.queue[0].tile.first_row;
    if (warp == kLoader)
      keep_tokens(token_of_row);
    else
      send_tokens(0, token_of_row);
    const TileTables tables = sort.store();
    __syncthreads();
    return tables;
  }
  // Math threads send the tokens of the other stages; token loaders wait for them.
  __device__ void send_other_tokens() const {
    for (std::uint32_t stage = 1; stage < started_stages<Config>(p_); ++stage)
      send_tokens(stage, header_.token_of_row);
    named_barrier_arrive(kFirstTokensBarrier, kSenders);
  }
  __device__ static void wait_for_tokens() { named_barrier_sync(kFirstTokensBarrier, kSenders); }

 private:
  static constexpr std::uint32_t kLoader = Config::kMathWarps;  // the weight loader warp
  static constexpr std::uint32_t kSenders = Config::kWarpgroups * 128 + Config::kTokenLoaders * 32;

  // The weight loader warp, with the counts of experts. `guess`: tiles of the scheduler so far.
  __device__ void start_weights(const ExpertTables& experts, std::uint32_t guess) const {
    const std::uint32_t tiles = experts.first_tile[p_.block_sort.experts];
    if (tiles != guess) header_.scheduler.make(p_, tiles, Config::kWarpgroups);
    first_.work = make_work_tile(
        header_.scheduler.tile(warp_uniform(first_.number)), [&](std::uint32_t tile) {
          return make_tile(experts, expert_of_tile(experts, p_.block_sort.experts, tile), tile);
        });
    publish(header_, PipelineState{}, first_.work);
    const std::uint32_t m_blocks = warp_uniform(first_.work.m_blocks);
    if (m_blocks != 0)
      send_weights<Config>(WeightStream<typename Config::Format>(p_, first_.work), m_blocks,
                           stages_, shared_address(&header_.full[0]),
                           weights_l2_policy(Config::kTileTokens));
  }
  __device__ void keep_tokens(const std::uint16_t* token_of_row) const {
    for (std::uint32_t i = threadIdx.x % 32; i < header_.queue[0].tile.rows; i += 32)
      header_.token_of_row[i] = token_of_row[i];
  }
  // One stage, if the first work tile is of GEMM1. A thread copies 16 bytes of each K block of the
  // stage, of one row or two.
  template <class Token>
  __device__ void send_tokens(std::uint32_t stage, const Token* token_of_row) const {
    constexpr std::uint32_t kRows = Config::kWarpgroups * 128 / 8;  // at once
    const std::uint32_t chunk = threadIdx.x % 8, first = stage * Config::kStageKBlocks;
    const WorkTile& work = header_.queue[0];
    const std::uint32_t rows = work.gemm == 0 ? work.tile.rows : 0;
    if (threadIdx.x >= kRows * 8 || threadIdx.x / 8 >= rows) return;
#pragma unroll
    for (std::uint32_t row = threadIdx.x / 8; row < Config::kTileTokens; row += kRows) {
      if (row >= rows) break;
      const std::uint8_t* from = static_cast<const std::uint8_t*>(gemm_.rows.data) +
                                 std::uint64_t{token_of_row[row]} * row_bytes(gemm_) + first * 128 +
                                 chunk * 16;
      const std::uint32_t to = stages_ + stage * Config::kStageBytes + Config::kWeightBytes +
                               row * 128 + (chunk ^ row % 8) * 16;
#pragma unroll
      for (std::uint32_t k = 0; k < Config::kStageKBlocks; ++k)
        if (first + k < gemm_.matrix.k_blocks) cp_async_16(to + k * rows * 128, from + k * 128);
    }
    cp_async_mbarrier_arrive(shared_address(&header_.full[stage]));
  }

  const GroupedGemmParams& p_;
  const Gemm& gemm_;
  SharedHeader& header_;
  std::uint32_t stages_;
  FirstWork& first_;
};

// --- Math warpgroups.

struct MathWarp {
  std::uint32_t warpgroup, warp, lane;  // of the block, of the warpgroup, of the warp
  PipelineState stage;
};

// At most `left` K blocks of a stage. Up to 16 tokens use mma.sync; more use wgmma: while one
// warpgroup waits for it, the others dequantize.
template <class Config, int tokens, int accumulators>
__device__ inline void mma_stage(const MathWarp& me, std::uint32_t stage, std::uint32_t left,
                                 std::uint32_t k_block_bytes, float (&sums)[accumulators]) {
  using Format = typename Config::Format;
  const std::uint32_t tiles = stage + me.warpgroup * Config::kStageKBlocks * Format::kTileBytes;
  const std::uint32_t first_tokens = stage + Config::kWeightBytes;
  std::uint32_t descriptor = descriptor_low(first_tokens);
#pragma unroll
  for (std::uint32_t k = 0; k < Config::kStageKBlocks; ++k) {
    if (k != 0 && left <= k) break;
    const std::uint32_t tile = tiles + k * Format::kTileBytes;
    if constexpr (tokens <= 16) {
      MmaOperands<Format, tokens / 8> operands;
      operands.load(tile, me.warp, me.lane, first_tokens + k * k_block_bytes,
                    ldmatrix_row_offset(me.lane));
      if constexpr (Config::kIsPrescaled)
        operands.mma_prescaled(sums);
      else
        operands.mma(sums);
    } else {
      const auto weights = LaneWeights<Format>::load(tile, me.warp, me.lane);
      AFragment fragments[4] = {
          weights.template dequantize_step<0>(), weights.template dequantize_step<1>(),
          weights.template dequantize_step<2>(), weights.template dequantize_step<3>()};
      wgmma_k_block<tokens>(sums, fragments, descriptor);
      wgmma_wait_k_block(fragments);
      descriptor += k_block_bytes / kDescriptorUnit;
    }
  }
}

// All K blocks, for `tokens` tokens: each number of tokens has its own loop.
template <class Config, int tokens, int accumulators>
__device__ inline void mainloop(std::uint32_t k_blocks, std::uint32_t num_stages,
                                SharedHeader& header, std::uint32_t stages,
                                std::uint32_t k_block_bytes, MathWarp& me,
                                float (&sums)[accumulators]) {
  std::uint32_t stage = stages + me.stage.index * Config::kStageBytes;
  for (std::uint32_t left = k_blocks; left > 0;) {
    mbarrier_wait(shared_address(&header.full[me.stage.index]), me.stage.phase);
    // Gathered tokens were written by cp.async.
    if constexpr (tokens > 16 && Config::kGathersTokens) fence_proxy_async();
    mma_stage<Config, tokens>(me, stage, left, k_block_bytes, sums);
    left -= min(Config::kStageKBlocks, left);
    if (me.lane == 0) mbarrier_arrive(shared_address(&header.empty[me.stage.index]));
    me.stage.advance(num_stages);
    stage = me.stage.index == 0 ? stages : stage + Config::kStageBytes;
  }
}

// A warpgroup without an M block in this work tile releases the stages.
template <class Config>
__device__ inline void skip_stages(std::uint32_t k_blocks, std::uint32_t num_stages,
                                   SharedHeader& header, MathWarp& me) {
  for (std::uint32_t k_block = 0; k_block < k_blocks; k_block += Config::kStageKBlocks) {
    mbarrier_wait(shared_address(&header.full[me.stage.index]), me.stage.phase);
    __syncwarp();  // no lane may miss a phase
    if (me.lane == 0) mbarrier_arrive(shared_address(&header.empty[me.stage.index]));
    me.stage.advance(num_stages);
  }
}

// Numbers of tokens that have a loop. There are as many as registers allow: the compiler shares no
// registers between the loops.
template <int tile_tokens>
struct TokenCounts;
template <>
struct TokenCounts<32> {
  using type = std::integer_sequence<int, 8, 16, 24, 32>;
};
template <>
struct TokenCounts<64> {
  using type = std::integer_sequence<int, 16, 24, 32, 40, 48, 56, 64>;
};
template <>
struct TokenCounts<88> {
  using type = std::integer_sequence<int, 32, 48, 56, 64, 72, 80, 88>;
};
template <>
struct TokenCounts<128> {
  using type = std::integer_sequence<int, 32, 48, 64, 72, 80, 88, 96, 104, 112, 120, 128>;
};
template <>
struct TokenCounts<192> {
  using type = std::integer_sequence<int, 32, 64, 80, 96, 104, 112, 120, 128, 136, 144, 152, 160,
                                     168, 176, 184, 192>;
};

template <class Config>
__device__ void math_warps(const GroupedGemmParams& params, SharedHeader& header,
                           std::uint32_t stages) {
  const std::uint32_t block_warp = warp_uniform(threadIdx.x / 32);
  MathWarp me{block_warp / 4, block_warp % 4, threadIdx.x % 32, {}};
  const EpilogueBuffer buffer(stages + Config::storage().epilogue(params.stages, 0) +
                              me.warpgroup * SharedStorage::kEpilogueBytes);
  PipelineState queue;
  for (;;) {
    mbarrier_wait(shared_address(&header.queue_full[queue.index]), queue.phase);
    const WorkTile& work = header.queue[queue.index];
    const std::uint32_t m_blocks = warp_uniform(work.m_blocks);
    if (m_blocks == 0) return;
    const std::uint32_t k_block_bytes = warp_uniform(work.tile.rows) * 128;
    // All tiles of an expert use the same instructions: the bits of a token do not depend on which
    // of the tiles it is in.
    const std::uint32_t min_bytes =
        Config::kTileTokens <= 32 && warp_uniform(work.tile.expert_tiles) > 1 ? 24 * 128 : 0;
    const Gemm& gemm = params.gemms[warp_uniform(work.gemm)];
    const std::uint32_t k_blocks = gemm.matrix.k_blocks, num_stages = params.stages;
    float sums[Config::kTileTokens / 2];
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    const auto mainloop_of_tile = [&]<int... tokens>(std::integer_sequence<int, tokens...>) {
      // The first number of tokens that the tile fits into.
      const bool done = ((max(k_block_bytes, min_bytes) <= tokens * 128 &&
                          (mainloop<Config, tokens>(k_blocks, num_stages, header, stages,
                                                    k_block_bytes, me, sums),
                           true)) ||
                         ...);
      static_cast<void>(done);
    };
    const auto output_tile = [&] {
      TokenTile tile = work.tile;
      tile.rows = k_block_bytes / 128;
      return OutputTile{tile, work.first_m_block + me.warpgroup, kEpilogueBarrier + me.warpgroup,
                        threadIdx.x % 128, me.lane};
    };
    if (me.warpgroup < m_blocks) {
      fetch_factors(gemm, output_tile(), buffer);
      mainloop_of_tile(typename TokenCounts<Config::kTileTokens>::type{});
      asm volatile("" ::: "memory");  // reads the work tile again: registers are few in the loop
      store(gemm, output_tile(), buffer, sums);
    } else {
      skip_stages<Config>(k_blocks, num_stages, header, me);
    }
    __syncwarp();
    if (me.lane == 0) mbarrier_arrive(shared_address(&header.queue_empty[queue.index]));
    queue.advance(kQueueSize);
  }
}

// --- Completion signal: one lane counts finished work tiles.

// Math warps release an entry of the queue when all their stores are issued. GEMM1 then counts for
// the token loaders of GEMM2, early work tiles of GEMM2 count for combine. Before the first one, the
// block tells combine that its tables are written.
class CompletionSignal {
 public:
  __device__ CompletionSignal(const GroupedGemmParams& p, SharedHeader& header)
      : p_(p), header_(header) {}

  __device__ void run() {
    bool is_first = p_.gemms[1].matrix.m_blocks != 0;
    for (PipelineState queue;; queue.advance(kQueueSize)) {
      mbarrier_wait(shared_address(&header_.queue_full[queue.index]), queue.phase);
      if (is_first) notify_tables(header_.scheduler);
      is_first = false;
      const WorkTile& work = header_.queue[queue.index];
      const std::uint32_t m_blocks = work.m_blocks;
      std::uint32_t* counter = counter_of(work);
      mbarrier_arrive(shared_address(&header_.queue_empty[queue.index]));
      if (m_blocks == 0) return;
      if (counter == nullptr) continue;
      mbarrier_wait(shared_address(&header_.queue_empty[queue.index]), queue.phase);
      red_release_add(counter, m_blocks);
    }
  }

 private:
  __device__ void notify_tables(const TileScheduler& scheduler) {
    std::uint32_t* signals = p_.tables.combine_signals;
    if (blockIdx.x == 0) {
      const std::uint32_t early = scheduler.early_m_blocks();
      red_release_add(signals + kEarlyBlocksLeft, 0 - scheduler.tiles() * early);
      red_release_add(signals + kTablesReady, 1 + (early << kTablesReadyBits));
    } else if (blockIdx.x < table_writer_blocks(p_.block_sort, gridDim.x)) {
      red_release_add(signals + kTablesReady, 1);
    }
  }
  __device__ std::uint32_t* counter_of(const WorkTile& work) const {
    if (work.gemm != 0)
      return work.is_late != 0 ? nullptr : p_.tables.combine_signals + kEarlyBlocksLeft;
    return p_.gemms[1].matrix.m_blocks != 0 ? p_.tables.tile_progress + work.tile_index : nullptr;
  }

  const GroupedGemmParams& p_;
  SharedHeader& header_;
};

// --- The kernel.

// Registers of a thread after setmaxnreg.
struct Registers {
  int load, math;
};
constexpr Registers registers(int tile_tokens) {
  return tile_tokens > 128  ? Registers{32, 160}
         : tile_tokens > 88 ? Registers{32, 112}
         : tile_tokens > 64 ? Registers{64, 104}
                            : Registers{48, 104};
}

// The first work tile of a block that does not sort, by the weight loader warp. Makes the scheduler.
template <class Config>
__device__ inline void take_first_work(const GroupedGemmParams& p, SharedHeader& header,
                                       const TileTables& tables, FirstWork& to) {
  if (threadIdx.x % 32 == 0) to.take(p);
  header.scheduler.make(p, tables.count, Config::kWarpgroups);
  to.work = make_work_tile(header.scheduler.tile(warp_uniform(to.number)),
                           [&](std::uint32_t tile) { return load_tile(tables.tiles, tile); });
}

// Inlined: after a call the compiler waits for each tensor instruction.
template <class Config>
__device__ __forceinline__ void run(const GroupedGemmParams& p) {
  // Shared memory.
  extern __shared__ std::uint8_t memory[];
  prefetch_params(p);
  const std::uint32_t start = SharedStorage::aligned(shared_address(memory));
  auto& header = *reinterpret_cast<SharedHeader*>(memory + (start - shared_address(memory)));
  const std::uint32_t stages = start + SharedStorage::kFirstStage;

  // Barriers. Not a function: the compiler would order the epilogue in another way.
  static_assert(kQueueSize <= kMaxStages);
  if (threadIdx.x < kMaxStages) {
    mbarrier_init(shared_address(&header.full[threadIdx.x]), 1 + Config::kTokenLoaders * 32);
    mbarrier_init(shared_address(&header.empty[threadIdx.x]), Config::kMathWarps);
    if (threadIdx.x < kQueueSize) {
      mbarrier_init(shared_address(&header.queue_full[threadIdx.x]), 1);
      mbarrier_init(shared_address(&header.queue_empty[threadIdx.x]),
                    Config::kMathWarps + Config::kTokenLoaders + 1);
    }
    fence_mbarrier_init();
  }
  __syncthreads();

  // Sort.
  const std::uint32_t warp = warp_uniform(threadIdx.x / 32);
  const bool is_weight_loader = warp == last_warp<Config>(Role::weight_loader);
  const bool is_sorting = Config::kGathersTokens && p.block_sort.experts != 0;
  TileTables tables{p.tables.tiles, 0, nullptr};
  FirstWork first;
  const SortAndStart<Config> start_first(p, header, stages, first);
  if (is_sorting)
    tables = start_first.run(memory + (stages - shared_address(memory)) + Config::kSortScratch);

  // Roles.
  if (warp > last_warp<Config>(Role::math)) {
    if constexpr (Config::kTileTokens > 32) setmaxnreg_dec<registers(Config::kTileTokens).load>();
    if (is_weight_loader) {
      if (!is_sorting) {
        tables.count = __ldcg(p.tables.tile_count);
        take_first_work<Config>(p, header, tables, first);
      }
      return load_weights<Config>(p, tables, first, header, stages, is_sorting);
    }
    if (!is_sorting) {
      pdl_wait();
      pdl_launch_dependents();  // combine reads tables that all kernels before this one wrote
    }
    if (warp <= last_warp<Config>(Role::token_loader)) {
      if (is_sorting) start_first.wait_for_tokens();
      TokenLoader<Config>(p, tables, header, stages, warp - Config::kMathWarps - 1).run();
    } else if (warp == last_warp<Config>(Role::completion_signal)) {
      if (threadIdx.x % 32 == 0) CompletionSignal(p, header).run();
    } else if constexpr (!Config::kGathersTokens) {  // Role::deferred_gather
      DeferredGather<static_cast<int>(Config::storage().deferred_k_blocks())>(
          p, stages + Config::storage().deferred(p.stages))
          .run();
    }
  } else {
    if constexpr (Config::kTileTokens > 32) setmaxnreg_inc<registers(Config::kTileTokens).math>();
    if (is_sorting) start_first.send_other_tokens();
    math_warps<Config>(p, header, stages);
  }
}

}  // namespace fp4moe::kernels::cuda::sm90::grouped_gemm
