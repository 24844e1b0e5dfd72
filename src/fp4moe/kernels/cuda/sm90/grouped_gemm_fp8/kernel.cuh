// The grouped GEMM on FP8 tensor cores: GEMM1 or GEMM2 of all experts, one block per SM. Weights are
// MXFP4, the A operand, dequantized to E4M3 in registers; tokens are E4M3, the B operand in shared
// memory. Roles, queue, pipeline and epilogues are those of grouped_gemm.
//
//   role            (a stage: 128 columns)                                                  time ─►
//
//   a scale for each token
//     loaders         stage 0    stage 1    stage 2               stage 3    stage 4
//                       │ full     │ full     │ full                │ full     │ full
//                       ▼          ▼          ▼                     ▼          ▼
//     math warps      0 to E4M3  1 to E4M3  2 to E4M3  add 0, 1   3 to E4M3  4 to E4M3  add 2, 3
//     tensor cores               0 ───────┐ 1 ───────┐              2 ───────┐ 3 ───────┐
//     loaders                     empty 0 ▼  empty 1 ▼               empty 2 ▼  empty 3 ▼
//
//   a scale for every 128 columns of a token
//     math warps      0 to E4M3  1 to E4M3  add 0 ─┐ 2 to E4M3  add 1 ─┐ 3 to E4M3  add 2 ─┐
//     tensor cores               0 ────────►       │ 1 ────────►       │ 2 ────────►       │
//     loaders                              empty 0 ▼           empty 1 ▼           empty 2 ▼
//
// The tensor cores' own sums keep about 14 bits, so they are added to float32 ones: after every stage
// where it has scales of its own, else after two. While one warpgroup adds, the others multiply.
#pragma once
#include <cstdint>
#include <utility>

#include "fp4moe/kernels/cuda/sm90/grouped_gemm/kernel.cuh"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm_fp8/dequantize_e4m3.cuh"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm_fp8/shape.hpp"
#include "fp4moe/kernels/cuda/sm90/wgmma_e4m3.cuh"

namespace fp4moe::kernels::cuda::sm90::grouped_gemm_fp8 {

using grouped_gemm::EpilogueBuffer;
using grouped_gemm::MathWarp;
using grouped_gemm::OutputTile;
using grouped_gemm::Role;
using grouped_gemm::SharedHeader;
using grouped_gemm::WorkTile;

// The kernel for token tiles of at most `tokens` tokens.
template <int tokens, bool block_scales>
struct Fp8Config {
  using Format = Mxfp4;
  static constexpr int kTileTokens = tokens;
  static constexpr bool kHasBlockScales = block_scales;
  static constexpr std::uint32_t kWeightBytes =  // of a stage
      Fp8SharedStorage{tokens, block_scales}.weight_bytes();
  static constexpr std::uint32_t kStageBytes = Fp8SharedStorage{tokens, block_scales}.stage_bytes();
  static constexpr std::uint32_t kStageKBlocks = grouped_gemm_fp8::kStageKBlocks;
  static constexpr std::uint32_t kTokenKBlocks = grouped_gemm_fp8::kTokenKBlocks;
  static constexpr std::uint32_t kTokenRowBytes = token_row_bytes(block_scales);
  static constexpr std::uint32_t kWarpgroups = math_warpgroups(tokens);
  static constexpr std::uint32_t kMathWarps = kWarpgroups * 4;
  static constexpr bool kGathersTokens = false;
  static constexpr std::uint32_t kTokenLoaders = 1;
  static constexpr std::uint32_t kRoleWarps[grouped_gemm::kRoles] = {kMathWarps, 1, kTokenLoaders,
                                                                     0, 1};

  __device__ static constexpr Fp8SharedStorage storage() { return {tokens, block_scales}; }
};

// Numbers of tokens that have a loop.
template <int tile_tokens>
struct TokenCounts;
template <>
struct TokenCounts<64> {
  using type = std::integer_sequence<int, 8, 16, 24, 32, 40, 48, 56, 64>;
};
template <>
struct TokenCounts<160> {
  using type = std::integer_sequence<int, 32, 64, 80, 96, 104, 112, 120, 128, 136, 144, 152, 160>;
};

// Both rows' largest scales of a lane.
struct RowScales {
  std::uint32_t g, g8;

  __device__ static RowScales load(const Gemm& gemm, const OutputTile& of) {
    const std::uint8_t* row =
        gemm.matrix.row_scales +
        (std::uint64_t{static_cast<std::uint32_t>(of.tile.expert)} * gemm.matrix.m_blocks +
         of.m_block) *
            kBlockM +
        of.thread / 32 * 16 + of.lane / 4;
    return {__ldg(row), __ldg(row + 8)};
  }
};

// Adds the sums of a stage, `part` tokens, to those before. `scales`: of these tokens, in shared memory.
template <bool has_scales, int part, int partials>
__device__ inline void promote(float* sums, const float (&stage_sums)[partials],
                               std::uint32_t scales) {
#pragma unroll
  for (int group = 0; group < part / 8; ++group) {
    float* to = sums + 4 * group;
    const float* from = stage_sums + 4 * group;
    if constexpr (has_scales) {
      const uint2 words = ld_shared_8(scales + group * 32);
      const float scale = __uint_as_float(words.x), scale1 = __uint_as_float(words.y);
      to[0] = fmaf(from[0], scale, to[0]);
      to[1] = fmaf(from[1], scale1, to[1]);
      to[2] = fmaf(from[2], scale, to[2]);
      to[3] = fmaf(from[3], scale1, to[3]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] += from[i];
    }
  }
}

// A stage's weights in the order of its four steps of 32 columns.
struct StageWeights {
  AFragment steps[4];

  // The tile behind the last K block holds old weights; its tokens are zeros.
  __device__ static StageWeights dequantize(std::uint32_t tile, const MathWarp& me,
                                            const RowTables& tables) {
    const LaneMxfp4 first = LaneMxfp4::load(tile, me.warp, me.lane);
    const LaneMxfp4 second = LaneMxfp4::load(tile + Mxfp4::kTileBytes, me.warp, me.lane);
    return {{first.template dequantize<0>(tables), first.template dequantize<1>(tables),
             second.template dequantize<0>(tables), second.template dequantize<1>(tables)}};
  }
};

// The pipeline's stages in shared memory.
struct StageRing {
  SharedHeader& header;
  std::uint32_t stages, count;
};

// All stages of a work tile, for `tokens` tokens. Inlined: after a call the compiler waits for each tensor
// instruction.
template <class Config, int tokens>
class StageLoop {
 public:
  __device__ StageLoop(const StageRing& ring, std::uint32_t rows, const RowTables& tables,
                       MathWarp& me)
      : ring_(ring),
        scales_(Config::kWeightBytes + rows * kBlockRowBytes + me.lane % 4 * 8),
        tables_(tables),
        me_(me) {}

  template <int accumulators>
  __device__ __forceinline__ void run(std::uint32_t count, float (&sums)[accumulators]) {
    started_ = next_ = me_.stage;
    not_full_ = count;
    wait_for_next();
    StageWeights even = dequantize_next();
    wait_for_next();
    for (; count > 2; count -= 2) mma_two<true>(even, sums);
    if (count == 2) return mma_two<false>(even, sums);
    float stage_sums[tokens / 2];
    start<false>(even, stage_sums);
    finish(even, sums, stage_sums);
  }

 private:
  // Two stages. `even`: the weights of the first, and then of the one after both.
  template <bool has_next, int accumulators>
  __device__ __forceinline__ void mma_two(StageWeights& even, float (&sums)[accumulators]) {
    StageWeights odd;
    float stage_sums[tokens / 2];
    start<false>(even, stage_sums);
    odd = dequantize_next();
    if constexpr (has_next) wait_for_next();
    if constexpr (Config::kHasBlockScales) {
      finish(even, sums, stage_sums);
      start<false>(odd, stage_sums);
    } else {
      start<true>(odd, stage_sums);
      wgmma_wait<1>();
      keep(even);
      release();
    }
    if constexpr (has_next) {
      even = dequantize_next();
      wait_for_next();
    }
    finish(odd, sums, stage_sums);
  }
  // Waits for the next stage, if there is one. Behind its branch the compiler does not delay what was
  // dequantized before until the tensor cores are done.
  __device__ __forceinline__ void wait_for_next() {
    if (not_full_ == 0) return;
    mbarrier_wait(shared_address(&ring_.header.full[next_.index]), next_.phase);
    --not_full_;
  }
  __device__ __forceinline__ StageWeights dequantize_next() {
    const std::uint32_t stage = ring_.stages + next_.index * Config::kStageBytes;
    next_.advance(ring_.count);
    return StageWeights::dequantize(
        stage + me_.warpgroup * Config::kStageKBlocks * Mxfp4::kTileBytes, me_, tables_);
  }
  template <bool accumulates>
  __device__ __forceinline__ void start(const StageWeights& weights,
                                        float (&stage_sums)[tokens / 2]) {
    const std::uint64_t descriptor = make_descriptor(
        descriptor_low(ring_.stages + started_.index * Config::kStageBytes + Config::kWeightBytes));
    started_.advance(ring_.count);
    wgmma_fence();
    wgmma_e4m3<tokens, accumulates>(stage_sums, weights.steps[0], descriptor);
    wgmma_e4m3<tokens, true>(stage_sums, weights.steps[1], descriptor + 2);
    wgmma_e4m3<tokens, true>(stage_sums, weights.steps[2], descriptor + 4);
    wgmma_e4m3<tokens, true>(stage_sums, weights.steps[3], descriptor + 6);
    wgmma_commit_group();
  }
  // Adds the sums when the tensor cores are done.
  template <int accumulators>
  __device__ __forceinline__ void finish(StageWeights& weights, float (&sums)[accumulators],
                                         const float (&stage_sums)[tokens / 2]) {
    wgmma_wait<0>();
    keep(weights);
    if constexpr (!Config::kHasBlockScales) release();
    promote<Config::kHasBlockScales, tokens>(
        sums, stage_sums, ring_.stages + me_.stage.index * Config::kStageBytes + scales_);
    if constexpr (Config::kHasBlockScales) {
      __syncwarp();  // all lanes have read the scales
      release();
    }
  }
  __device__ __forceinline__ static void keep(StageWeights& weights) {
#pragma unroll
    for (AFragment& step : weights.steps) keep_until_here(step);
  }
  __device__ __forceinline__ void release() {
    if (me_.lane == 0) mbarrier_arrive(shared_address(&ring_.header.empty[me_.stage.index]));
    me_.stage.advance(ring_.count);
  }

  const StageRing& ring_;
  std::uint32_t scales_;  // of the lane's two tokens of a row group, from the begin of a stage
  const RowTables& tables_;
  MathWarp& me_;                      // its stage is the next to be released
  PipelineState started_{}, next_{};  // the next to be multiplied, to be dequantized
  std::uint32_t not_full_ = 0;        // stages that were not waited for
};

// With the loop of the first number of tokens that the tile fits into.
template <class Config, int accumulators, int... tokens>
__device__ __forceinline__ void mainloop(const StageRing& ring, std::uint32_t count,
                                         std::uint32_t rows, const RowTables& tables, MathWarp& me,
                                         float (&sums)[accumulators],
                                         std::integer_sequence<int, tokens...>) {
  const bool done = ((rows <= tokens &&
                      (StageLoop<Config, tokens>(ring, rows, tables, me).run(count, sums), true)) ||
                     ...);
  static_cast<void>(done);
}

// Starts the copies of the tokens' scales.
__device__ inline void fetch_token_scales(const Gemm& gemm, const OutputTile& of,
                                          std::uint32_t to) {
  if (gemm.token_scales == nullptr) return;
  for (std::uint32_t i = of.thread; i < of.tile.rows; i += 128)
    cp_async_4(to + i * 4, gemm.token_scales + of.tile.first_row + i);
}

// Factors of rows, and of tokens where each has its own. The copies are complete, and a barrier is
// behind them.
template <int accumulators>
__device__ inline void scale_sums(const Gemm& gemm, const OutputTile& of, const RowScales& rows,
                                  std::uint32_t token_scales, float (&sums)[accumulators]) {
  const float g = row_factor(rows.g), g8 = row_factor(rows.g8);
  const bool has_scales = gemm.token_scales != nullptr;
#pragma unroll
  for (std::uint32_t group = 0; group < accumulators / 4; ++group) {
    if (group * 8 >= of.tile.rows) break;
    uint2 words{0x3F800000u, 0x3F800000u};
    if (has_scales) words = ld_shared_8(token_scales + group * 32 + of.lane % 4 * 8);
    const float scale = __uint_as_float(words.x), scale1 = __uint_as_float(words.y);
    sums[4 * group] *= scale * g;
    sums[4 * group + 1] *= scale1 * g;
    sums[4 * group + 2] *= scale * g8;
    sums[4 * group + 3] *= scale1 * g8;
  }
}

template <class Config>
__device__ __forceinline__ void math_warps(const GroupedGemmParams& params, SharedHeader& header,
                                           std::uint32_t tables, std::uint32_t stages) {
  const std::uint32_t block_warp = warp_uniform(threadIdx.x / 32);
  MathWarp me{block_warp / 4, block_warp % 4, threadIdx.x % 32, {}};
  const std::uint32_t epilogue = stages + Config::storage().epilogue(params.stages, 0) +
                                 me.warpgroup * Fp8SharedStorage::kEpilogueBytes;
  const EpilogueBuffer buffer(epilogue);
  const std::uint32_t token_scales = epilogue + Fp8SharedStorage::kEpilogueScales;
  PipelineState queue;
  float sums[Config::kTileTokens / 2];
  for (;;) {
    mbarrier_wait(shared_address(&header.queue_full[queue.index]), queue.phase);
    const WorkTile& work = header.queue[queue.index];
    const std::uint32_t m_blocks = warp_uniform(work.m_blocks);
    if (m_blocks == 0) return;
    const std::uint32_t rows = warp_uniform(work.tile.rows);
    const Gemm& gemm = params.gemms[warp_uniform(work.gemm)];
    const std::uint32_t k_blocks = gemm.matrix.k_blocks;
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    const auto output_tile = [&] {
      TokenTile tile = work.tile;
      tile.rows = rows;
      return OutputTile{tile, work.first_m_block + me.warpgroup,
                        grouped_gemm::kEpilogueBarrier + me.warpgroup, threadIdx.x % 128, me.lane};
    };
    if (me.warpgroup < m_blocks) {
      const RowScales row_scales = RowScales::load(gemm, output_tile());
      fetch_factors(gemm, output_tile(), buffer);
      fetch_token_scales(gemm, output_tile(), token_scales);
      const RowTables row_tables(tables, row_scales.g, row_scales.g8);
      mainloop<Config>(StageRing{header, stages, params.stages}, token_blocks(k_blocks), rows,
                       row_tables, me, sums, typename TokenCounts<Config::kTileTokens>::type{});
      asm volatile("" ::: "memory");  // reads the work tile again: registers are few in the loop
      cp_async_wait_all();
      named_barrier_sync(grouped_gemm::kEpilogueBarrier + me.warpgroup, 128);
      scale_sums(gemm, output_tile(), row_scales, token_scales, sums);
      store(gemm, output_tile(), buffer, sums);
    } else {
      grouped_gemm::skip_stages<Config>(k_blocks, params.stages, header, me);
    }
    __syncwarp();
    if (me.lane == 0) mbarrier_arrive(shared_address(&header.queue_empty[queue.index]));
    queue.advance(grouped_gemm::kQueueSize);
  }
}

// Registers of a thread after setmaxnreg.
constexpr grouped_gemm::Registers registers(std::uint32_t warpgroups) {
  return warpgroups == 3 ? grouped_gemm::Registers{32, 160} : grouped_gemm::Registers{24, 240};
}

// Inlined: after a call the compiler waits for each tensor instruction.
template <class Config>
__device__ __forceinline__ void run(const GroupedGemmParams& p) {
  using grouped_gemm::kMaxStages;
  using grouped_gemm::kQueueSize;
  using grouped_gemm::last_warp;
  // Shared memory.
  extern __shared__ std::uint8_t memory[];
  prefetch_params(p);
  const std::uint32_t start = Fp8SharedStorage::aligned(shared_address(memory));
  auto& header = *reinterpret_cast<SharedHeader*>(memory + (start - shared_address(memory)));
  const std::uint32_t tables = start + Fp8SharedStorage::kTables;
  const std::uint32_t stages = start + Fp8SharedStorage::kFirstStage;
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
  make_e4m3_tables(tables);
  __syncthreads();

  // Roles.
  const std::uint32_t warp = warp_uniform(threadIdx.x / 32);
  constexpr grouped_gemm::Registers kRegisters = registers(Config::kWarpgroups);
  if (warp > last_warp<Config>(Role::math)) {
    setmaxnreg_dec<kRegisters.load>();
    if (warp == last_warp<Config>(Role::weight_loader)) {
      const grouped_gemm::TileTables tiles{p.tables.tiles, __ldcg(p.tables.tile_count), nullptr};
      grouped_gemm::FirstWork first;
      grouped_gemm::take_first_work<Config>(p, header, tiles, first);
      return grouped_gemm::load_weights<Config>(p, tiles, first, header, stages, false);
    }
    pdl_wait();
    pdl_launch_dependents();
    if (warp == last_warp<Config>(Role::token_loader))
      grouped_gemm::TokenLoader<Config>(p, {p.tables.tiles, 0, nullptr}, header, stages, 0).run();
    else if (warp == last_warp<Config>(Role::completion_signal) && threadIdx.x % 32 == 0)
      grouped_gemm::CompletionSignal(p, header).run();
  } else {
    setmaxnreg_inc<kRegisters.math>();
    pdl_wait();  // scales of tokens
    math_warps<Config>(p, header, tables, stages);
  }
}

}  // namespace fp4moe::kernels::cuda::sm90::grouped_gemm_fp8
