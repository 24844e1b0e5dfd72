// One matrix of every expert times the tokens of its tiles: 64 rows of weights by up to 128 tokens
// a warpgroup, four of them a block, one block a multiprocessor.
//
//   producer   takes pieces of work (a tile, four groups of 64 rows), streams records and tokens
//              into a ring of stages by bulk copies
//   consumers  turn FP4 into BF16 in registers while the tensor cores work on what was turned
//              before, and finish their 64 x tokens sums themselves
//
// Weights are the A operand from registers, tokens the B operand from shared memory: however few
// tokens there are, nothing is padded but their number to a multiple of 8.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/params.hpp"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/shapes.hpp"
#include "fp4moe/kernels/cuda/sm90/wgmma.cuh"

namespace fp4moe::kernels::cuda::sm90::product {

inline constexpr std::uint32_t kMostStages = 8, kQueue = 2;
inline constexpr std::uint32_t kConsumerWarps = kConsumers * 4;

// In front of the ring.
struct Shared {
  std::uint64_t full[kMostStages], empty[kMostStages];
  std::uint64_t queue_full[kQueue], queue_empty[kQueue];
  std::int32_t queue[kQueue];  // pieces of work; -1: no more
};
static_assert(sizeof(Shared) <= kTables);

// Where in a ring of `size` places, and how often it went round.
struct Place {
  std::uint32_t at = 0, parity = 0;
  __device__ void advance(std::uint32_t size) {
    if (++at < size) return;
    at = 0;
    parity ^= 1;
  }
};

struct Work {
  Tile tile;
  std::uint32_t first_group;
};
// Tiles of one expert lie next to each other, so that its weights are in the cache for all of them.
__device__ inline Work work_of(const ProductParams& p, std::uint32_t number) {
  const std::uint32_t quads = (p.matrix.groups + kConsumers - 1) / kConsumers;
  const std::uint32_t tile = number / quads;
  return {p.sorted.tiles[tile], (number - tile * quads) * kConsumers};
}

// One warp: lane g < 4 copies the records of group g, lane 4 the tokens.
template <class Format>
__device__ void produce(const ProductParams& p, Shared& shared, std::uint32_t ring) {
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t quads = (p.matrix.groups + kConsumers - 1) / kConsumers;
  const std::uint32_t pieces = *p.sorted.tile_count * quads;
  const std::uint32_t stage_bytes =
      kConsumers * kStageUnits * Format::kRecord + kStageUnits * p.tile_tokens * 128;
  const std::uint32_t to = ring + lane * kStageUnits * Format::kRecord;
  Place stage, queue;
  std::uint32_t number = blockIdx.x;
  for (;;) {
    const bool more = number < pieces;
    if (lane == 0) {
      barrier_wait(shared_address(&shared.queue_empty[queue.at]), queue.parity ^ 1);
      shared.queue[queue.at] = more ? static_cast<std::int32_t>(number) : -1;
      barrier_arrive(shared_address(&shared.queue_full[queue.at]));
    }
    queue.advance(kQueue);
    if (!more) return;
    const Work work = work_of(p, number);
    if (lane == 0) number = atomicAdd(p.work, 1u);
    const std::uint32_t groups = min(kConsumers, p.matrix.groups - work.first_group);
    const std::uint8_t* from = p.tiles + std::uint64_t{work.tile.first_row} * p.matrix.units * 128;
    std::uint32_t unit_bytes = work.tile.rows * 128;
    const std::uint32_t all_bytes = groups * Format::kRecord + unit_bytes;
    if (lane < kConsumers) {
      from = p.matrix.records + std::uint64_t(work.tile.expert) * p.matrix.expert_bytes +
             std::uint64_t{work.first_group + lane} * (p.matrix.units * Format::kRecord);
      unit_bytes = lane < groups ? Format::kRecord : 0;
    } else if (lane > kConsumers) {
      unit_bytes = 0;
    }
    for (std::uint32_t left = p.matrix.units; left > 0;) {
      const std::uint32_t units = min(kStageUnits, left);
      const std::uint32_t barrier = shared_address(&shared.full[stage.at]);
      barrier_wait(shared_address(&shared.empty[stage.at]), stage.parity ^ 1);
      if (lane == 0) barrier_expect(barrier, units * all_bytes);
      __syncwarp();
      if (unit_bytes != 0)
        bulk_copy(to + stage.at * stage_bytes, from, units * unit_bytes, barrier);
      from += kStageUnits * unit_bytes;
      left -= units;
      stage.advance(p.stages);
    }
    number = gridDim.x + __shfl_sync(~0u, number, 0);
  }
}

struct Consumer {
  std::uint32_t group, warp, lane;  // warpgroup of the block, warp of the warpgroup, lane
  Place stage;
};

// The first half of a unit, then the second: weights of one are turned while the tensor cores work
// on those of the other.
template <int columns, int room>
__device__ inline void multiply_half(float (&sums)[room], const Fragment& first,
                                     const Fragment& second, std::uint64_t tokens) {
  wgmma_fence();
  wgmma<columns>(sums, first, tokens);
  wgmma<columns>(sums, second, tokens + 2);
  wgmma_commit();
}

// For each number of tokens a loop: few tokens are a matter of reading weights fast, and every
// instruction counts.
template <class Format, int columns, int room>
__device__ inline void multiply_few(const ProductParams& p, Shared& shared, std::uint32_t ring,
                                    std::uint32_t tile_bytes, Consumer& me, float (&sums)[room]) {
  constexpr std::uint32_t kWeights = kConsumers * kStageUnits * Format::kRecord;
  const std::uint32_t stage_bytes = kWeights + kStageUnits * p.tile_tokens * 128;
  const std::uint32_t mine = ring + me.group * kStageUnits * Format::kRecord;
  Fragment f0, f1, f2, f3;
  std::uint32_t used = 0;
  const auto unit = [&](std::uint32_t record, std::uint64_t tokens, bool frees) {
    const auto block = Block<Format>::load(record, me.warp, me.lane);
    f0 = block.template at<0>();
    f1 = block.template at<1>();
    multiply_half<columns>(sums, f0, f1, tokens);
    wgmma_wait<1>();
    keep(f2);
    keep(f3);
    // Nobody reads the stage before this one any more.
    if (frees && me.lane == 0) barrier_arrive(used);
    f2 = block.template at<2>();
    f3 = block.template at<3>();
    multiply_half<columns>(sums, f2, f3, tokens + 4);
    wgmma_wait<1>();
    keep(f0);
    keep(f1);
  };
  for (std::uint32_t left = p.matrix.units; left > 0;) {
    barrier_wait(shared_address(&shared.full[me.stage.at]), me.stage.parity);
    const std::uint32_t offset = me.stage.at * stage_bytes;
    const std::uint64_t tokens = describe_tokens(ring + offset + kWeights);
    unit(mine + offset, tokens, left != p.matrix.units);
    if (left > 1) unit(mine + offset + Format::kRecord, tokens + tile_bytes / 16, false);
    left -= min(kStageUnits, left);
    used = shared_address(&shared.empty[me.stage.at]);
    me.stage.advance(p.stages);
  }
  wgmma_wait<0>();
  keep(f2);
  keep(f3);
  if (me.lane == 0) barrier_arrive(used);
}

// One loop for all numbers of tokens, which share its registers: loops of their own would each be
// given other ones, and there are not that many.
template <int room>
__device__ inline void multiply_some(float (&sums)[room], const Fragment& first,
                                     const Fragment& second, std::uint64_t tokens,
                                     std::uint32_t width) {
  if (width <= 4) {
    if (width <= 2) {
      if (width <= 1)
        multiply_half<16>(sums, first, second, tokens);
      else
        multiply_half<32>(sums, first, second, tokens);
    } else if (width == 3) {
      multiply_half<48>(sums, first, second, tokens);
    } else {
      multiply_half<64>(sums, first, second, tokens);
    }
  } else if (width <= 6) {
    if (width == 5)
      multiply_half<80>(sums, first, second, tokens);
    else
      multiply_half<96>(sums, first, second, tokens);
  } else if (width == 7) {
    multiply_half<112>(sums, first, second, tokens);
  } else {
    multiply_half<128>(sums, first, second, tokens);
  }
}

template <class Format, int room>
__device__ inline void multiply_many(const ProductParams& p, Shared& shared, std::uint32_t ring,
                                     std::uint32_t tile_bytes, Consumer& me,
                                     float (&sums)[room]) {
  constexpr std::uint32_t kWeights = kConsumers * kStageUnits * Format::kRecord;
  const std::uint32_t stage_bytes = kWeights + kStageUnits * p.tile_tokens * 128;
  const std::uint32_t mine = ring + me.group * kStageUnits * Format::kRecord;
  const std::uint32_t width = (tile_bytes / 1024 + 1) / 2;
  Fragment f0, f1, f2, f3;
  std::uint32_t used = 0;
  for (std::uint32_t unit = 0; unit < p.matrix.units; ++unit) {
    const bool second = unit % kStageUnits != 0;
    if (!second) barrier_wait(shared_address(&shared.full[me.stage.at]), me.stage.parity);
    const std::uint32_t offset = me.stage.at * stage_bytes;
    const std::uint64_t tokens =
        describe_tokens(ring + offset + kWeights + (second ? tile_bytes : 0));
    const auto block = Block<Format>::load(mine + offset + (second ? Format::kRecord : 0), me.warp,
                                           me.lane);
    f0 = block.template at<0>();
    f1 = block.template at<1>();
    multiply_some(sums, f0, f1, tokens, width);
    wgmma_wait<1>();
    keep(f2);
    keep(f3);
    if (!second && unit != 0 && me.lane == 0) barrier_arrive(used);
    f2 = block.template at<2>();
    f3 = block.template at<3>();
    multiply_some(sums, f2, f3, tokens + 4, width);
    wgmma_wait<1>();
    keep(f0);
    keep(f1);
    if (second || unit + 1 == p.matrix.units) {
      used = shared_address(&shared.empty[me.stage.at]);
      me.stage.advance(p.stages);
    }
  }
  wgmma_wait<0>();
  keep(f2);
  keep(f3);
  if (me.lane == 0) barrier_arrive(used);
}

__device__ inline float swiglu(float gate, float up, const ProductParams& p) {
  const float low = fminf(gate, p.limit);
  const float held = fmaxf(fminf(up, p.limit), -p.limit);
  return __fdividef(low, 1.0f + __expf(-p.alpha * low)) * (held + p.beta);
}

// A lane has rows g and g + 8 of the warp's 16 and tokens 2j and 2j + 1 of each eight.
template <int room>
__device__ inline void store_hidden(const ProductParams& p, const Work& work, const Consumer& me,
                                    const float (&sums)[room]) {
  const std::uint32_t group = work.first_group + me.group;
  const std::uint32_t row = group * 64 + me.warp * 16 + me.lane / 4;
  const float* factor = p.matrix.factor + 2 * work.tile.expert;
  const float gate_factor = factor[0] * p.input_factor, up_factor = factor[1] * p.input_factor;
  float gate_bias = 0, up_bias = 0;
  if (p.matrix.bias != nullptr) {
    const float* bias = p.matrix.bias + std::uint64_t(work.tile.expert) * p.matrix.groups * 64;
    gate_bias = bias[row];
    up_bias = bias[row + 8];
  }
  const std::uint32_t token = me.lane / 4;  // of each eight, once transposed
  const std::uint32_t chunk = (group % 2 * 4 + me.warp) ^ token;
  auto* to = static_cast<std::uint8_t*>(p.out) +
             std::uint64_t{work.tile.first_row} * p.out_units * 128 +
             std::uint64_t{group / 2} * work.tile.rows * 128 + token * 128 + chunk * 16 +
             me.lane % 4 * 4;
  const bool is_alone = group % 2 == 0 && group + 1 == p.matrix.groups;
  const int blocks = static_cast<int>(work.tile.rows / 8);
#pragma unroll
  for (int b = 0; b < room / 4; ++b) {
    const float first = swiglu(sums[4 * b] * gate_factor + gate_bias,
                               sums[4 * b + 2] * up_factor + up_bias, p);
    const float second = swiglu(sums[4 * b + 1] * gate_factor + gate_bias,
                                sums[4 * b + 3] * up_factor + up_bias, p);
    const std::uint32_t made = transposed(pack_bf16(first, second));
    if (b >= blocks) continue;
    *reinterpret_cast<std::uint32_t*>(to + b * 1024) = made;
    // The other half of the unit has no rows: it is to be zero.
    if (is_alone)
      *reinterpret_cast<std::uint32_t*>(to + b * 1024 - chunk * 16 + (chunk ^ 4) * 16) = 0;
  }
}

template <int room>
__device__ inline void store_raw(const ProductParams& p, const Work& work, const Consumer& me,
                                 const float (&sums)[room]) {
  const std::uint64_t stride = std::uint64_t{p.matrix.groups} * 64;
  const std::uint32_t row = (work.first_group + me.group) * 64 + me.warp * 16 + me.lane / 4;
  float* to = static_cast<float*>(p.out) + (work.tile.first_row + me.lane % 4 * 2) * stride + row;
  const int blocks = static_cast<int>(work.tile.rows / 8);
#pragma unroll
  for (int b = 0; b < room / 4; ++b) {
    if (b >= blocks) continue;
    float* at = to + 8 * b * stride;
    at[0] = sums[4 * b];
    at[stride] = sums[4 * b + 1];
    at[8] = sums[4 * b + 2];
    at[stride + 8] = sums[4 * b + 3];
  }
}

template <int room>
__device__ inline void store_rounded(const ProductParams& p, const Work& work, const Consumer& me,
                                     const float (&sums)[room]) {
  const std::uint64_t stride = std::uint64_t{p.matrix.groups} * 64;
  const std::uint32_t row = (work.first_group + me.group) * 64 + me.warp * 16;
  const float factor = p.matrix.factor[work.tile.expert] * p.input_factor;
  float bias = 0, bias8 = 0;
  if (p.matrix.bias != nullptr) {
    const float* from = p.matrix.bias + work.tile.expert * stride + row + me.lane / 4;
    bias = from[0];
    bias8 = from[8];
  }
  auto* to = static_cast<std::uint16_t*>(p.out) + (work.tile.first_row + me.lane / 4) * stride +
             row + me.lane % 4 * 2;
  const int blocks = static_cast<int>(work.tile.rows / 8);
#pragma unroll
  for (int b = 0; b < room / 4; ++b) {
    const std::uint32_t low = transposed(
        pack_bf16(sums[4 * b] * factor + bias, sums[4 * b + 1] * factor + bias));
    const std::uint32_t high = transposed(
        pack_bf16(sums[4 * b + 2] * factor + bias8, sums[4 * b + 3] * factor + bias8));
    if (b >= blocks) continue;
    auto* at = to + 8 * b * stride;
    *reinterpret_cast<std::uint32_t*>(at) = low;
    *reinterpret_cast<std::uint32_t*>(at + 8) = high;
  }
}

template <class Format, int most>
__device__ void consume_all(const ProductParams& p, Shared& shared, std::uint32_t ring) {
  Consumer me{threadIdx.x / 128, threadIdx.x / 32 % 4, threadIdx.x % 32, {}};
  Place queue;
  for (;;) {
    barrier_wait(shared_address(&shared.queue_full[queue.at]), queue.parity);
    std::int32_t number = shared.queue[queue.at];
    __syncwarp();
    if (me.lane == 0) barrier_arrive(shared_address(&shared.queue_empty[queue.at]));
    queue.advance(kQueue);
    if (number < 0) return;
    const std::uint32_t tile_bytes =
        work_of(p, static_cast<std::uint32_t>(number)).tile.rows * 128;
    float sums[most / 2];
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    if constexpr (most <= 32) {
      if (tile_bytes <= 8 * 128)
        multiply_few<Format, 8>(p, shared, ring, tile_bytes, me, sums);
      else if (tile_bytes <= 16 * 128)
        multiply_few<Format, 16>(p, shared, ring, tile_bytes, me, sums);
      else if (tile_bytes <= 24 * 128)
        multiply_few<Format, 24>(p, shared, ring, tile_bytes, me, sums);
      else
        multiply_few<Format, 32>(p, shared, ring, tile_bytes, me, sums);
    } else {
      multiply_many<Format>(p, shared, ring, tile_bytes, me, sums);
    }
    // Read again: registers are few in the loop.
    asm volatile("" : "+r"(number)::"memory");
    const Work work = work_of(p, static_cast<std::uint32_t>(number));
    if (work.first_group + me.group >= p.matrix.groups) continue;
    if (p.epilogue == Epilogue::hidden)
      store_hidden(p, work, me, sums);
    else if (p.epilogue == Epilogue::raw)
      store_raw(p, work, me, sums);
    else
      store_rounded(p, work, me, sums);
  }
}

// Tiles of at most `most` tokens: 32 or 128.
template <class Format, int most>
__device__ void run(const ProductParams& p) {
  extern __shared__ std::uint8_t memory[];
  // Swizzled tokens want multiples of 1024.
  const std::uint32_t begin = (shared_address(memory) + 1023) & ~1023u;
  auto& shared = *reinterpret_cast<Shared*>(memory + (begin - shared_address(memory)));
  const std::uint32_t ring = begin + kTables;
  let_next_begin();
  if (threadIdx.x == 0) {
    for (std::uint32_t i = 0; i < p.stages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init(shared_address(&shared.empty[i]), kConsumerWarps);
    }
    for (std::uint32_t i = 0; i < kQueue; ++i) {
      barrier_init(shared_address(&shared.queue_full[i]), 1);
      barrier_init(shared_address(&shared.queue_empty[i]), kConsumerWarps);
    }
    barrier_init_done();
  }
  __syncthreads();
  wait_for_previous();
  if (threadIdx.x >= kConsumers * 128) {
    give_registers<32>();
    if (threadIdx.x < kConsumers * 128 + 32) produce<Format>(p, shared, ring);
  } else {
    take_registers<112>();
    consume_all<Format, most>(p, shared, ring);
  }
}

}  // namespace fp4moe::kernels::cuda::sm90::product
