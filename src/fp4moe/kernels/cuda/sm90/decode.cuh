// A whole layer for a few tokens in one launch: one block a multiprocessor, all of them resident.
//
//   every block   routes all tokens, lists who goes to which expert, takes its share of the units
//                 of both products
//   producer      streams the share through a ring of stages, the first product's units, then
//                 without a stop the second's
//   consumers     four warpgroups: each takes every fourth unit of a stage, each warp 16 rows;
//                 their sums of a group of rows go to shared memory
//   finishers     three warps: add the four up, in a fixed order. Groups of the first product
//                 become h; of one that lies in several blocks the first block adds up what the
//                 others left
//   all of them   at the end add up the experts of some tokens and columns of the output
//
// Blocks wait for each other's numbers by looking at them: half of a word of 8 bytes is the number,
// half the launch it is of. No fence and no counter stands in between, and nothing depends on who
// comes first.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/decode_finish.cuh"
#include "fp4moe/kernels/cuda/sm90/decode_tiles.cuh"

namespace fp4moe::kernels::cuda::sm90::decode {

// Stages that are on their way at once. What is asked for together comes in any order: with more of
// them the first product would wait for weights of the second.
inline constexpr std::uint32_t kAhead = 3;

template <class Format>
__device__ void produce(const DecodeParams& p, const Memory& memory, Phase first, Phase second) {
  Tables& tables = memory.tables;
  const std::uint64_t policy = l2_evict_first();
  PipelineState stage, landed;
  std::uint32_t sent = 0;
  const auto stream = [&](const Matrix& matrix, Phase& phase) {
    phase.count(tables.entries);
    Stretches stretches(phase);
    for (Stretch s; stretches.next(s);) {
      const std::uint8_t* from =
          matrix.records + std::uint64_t(tables.expert[s.entry]) * matrix.expert_bytes +
          (std::uint64_t{s.group} * matrix.units + s.first) * Format::kRecord;
      for (std::uint32_t left = s.count; left > 0;) {
        const std::uint32_t units = min(kDecodeStageUnits, left);
        const std::uint32_t barrier = shared_address(&tables.full[stage.index]);
        mbarrier_wait(shared_address(&tables.empty[stage.index]), stage.phase ^ 1);
        if (sent == kAhead) {
          mbarrier_wait(shared_address(&tables.full[landed.index]), landed.phase);
          landed.advance(p.stages);
        } else {
          ++sent;
        }
        mbarrier_arrive_expect_tx(barrier, units * Format::kRecord);
        cp_async_bulk(memory.ring + stage.index * kDecodeStageUnits * Format::kRecord, from,
                      units * Format::kRecord, barrier, policy);
        from += units * Format::kRecord;
        left -= units;
        stage.advance(p.stages);
      }
    }
  };
  stream(p.layer.w13, first);
  stream(p.layer.w2, second);
}

// --- Consumers.

struct Consumer {
  std::uint32_t group, warp, lane;
  PipelineState stage, sums;
};

// Rows of the tile that a lane reads for the tensor cores: row `token` of a unit.
__device__ inline std::uint32_t token_row(std::uint32_t lane, std::uint32_t token) {
  return token * 128 + (lane / 8 ^ token % 8) * 16;
}

// Where a stage's tokens begin and which row of each unit this lane reads; units of the stage.
struct StageTokens {
  std::uint32_t at, row, unit_bytes, units;
};
// A warpgroup's units of a stage, two if it `is_whole`.
template <class Format, bool is_whole>
__device__ inline void multiply_stage(const DecodeParams& p, const Memory& memory, Consumer& me,
                                      const StageTokens& tokens,
                                      float (&sums)[kDecodeColumns / 2]) {
  static_assert(kDecodeStageUnits == 2 * kConsumers);
  Operands<Format, 1> now, next;
  mbarrier_wait(shared_address(&memory.tables.full[me.stage.index]), me.stage.phase);
  const std::uint32_t record =
      memory.ring + (me.stage.index * kDecodeStageUnits + me.group) * Format::kRecord;
  const bool one = is_whole || me.group < tokens.units;
  const bool both = is_whole || me.group + kConsumers < tokens.units;
  if (one) now.load(record, me.warp, me.lane, tokens.at, tokens.row);
  if (both)
    next.load(record + kConsumers * Format::kRecord, me.warp, me.lane,
              tokens.at + kConsumers * tokens.unit_bytes, tokens.row);
  if constexpr (kRaises<Format>) {
    if (one) now.multiply_raised(sums);
    if (both) next.multiply_raised(sums);
  } else {
    if (one) now.multiply(sums);
    if (both) next.multiply(sums);
  }
  __syncwarp();
  if (me.lane == 0) mbarrier_arrive(shared_address(&memory.tables.empty[me.stage.index]));
  me.stage.advance(p.stages);
}

// `rows` of the tile, of which this lane reads the one at `row`.
template <class Format>
__device__ inline void multiply(const DecodeParams& p, const Memory& memory, Consumer& me,
                                const Stretch& s, uint2 rows_and_row) {
  const std::uint32_t unit_bytes = rows_and_row.x * 128, row = rows_and_row.y;
  float sums[kDecodeColumns / 2];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  std::uint32_t tokens = memory.tokens + (s.first + me.group) * unit_bytes, left = s.count;
  for (; left >= kDecodeStageUnits; left -= kDecodeStageUnits) {
    multiply_stage<Format, true>(p, memory, me, {tokens, row, unit_bytes, left}, sums);
    tokens += kDecodeStageUnits * unit_bytes;
  }
  if (left > 0) multiply_stage<Format, false>(p, memory, me, {tokens, row, unit_bytes, left}, sums);
  mbarrier_wait(shared_address(&memory.tables.sums_empty[me.sums.index]), me.sums.phase ^ 1);
  float* to =
      memory.sums +
      ((me.sums.index * kConsumers + me.group) * kDecodeColumns + me.lane % 4 * 2) * kSumStride +
      me.warp * 16 + me.lane / 4;
  to[0] = sums[0];
  to[kSumStride] = sums[1];
  to[8] = sums[2];
  to[kSumStride + 8] = sums[3];
  named_barrier_arrive(kSumsAreThere + me.sums.index, kStagers);
  me.sums.advance(2);
}

template <class Format>
__device__ void consume(const DecodeParams& p, const Memory& memory, const Phase& first,
                        std::uint32_t entries) {
  const Tables& tables = memory.tables;
  const std::uint32_t lane = threadIdx.x % 32, warp = warp_uniform(threadIdx.x / 32);
  Consumer me{warp / 4, warp % 4, lane, {}, {}};
  Stretch s;
  for (Stretches all(first); all.next(s);) {
    // The entry's tokens, wherever they lie among all; columns beyond repeat the first.
    const std::uint32_t i = lane % 8 < tables.rows[s.entry] ? lane % 8 : 0;
    const std::uint32_t token = tables.slot(s.entry, i) / p.call.top_k;
    multiply<Format>(p, memory, me, s, {p.tile_rows, token_row(lane, token)});
  }
  std::uint32_t staged = ~0u;
  for (Stretches all(Phase(p.layer.w2, entries)); all.next(s);) {
    if (s.entry != staged) stage_hidden(p, memory, s.entry);
    staged = s.entry;
    multiply<Format>(p, memory, me, s, {kDecodeColumns, token_row(lane, lane % 8)});
  }
  if (staged == ~0u) named_barrier_sync(kStagersMeet, kStagers);
}

// No expert of this rank was chosen.
__device__ inline void clear_output(const DecodeParams& p) {
  const std::uint32_t all = p.call.tokens * p.layer.hidden;
  for (std::uint32_t i = blockIdx.x * kStagers + stager(); i < all; i += gridDim.x * kStagers)
    store_number(p.call.out.data, p.call.out.type,
                 i / p.layer.hidden * p.call.out.stride + i % p.layer.hidden, 0.0f);
}

// The last block counts the launch.
__device__ inline void count_launch(const DecodeParams& p, std::uint32_t launch) {
  if (atomicAdd(p.counters + 1, 1u) + 1 != gridDim.x) return;
  p.counters[1] = 0;
  p.counters[0] = launch;
}

// `given`: where p was given, with all that it leaves out.
template <class Format>
__device__ void run(const DecodeParams& p, const DecodeParams& given) {
  extern __shared__ __align__(1024) std::uint8_t bytes[];
  Tables& tables = *reinterpret_cast<Tables*>(bytes);
  const std::uint32_t tile =
      max(p.tile_rows * p.layer.w13.units, kDecodeColumns * p.layer.w2.units) * 128;
  const std::uint32_t ring_bytes = p.stages * kDecodeStageUnits * Format::kRecord;
  // Swizzled tokens want multiples of 1024; the tables leave room for that.
  const std::uint32_t begin = shared_address(bytes);
  const std::uint32_t tokens = (begin + sizeof(Tables) + 1023) & ~1023u;
  std::uint8_t* ring = bytes + (tokens - begin) + tile;
  pdl_launch_dependents();
  prefetch_params(given);
  if (threadIdx.x == 0) {
    for (std::uint32_t i = 0; i < p.stages; ++i) {
      mbarrier_init(shared_address(&tables.full[i]), 1);
      mbarrier_init(shared_address(&tables.empty[i]), kConsumers * 4);
    }
    for (std::uint64_t& barrier : tables.sums_empty)
      mbarrier_init(shared_address(&barrier), kFinishers);
    fence_mbarrier_init();
  }
  pdl_wait();
  const Memory memory{tables,
                      tokens,
                      tokens + tile,
                      reinterpret_cast<float*>(ring + ring_bytes),
                      p.counters[0] + 1,
                      kRaises<Format>};

  // A few warps route, the first of them makes the list, and weights are on their way; others stage
  // tokens meanwhile. Finishers route if they are enough: consumers have everything at hand when
  // the list is there.
  constexpr std::uint32_t kProducer = kConsumerThreads / 32, kFinisher = kProducer + 1;  // warps
  const std::uint32_t warp = warp_uniform(threadIdx.x / 32);
  const std::uint32_t count = routers_of(p, ring_bytes / 4);
  const bool is_apart = count <= kFinishers / 32, is_finisher = warp >= kFinisher;
  const Routers routers{count, is_apart ? warp - kFinisher : warp};
  constexpr std::uint32_t kTold = 64;  // threads that meet at the list
  LeftRow left;
  if (routers.me < count) {
    static_assert(kMostExperts * 2 <= 2 * kConsumers * kSumStride * kDecodeColumns * 4);
    auto* next = reinterpret_cast<std::uint16_t*>(memory.sums);  // until there are any
    left = find_experts(p, given.route, tables, reinterpret_cast<float*>(ring), next, routers);
    fence_proxy_async();  // bulk copies will write where routing did
    named_barrier_sync(kRoutersMeet, count * 32);
    if (routers.me == 0) {
      list_slots(p, tables, next);
      named_barrier_arrive(kListIsThere, kTold);
    }
  }
  if (warp == kProducer) {
    const Phase first(p.layer.w13), second(p.layer.w2);
    named_barrier_sync(kListIsThere, kTold);
    if (threadIdx.x % 32 == 0 && tables.entries != 0) produce<Format>(p, memory, first, second);
    return;
  }
  Phase first(p.layer.w13);
  if (!is_apart || !is_finisher) stage_inputs(p, memory, is_apart ? kConsumerThreads : kStagers);
  const bool rounds = rounds_inputs(p);
  const float global = rounds ? input_scale(p.layer, 0) : 1.0f;
  named_barrier_sync(kStagersMeet, kStagers);
  const std::uint32_t entries = warp_uniform(tables.entries);
  first.count(entries);
  if (rounds) {
    // Weights are on their way, and nobody waits for the list any more. A token alone is no choice.
    round_inputs(p, memory, p.call.tokens == 1 ? 1 : tokens_of_share(p, tables, first), global);
    named_barrier_sync(kStagersMeet, kStagers);
  }
  if (entries == 0) {
    clear_output(p);
  } else {
    left.finish(p.route);
    Output output(p, memory, entries, is_finisher ? warp - kFinisher : warp + kFinishers / 32);
    if (is_finisher) {
      named_barrier_sync(kWeightsAreThere, kFinishers + (is_apart ? 0 : count * 32));
      Finisher finisher(p, memory);
      finisher.prepare_slots();
      output.locate();
      finisher.run(first, entries);
    } else {
      if (!is_apart && routers.me < count)
        named_barrier_arrive(kWeightsAreThere, kFinishers + count * 32);
      consume<Format>(p, memory, first, entries);
    }
    output.add_all();
  }
  if (threadIdx.x == kFinisher * 32) count_launch(p, memory.launch);
}

}  // namespace fp4moe::kernels::cuda::sm90::decode
