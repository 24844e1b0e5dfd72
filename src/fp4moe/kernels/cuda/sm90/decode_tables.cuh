// What every block of a decode launch works out for itself before it reads weights: who goes to
// which expert, and which part of the weights is its own.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/divisor.cuh"
#include "fp4moe/kernels/cuda/sm90/params.hpp"
#include "fp4moe/kernels/cuda/sm90/pipeline.cuh"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/route.cuh"
#include "fp4moe/kernels/cuda/sm90/shapes.hpp"

namespace fp4moe::kernels::cuda::sm90::decode {

inline constexpr std::uint32_t kMostSlots = kDecodeTokens * kMostChoices;
inline constexpr std::uint32_t kMostStages = 8;

// At the beginning of shared memory. An entry is an expert and at most kDecodeColumns of its slots,
// each in a place of its own.
struct Tables {
  std::uint64_t full[kMostStages], empty[kMostStages];
  std::uint64_t sums_empty[2];
  std::uint32_t entries;
  union {
    std::int32_t ids[kMostSlots];  // until slots are listed
    float factors[kMostSlots];     // then: of the second product's sums
  };
  float weights[kMostSlots];                        // the router's, then as they are applied
  std::int16_t expert_of_slot[kMostSlots];          // local; -1: elsewhere
  std::uint16_t place_of_slot[kMostSlots];          // in the list
  std::uint16_t list[kMostSlots * kDecodeColumns];  // slots, an entry after the other
  std::int16_t expert[kMostSlots];                  // of each entry
  std::uint8_t rows[kMostSlots];                    // slots of each entry

  __device__ std::uint32_t slot(std::uint32_t entry, std::uint32_t i) const {
    return list[entry * kDecodeColumns + i];
  }
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
// were given; `next`: see list_slots.
__device__ inline LeftRow find_experts(const DecodeParams& p, const RouteParams& any,
                                       Tables& tables, float* scratch, std::uint16_t* next,
                                       Routers routers) {
  const std::uint32_t slots = p.call.tokens * p.call.top_k, threads = routers.count * 32;
  const std::uint32_t thread = routers.me * 32 + threadIdx.x % 32;
  LeftRow left;
  for (std::uint32_t e = thread; e < p.layer.experts; e += threads) next[e] = 0;
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

// Slots by expert, by one warp, a lane a slot: experts, and slots of each, in the order in which
// they come. next[expert]: its next place, where its last entry has one; experts that have not come
// yet have 0, which is a multiple of an entry's places as that of a full one is.
__device__ inline void list_slots(const DecodeParams& p, Tables& tables, std::uint16_t* next) {
  const std::uint32_t lane = threadIdx.x % 32, slots = p.call.tokens * p.call.top_k;
  std::uint32_t entries = 0;
  for (std::uint32_t slot = lane; slot - lane < slots; slot += 32) {
    const std::int32_t expert =
        slot < slots ? local_expert(p.call, p.layer.experts, tables.ids[slot]) : -1;
    const std::uint32_t same = __match_any_sync(kFullWarp, expert);
    const std::uint32_t before = __popc(same & ((1u << lane) - 1));
    const std::uint32_t known = slot < 32 || expert < 0 ? 0 : next[expert];
    const std::uint32_t used = known % kDecodeColumns, at = used + before;
    const std::uint32_t column = at % kDecodeColumns;
    const std::uint32_t begins = __ballot_sync(kFullWarp, expert >= 0 && column == 0);
    if (slot < slots) tables.expert_of_slot[slot] = static_cast<std::int16_t>(expert);
    if (expert >= 0) {
      // The entry goes on, or a lane of the expert begins it: the first one, as a rule.
      std::uint32_t entry = known / kDecodeColumns;
      if (used == 0 || at != column) {
        const std::uint32_t passed = at - column - used;
        const std::uint32_t who = passed == 0 ? __ffs(same) - 1 : __fns(same, 0, passed + 1);
        entry = entries + __popc(begins & ((1u << who) - 1));
      }
      const std::uint32_t place = entry * kDecodeColumns + column;
      tables.place_of_slot[slot] = static_cast<std::uint16_t>(place);
      tables.list[place] = static_cast<std::uint16_t>(slot);
      if (column == 0) tables.expert[entry] = static_cast<std::int16_t>(expert);
      const bool is_last = same >> lane == 1;
      if (is_last || column + 1 == kDecodeColumns)
        tables.rows[entry] = static_cast<std::uint8_t>(column + 1);
      if (is_last) next[expert] = static_cast<std::uint16_t>(place + 1);
    }
    entries += __popc(begins);
    __syncwarp();
  }
  if (lane == 0) tables.entries = entries;
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
  __device__ std::uint32_t entry_of(std::uint32_t unit) const {
    return by_groups.of(by_units.of(unit));
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

// Tokens of the entries of this block's share, a bit each.
__device__ inline std::uint32_t tokens_of_share(const DecodeParams& p, const Tables& tables,
                                                const Phase& phase) {
  static_assert(kDecodeTokens <= 32);
  const std::uint32_t begin = phase.begin_of(blockIdx.x), end = phase.begin_of(blockIdx.x + 1);
  if (begin == end) return 0;
  const std::uint32_t last = phase.entry_of(end - 1), i = threadIdx.x % kDecodeColumns;
  std::uint32_t tokens = 0;
#pragma unroll 1
  for (std::uint32_t entry = phase.entry_of(begin) + threadIdx.x % 32 / kDecodeColumns;
       entry <= last; entry += 32 / kDecodeColumns)
    if (i < tables.rows[entry]) tokens |= 1u << tables.slot(entry, i) / p.call.top_k;
  return __reduce_or_sync(kFullWarp, tokens);
}

}  // namespace fp4moe::kernels::cuda::sm90::decode
