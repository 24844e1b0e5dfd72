// Slots into the order of experts, by one block: a stable counting sort.
//
//   1  each warp counts its range of slots by expert; the count so far is a slot's rank in it
//   2  counts add up over the ranges before, experts' rows and tiles over the experts before
//   3  row = first of the expert + of the range + rank; rows pass through shared memory, so that
//      they are written in order
//   4  tiles: an expert's groups of 8 rows, dealt out evenly
#include "fp4moe/kernels/cuda/sm90/launches.hpp"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

inline constexpr std::uint32_t kAll = 0xFFFFFFFFu;
inline constexpr std::uint32_t kGroup = 8;  // rows
inline constexpr std::uint32_t kAhead = 4;  // loads of ids in flight

// An expert's rows in groups of 8, and its tiles.
struct Extent {
  std::uint32_t groups = 0, tiles = 0;
};

struct SortSpace {
  Extent* partial;             // [32]: of warps
  std::uint32_t* counts;       // [ranges][experts]: of slots, then of the ranges before
  std::uint32_t* totals;       // [experts]
  std::uint32_t* first_group;  // [experts + 1]
  std::uint32_t* first_tile;   // [experts + 1]
  std::int32_t* held;          // slots of a stretch of rows
  std::uint32_t held_rows;
  std::uint32_t slots;
};

__device__ SortSpace space_of(std::uint32_t* shared, std::uint32_t experts, std::uint32_t slots) {
  SortSpace made{};
  made.partial = reinterpret_cast<Extent*>(shared);
  made.counts = shared + kSortTables;
  made.totals = made.counts + sort_ranges(experts) * experts;
  made.first_group = made.totals + experts;
  made.first_tile = made.first_group + experts + 1;
  made.held = reinterpret_cast<std::int32_t*>(shared + sort_fixed_words(experts));
  made.held_rows = sort_held_rows(experts, slots);
  made.slots = slots;
  return made;
}

// Keeps the slot of a row of the stretch that begins at `first`.
__device__ void hold(const SortSpace& space, std::uint32_t first, std::int32_t row,
                     std::uint32_t slot) {
  const std::uint32_t place = static_cast<std::uint32_t>(row) - first;
  if (row >= 0 && place < space.held_rows) space.held[place] = static_cast<std::int32_t>(slot);
}

// The expert's position on this rank, or -1.
__device__ std::int32_t local_expert(const SortParams& p, std::int32_t id) {
  const Call& call = p.call;
  std::int32_t local = id - call.first_expert;
  if (call.expert_map != nullptr) {
    const bool is_known = id >= 0 && static_cast<std::uint32_t>(id) < call.map_size;
    local = is_known ? call.expert_map[id] : -1;
  }
  return id >= 0 && local >= 0 && static_cast<std::uint32_t>(local) < p.experts ? local : -1;
}

// Some steps of a range, 32 slots each: experts, and ranks among the range's slots of that expert.
struct Steps {
  std::int32_t experts[kAhead];
  std::uint32_t ranks[kAhead];
};

// A range of slots, in order. The last steps stay in registers; where there are more, ranks go to
// row_of_slot.
__device__ void count_range(const SortParams& p, const SortSpace& space, std::uint32_t steps,
                            Steps& last) {
  const std::uint32_t lane = threadIdx.x % 32, range = threadIdx.x / 32;
  std::uint32_t* counts = space.counts + range * p.experts;
  const std::uint32_t begin = range * steps * 32 + lane;
  for (std::uint32_t step = 0; step < steps; step += kAhead) {
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      const std::uint32_t slot = begin + (step + i) * 32;
      last.experts[i] = step + i < steps && slot < space.slots ? p.call.ids[slot] : -1;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) last.experts[i] = local_expert(p, last.experts[i]);
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      const std::uint32_t slot = begin + (step + i) * 32;
      const std::int32_t expert = last.experts[i];
      const std::uint32_t same = __match_any_sync(kAll, expert);
      const std::uint32_t first = __ffs(same) - 1;
      std::uint32_t before = 0;
      if (lane == first && expert >= 0) {
        before = counts[expert];
        counts[expert] = before + __popc(same);
      }
      before = __shfl_sync(kAll, before, static_cast<int>(first));
      last.ranks[i] = before + __popc(same & ((1u << lane) - 1));
      if (steps > kAhead && step + i < steps && slot < space.slots)
        p.to.row_of_slot[slot] = expert >= 0 ? static_cast<std::int32_t>(last.ranks[i]) : -1;
      __syncwarp();
    }
  }
}

// Counts of an expert become those of the ranges before; the total is returned.
__device__ std::uint32_t add_up_ranges(const SortParams& p, const SortSpace& space,
                                       std::uint32_t used) {
  constexpr std::uint32_t kParts = 8;
  std::uint32_t total = 0;
  if (threadIdx.x >= p.experts) return 0;
  std::uint32_t* counts = space.counts + threadIdx.x;
  for (std::uint32_t r = 0; r < used; r += kParts) {
    std::uint32_t parts[kParts];
#pragma unroll
    for (std::uint32_t i = 0; i < kParts; ++i) parts[i] = counts[(r + i) * p.experts];
#pragma unroll
    for (std::uint32_t i = 0; i < kParts; ++i) {
      counts[(r + i) * p.experts] = total;
      total += parts[i];
    }
  }
  return total;
}

// Exclusive sums over the block's threads, one expert each; the last entry is the total.
__device__ void add_up_experts(const SortParams& p, const SortSpace& space, std::uint32_t count) {
  const std::uint32_t expert = threadIdx.x, lane = expert % 32, warp = expert / 32;
  const std::uint32_t experts = p.experts;
  const Extent own{(count + kGroup - 1) / kGroup, (count + p.tile_tokens - 1) / p.tile_tokens};
  Extent sum = own;
  for (std::uint32_t step = 1; step < 32; step *= 2) {
    const std::uint32_t groups = __shfl_up_sync(kAll, sum.groups, step);
    const std::uint32_t tiles = __shfl_up_sync(kAll, sum.tiles, step);
    if (lane < step) continue;
    sum.groups += groups;
    sum.tiles += tiles;
  }
  if (lane == 31) space.partial[warp] = sum;
  __syncthreads();
  // Every warp adds up the warps before it.
  const Extent part = space.partial[lane];
  const std::uint32_t groups = __reduce_add_sync(kAll, lane < warp ? part.groups : 0);
  const std::uint32_t tiles = __reduce_add_sync(kAll, lane < warp ? part.tiles : 0);
  if (expert < experts) {
    space.totals[expert] = count;
    space.first_group[expert] = groups + sum.groups - own.groups;
    space.first_tile[expert] = tiles + sum.tiles - own.tiles;
  }
  if (expert + 1 == experts) {
    space.first_group[experts] = groups + sum.groups;
    space.first_tile[experts] = tiles + sum.tiles;
  }
  __syncthreads();
}

// The expert whose stretch of `firsts`, [experts + 1], holds `number`.
__device__ std::uint32_t expert_at(const std::uint32_t* firsts, std::uint32_t experts,
                                   std::uint32_t number) {
  std::uint32_t low = 0, high = experts;  // firsts[low] <= number < firsts[high]
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    if (firsts[middle] <= number)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// How an expert's groups become tiles: the first `larger` have one group more.
struct Cut {
  std::uint32_t groups = 0, larger = 0;  // of a tile at least; so many with one more

  __device__ Cut(const SortSpace& space, std::uint32_t expert) {
    const std::uint32_t all = space.first_group[expert + 1] - space.first_group[expert];
    const std::uint32_t tiles = space.first_tile[expert + 1] - space.first_tile[expert];
    groups = all / tiles;
    larger = all - groups * tiles;
  }
  __device__ std::uint32_t first_group(std::uint32_t tile) const {
    return tile * groups + min(tile, larger);
  }
  __device__ std::uint32_t tile_of(std::uint32_t group) const {
    const std::uint32_t split = larger * (groups + 1);
    return group < split ? group / (groups + 1) : larger + (group - split) / groups;
  }
};

__device__ void write_tiles(const SortParams& p, const SortSpace& space) {
  const std::uint32_t tiles = space.first_tile[p.experts];
  for (std::uint32_t i = threadIdx.x; i < tiles; i += kSortThreads) {
    const std::uint32_t expert = expert_at(space.first_tile, p.experts, i);
    const Cut cut(space, expert);
    const std::uint32_t number = i - space.first_tile[expert];
    const std::uint32_t first = cut.first_group(number), end = cut.first_group(number + 1);
    Tile tile;
    tile.expert = static_cast<std::int32_t>(expert);
    tile.first_row = (space.first_group[expert] + first) * kGroup;
    tile.rows = (end - first) * kGroup;
    tile.count = min(tile.rows, space.totals[expert] - first * kGroup);
    p.to.tiles[i] = tile;
  }
  if (threadIdx.x == 0) {
    p.to.tile_count[0] = tiles;
    p.to.work[0] = 0;
    p.to.work[1] = 0;
  }
}

// Groups [begin, end), whose slots lie in `held`.
__device__ void write_groups(const SortParams& p, const SortSpace& space, std::uint32_t begin,
                             std::uint32_t end) {
  for (std::uint32_t g = begin + threadIdx.x; g < end; g += kSortThreads) {
    const std::uint32_t expert = expert_at(space.first_group, p.experts, g);
    const std::uint32_t own = g - space.first_group[expert];
    const std::uint32_t left = space.totals[expert] - own * kGroup;
    const auto number = static_cast<std::int32_t>(expert);
    const auto tile = space.first_tile[expert] + Cut(space, expert).tile_of(own);
    p.to.tile_of_row[g] = static_cast<std::int32_t>(tile);
    const int4* held = reinterpret_cast<const int4*>(space.held + (g - begin) * kGroup);
    auto* slots = reinterpret_cast<int4*>(p.to.slot_of_row + std::uint64_t{g} * kGroup);
    auto* experts = reinterpret_cast<int4*>(p.to.expert_of_row + std::uint64_t{g} * kGroup);
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      const std::uint32_t at = half * 4;
      const int4 from = held[half];
      slots[half] = {at < left ? from.x : -1, at + 1 < left ? from.y : -1,
                     at + 2 < left ? from.z : -1, at + 3 < left ? from.w : -1};
      experts[half] = {at < left ? number : -1, at + 1 < left ? number : -1,
                       at + 2 < left ? number : -1, at + 3 < left ? number : -1};
    }
  }
}

__device__ void place_slot(const SortParams& p, const SortSpace& space, std::uint32_t range,
                           std::uint32_t slot, std::int32_t expert, std::uint32_t rank) {
  const std::uint32_t first =
      space.first_group[expert] * kGroup + space.counts[range * p.experts + expert];
  const auto row = static_cast<std::int32_t>(first + rank);
  p.to.row_of_slot[slot] = row;
  hold(space, 0, row, slot);
}

// Slots whose steps are still in registers.
__device__ void place_last(const SortParams& p, const SortSpace& space, std::uint32_t steps,
                           const Steps& last) {
  const std::uint32_t range = threadIdx.x / 32;
#pragma unroll
  for (std::uint32_t i = 0; i < kAhead; ++i) {
    const std::uint32_t slot = (range * steps + i) * 32 + threadIdx.x % 32;
    if (i >= steps || slot >= space.slots) continue;
    if (last.experts[i] < 0)
      p.to.row_of_slot[slot] = -1;
    else
      place_slot(p, space, range, slot, last.experts[i], last.ranks[i]);
  }
}

// Slots whose ranks are in row_of_slot. Warps that share a range take its steps by turns.
__device__ void place_slots(const SortParams& p, const SortSpace& space, std::uint32_t steps) {
  const std::uint32_t ranges = sort_ranges(p.experts), warp = threadIdx.x / 32;
  const std::uint32_t range = warp % ranges, turns = 32 / ranges;
  for (std::uint32_t step = warp / ranges; step < steps; step += turns * kAhead) {
    std::int32_t ranks[kAhead], ids[kAhead];
    const auto slot_at = [&](std::uint32_t i) {
      return (range * steps + step + i * turns) * 32 + threadIdx.x % 32;
    };
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      const bool is_there = step + i * turns < steps && slot_at(i) < space.slots;
      ranks[i] = is_there ? p.to.row_of_slot[slot_at(i)] : -1;
      ids[i] = is_there ? p.call.ids[slot_at(i)] : -1;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i)
      if (ranks[i] >= 0)
        place_slot(p, space, range, slot_at(i), local_expert(p, ids[i]),
                   static_cast<std::uint32_t>(ranks[i]));
  }
}

// Rows of batches: position i of an expert is its row i.
__device__ void place_batches(const SortParams& p, const SortSpace& space) {
  for (std::uint32_t slot = threadIdx.x; slot < space.slots; slot += kSortThreads) {
    const std::uint32_t expert = slot / p.call.capacity, i = slot - expert * p.call.capacity;
    const auto row = static_cast<std::int32_t>(space.first_group[expert] * kGroup + i);
    p.to.row_of_slot[slot] = i < space.totals[expert] ? row : -1;
    if (i < space.totals[expert]) hold(space, 0, row, slot);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kSortThreads, 1)
    fp4moe_sm90_sort(const __grid_constant__ SortParams p) {
  extern __shared__ __align__(16) std::uint32_t shared[];
  const bool is_batched = p.call.counts != nullptr;
  const std::uint32_t slots =
      is_batched ? p.experts * p.call.capacity : p.call.tokens * p.call.top_k;
  const SortSpace space = space_of(shared, p.experts, slots);
  const std::uint32_t ranges = sort_ranges(p.experts), expert = threadIdx.x;
  const std::uint32_t steps = ((slots + 31) / 32 + ranges - 1) / ranges;
  let_next_begin();
  for (std::uint32_t i = threadIdx.x; i < ranges * p.experts; i += kSortThreads)
    space.counts[i] = 0;
  __syncthreads();
  wait_for_previous();

  std::uint32_t count = 0;
  Steps last;
  if (is_batched) {
    if (expert < p.experts)
      count = static_cast<std::uint32_t>(
          min(max(p.call.counts[expert], 0), static_cast<std::int32_t>(p.call.capacity)));
  } else {
    const std::uint32_t used = steps == 0 ? 0 : ((slots + 31) / 32 + steps - 1) / steps;
    if (threadIdx.x / 32 < used) count_range(p, space, steps, last);
    __syncthreads();
    count = add_up_ranges(p, space, used);
  }
  add_up_experts(p, space, count);
  if (is_batched)
    place_batches(p, space);
  else if (steps > kAhead)
    place_slots(p, space, steps);
  else if (threadIdx.x / 32 < ranges)
    place_last(p, space, steps, last);
  write_tiles(p, space);

  const std::uint32_t groups = space.first_group[p.experts];
  const std::uint32_t at_once = space.held_rows / kGroup;
  for (std::uint32_t begin = 0; begin < groups; begin += at_once) {
    if (begin > 0) {
      __syncthreads();  // the stretch before was written
      for (std::uint32_t slot = threadIdx.x; slot < slots; slot += kSortThreads)
        hold(space, begin * kGroup, p.to.row_of_slot[slot], slot);
    }
    __syncthreads();
    write_groups(p, space, begin, min(begin + at_once, groups));
  }
}

}  // namespace fp4moe::kernels::cuda::sm90
