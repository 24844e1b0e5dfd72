// What every block of a decode launch works out for itself before it reads weights: who goes to
// which expert, and which part of the weights is its own.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/divisor.cuh"
#include "fp4moe/kernels/cuda/sm90/params.hpp"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/route.cuh"
#include "fp4moe/kernels/cuda/sm90/shapes.hpp"

namespace fp4moe::kernels::cuda::sm90::decode {

inline constexpr std::uint32_t kMostSlots = kDecodeTokens * kMostChoices;
inline constexpr std::uint32_t kMostStages = 8;

// At the beginning of shared memory. An entry is an expert and at most
// kDecodeColumns of its slots.
struct Tables {
  std::uint64_t full[kMostStages], empty[kMostStages];
  std::uint64_t sums_empty[2];
  std::uint32_t entries;
  union {
    std::int32_t ids[kMostSlots];  // until slots are listed
    float factors[kMostSlots];     // then: of the second product's sums
  };
  float weights[kMostSlots];                // the router's, then as they are applied
  std::int16_t expert_of_slot[kMostSlots];  // local; -1: elsewhere
  std::uint16_t rank[kMostSlots];           // among the slots of its expert
  std::uint16_t entry_of_slot[kMostSlots];
  std::uint16_t list[kMostSlots];       // slots by expert
  std::int16_t expert[kMostSlots];      // of each entry
  std::uint16_t first[kMostSlots + 1];  // in the list; the end of one is the next one's first
  std::uint16_t count[kMostExperts];    // slots of an expert, then its place in the list
  std::uint16_t entry_of_expert[kMostExperts];  // its first one
};
static_assert(sizeof(Tables) + 1024 <= kDecodeTables);

// How many warps route: one a token where shared memory suffices, and one to read what is given.
__device__ inline std::uint32_t routers_of(const DecodeParams& p, std::uint32_t scratch_floats) {
  if (p.route.columns == 0) return 1;
  return min(p.call.tokens, min(kConsumers * 4, scratch_floats / (2 * p.route.columns)));
}

// Warps that route, and which of them this one is; beyond `count`: none.
struct Routers {
  std::uint32_t count, me;
};

// A token whose weights are still to be computed.
struct LeftRow {
  HeldRow row;
  float* weights = nullptr;  // null: there is none

  __device__ void finish(const RouteParams& p) const {
    if (weights != nullptr) write_weights(p, weigh_row(p, row), weights);
  }
};

// Ids and weights of all tokens, given or routed, by warps of a block; but the weights of a token
// that a warp has alone may be left. `scratch` is free shared memory; `any` the parameters as they
// were given.
__device__ inline LeftRow find_experts(const DecodeParams& p, const RouteParams& any,
                                       Tables& tables, float* scratch, Routers routers) {
  const std::uint32_t slots = p.call.tokens * p.call.top_k, threads = routers.count * 32;
  const std::uint32_t thread = routers.me * 32 + threadIdx.x % 32;
  LeftRow left;
  for (std::uint32_t e = thread; e < p.layer.experts; e += threads) tables.count[e] = 0;
  if (p.route.columns == 0) {
    for (std::uint32_t s = thread; s < slots; s += threads) {
      tables.ids[s] = p.call.ids[s];
      tables.weights[s] = p.call.weights == nullptr ? 1.0f : p.call.weights[s];
    }
    return left;
  }
  const std::uint32_t t = routers.me;
  if (routers.count == p.call.tokens && may_be_held(p.route) && choose_row(p.route, t, left.row)) {
    write_ids(p.route, static_cast<std::int32_t>(left.row.mine.column),
              tables.ids + t * p.call.top_k);
    left.weights = tables.weights + t * p.call.top_k;
    return left;
  }
  for (std::uint32_t token = t; token < p.call.tokens; token += routers.count)
    route_any(any, token, scratch + t * 2 * p.route.columns, tables.ids + token * p.call.top_k,
              tables.weights + token * p.call.top_k);
  return left;
}

// At most 32 slots, one a lane: who is smaller is told bit by bit, from the highest on.
__device__ inline void list_few_slots(const DecodeParams& p, Tables& tables) {
  constexpr std::uint32_t kAll = 0xFFFFFFFFu;
  const std::uint32_t lane = threadIdx.x % 32, slots = p.call.tokens * p.call.top_k;
  const std::int32_t expert =
      lane < slots ? local_expert(p.call, p.layer.experts, tables.ids[lane]) : -1;
  const std::uint32_t listed = __ballot_sync(kAll, expert >= 0);
  std::uint32_t same = listed, smaller = 0;  // lanes
#pragma unroll
  for (std::uint32_t bit = kMostExperts / 2; bit > 0; bit /= 2) {
    const bool is_set = (expert & bit) != 0;
    const std::uint32_t set = __ballot_sync(kAll, is_set);
    smaller |= is_set ? same & ~set : 0;
    same &= is_set ? set : ~set;
  }
  const std::uint32_t rank = __popc(same & ((1u << lane) - 1)), before = __popc(smaller);
  // Entries begin at every eighth slot of an expert.
  const bool begins = expert >= 0 && rank % kDecodeColumns == 0;
  const std::uint32_t entries = __ballot_sync(kAll, begins);
  if (expert >= 0) {
    const std::uint32_t entry = __popc(entries & smaller) + rank / kDecodeColumns;
    tables.list[before + rank] = static_cast<std::uint16_t>(lane);
    tables.entry_of_slot[lane] = static_cast<std::uint16_t>(entry);
    if (begins) {
      tables.expert[entry] = static_cast<std::int16_t>(expert);
      tables.first[entry] = static_cast<std::uint16_t>(before + rank);
    }
  }
  if (lane < slots) {
    tables.expert_of_slot[lane] = static_cast<std::int16_t>(expert);
    tables.rank[lane] = static_cast<std::uint16_t>(rank);
  }
  if (lane == 0) {
    tables.entries = __popc(entries);
    tables.first[__popc(entries)] = static_cast<std::uint16_t>(__popc(listed));
  }
  __syncwarp();
}

// Slots by expert, ascending in both, by one warp.
__device__ inline void list_slots(const DecodeParams& p, Tables& tables) {
  constexpr std::uint32_t kAll = 0xFFFFFFFFu;
  const std::uint32_t lane = threadIdx.x % 32, slots = p.call.tokens * p.call.top_k;
  if (slots <= 32) return list_few_slots(p, tables);
  for (std::uint32_t begin = 0; begin < slots; begin += 32) {
    const std::uint32_t slot = begin + lane;
    const std::int32_t expert =
        slot < slots ? local_expert(p.call, p.layer.experts, tables.ids[slot]) : -1;
    const std::uint32_t same = __match_any_sync(kAll, expert);
    const std::uint32_t before = __popc(same & ((1u << lane) - 1));
    const std::uint32_t known = expert < 0 ? 0 : tables.count[expert];
    __syncwarp();
    if (expert >= 0 && before == 0)
      tables.count[expert] = static_cast<std::uint16_t>(known + __popc(same));
    __syncwarp();
    if (slot >= slots) continue;
    tables.expert_of_slot[slot] = static_cast<std::int16_t>(expert);
    tables.rank[slot] = static_cast<std::uint16_t>(known + before);
  }
  // A lane has neighbouring experts. Low half: slots, high half: entries; of its own, then of the
  // lanes before.
  const std::uint32_t each = (p.layer.experts + 31) / 32;
  const std::uint32_t begin = min(lane * each, p.layer.experts);
  const std::uint32_t end = min(begin + each, p.layer.experts);
  const auto extent = [](std::uint32_t count) {
    return count | (count + kDecodeColumns - 1) / kDecodeColumns << 16;
  };
  std::uint32_t own = 0;
  for (std::uint32_t expert = begin; expert < end; ++expert) own += extent(tables.count[expert]);
  std::uint32_t sum = own;
  for (std::uint32_t step = 1; step < 32; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(kAll, sum, step);
    if (lane >= step) sum += other;
  }
  const std::uint32_t all = __shfl_sync(kAll, sum, 31);
  const std::uint32_t entries = all >> 16, listed = all & 0xFFFF;
  std::uint32_t first = (sum - own) & 0xFFFF, entry = (sum - own) >> 16;
  for (std::uint32_t expert = begin; expert < end; ++expert) {
    const std::uint32_t count = tables.count[expert];
    if (count == 0) continue;
    tables.count[expert] = static_cast<std::uint16_t>(first);
    tables.entry_of_expert[expert] = static_cast<std::uint16_t>(entry);
    for (std::uint32_t done = 0; done < count; done += kDecodeColumns, ++entry) {
      tables.expert[entry] = static_cast<std::int16_t>(expert);
      tables.first[entry] = static_cast<std::uint16_t>(first + done);
    }
    first += count;
  }
  __syncwarp();
  for (std::uint32_t slot = lane; slot < slots; slot += 32) {
    const std::int32_t expert = tables.expert_of_slot[slot];
    if (expert < 0) continue;
    const std::uint32_t rank = tables.rank[slot];
    tables.list[tables.count[expert] + rank] = static_cast<std::uint16_t>(slot);
    tables.entry_of_slot[slot] =
        static_cast<std::uint16_t>(tables.entry_of_expert[expert] + rank / kDecodeColumns);
  }
  if (lane == 0) {
    tables.entries = entries;
    tables.first[entries] = static_cast<std::uint16_t>(listed);
  }
  __syncwarp();
}

// One product of all entries, its units in a row: entry, group of 64 rows, unit of 64 columns.
// Blocks have equal shares of the row, whatever it is cut through. Units times blocks fit 32 bits,
// see decode_shape.
struct Phase {
  std::uint32_t groups, units, total = 0;
  Divisor by_blocks, by_units, by_groups;

  // Long before entries are known, and then with them.
  __device__ explicit Phase(const Matrix& matrix)
      : groups(matrix.groups),
        units(matrix.units),
        by_blocks(gridDim.x),
        by_units(units),
        by_groups(groups) {}
  __device__ Phase(const Matrix& matrix, std::uint32_t entries) : Phase(matrix) { count(entries); }
  __device__ void count(std::uint32_t entries) { total = entries * groups * units; }

  __device__ std::uint32_t begin_of(std::uint32_t block) const {
    return by_blocks.of(total * block);
  }
  // There may be more blocks than units.
  __device__ bool is_empty(std::uint32_t block) const {
    return begin_of(block) == begin_of(block + 1);
  }
  // The block whose share holds a unit: the last one that begins at or before it.
  __device__ std::uint32_t block_of(std::uint32_t unit) const {
    return ((unit + 1) * gridDim.x - 1) / total;
  }
};

// The stretches of this block's share, each of one group of rows: units [first, first + count).
struct Stretch {
  std::uint32_t entry, group, first, count;
};
class Stretches {
 public:
  __device__ explicit Stretches(const Phase& phase)
      : phase_(phase), position_(phase.begin_of(blockIdx.x)), end_(phase.begin_of(blockIdx.x + 1)) {
    const std::uint32_t row = phase.by_units.of(position_);
    now_.first = position_ - row * phase.units;
    now_.entry = phase.by_groups.of(row);
    now_.group = row - now_.entry * phase.groups;
  }
  __device__ bool next(Stretch& to) {
    if (position_ == end_) return false;
    to = now_;
    to.count = min(phase_.units - now_.first, end_ - position_);
    position_ += to.count;
    now_.first = 0;
    if (++now_.group == phase_.groups) {
      now_.group = 0;
      ++now_.entry;
    }
    return true;
  }

 private:
  Phase phase_;
  std::uint32_t position_, end_;
  Stretch now_{};
};

}  // namespace fp4moe::kernels::cuda::sm90::decode
