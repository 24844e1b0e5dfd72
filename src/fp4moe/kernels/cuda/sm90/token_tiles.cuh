// From the number of assignments of each expert to rows and token tiles.
//
// An expert's rows are split into as few tiles as fit. Sizes of its tiles differ by at most one row
// group of 8.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/routing_tables.hpp"

namespace fp4moe::kernels::cuda::sm90 {

// Row groups and token tiles: of one expert, or a sum over experts.
struct GroupsAndTiles {
  std::uint32_t groups = 0, tiles = 0;

  __device__ static GroupsAndTiles of(std::uint32_t assignments, std::uint32_t tile_tokens) {
    return {(assignments + kRowGroup - 1) / kRowGroup,
            (assignments + tile_tokens - 1) / tile_tokens};
  }
  __device__ GroupsAndTiles operator+(const GroupsAndTiles& other) const {
    return {groups + other.groups, tiles + other.tiles};
  }
};
static_assert(sizeof(GroupsAndTiles) == ExpertSharedStorage::kPartialBytes);
__device__ inline GroupsAndTiles warp_inclusive_scan(GroupsAndTiles sum) {
  for (std::uint32_t step = 1; step < 32; step *= 2) {
    const GroupsAndTiles before{__shfl_up_sync(kFullWarp, sum.groups, step),
                                __shfl_up_sync(kFullWarp, sum.tiles, step)};
    if (threadIdx.x % 32 >= step) sum = sum + before;
  }
  return sum;
}

// In shared memory, see ExpertSharedStorage.
struct ExpertTables {
  std::uint32_t* counts;
  std::uint32_t* first_group;
  std::uint32_t* first_tile;

  __device__ static ExpertTables at(std::uint32_t* begin, std::uint32_t experts) {
    using Storage = ExpertSharedStorage;
    return {begin, begin + Storage::first_group(experts), begin + Storage::first_tile(experts)};
  }
};

// Prefix sums over experts. All threads of the block call; each has the `count` of expert
// first + threadIdx.x. With first > 0 the entries at `first` are known already. `partial`: one entry
// per warp.
__device__ inline void scan_experts(const ExpertTables& to, GroupsAndTiles* partial,
                                    std::uint32_t experts, std::uint32_t tile_tokens,
                                    std::uint32_t count, std::uint32_t first = 0) {
  const std::uint32_t expert = first + threadIdx.x;
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const GroupsAndTiles own = GroupsAndTiles::of(count, tile_tokens), sum = warp_inclusive_scan(own);
  if (lane == 31) partial[warp] = sum;
  __syncthreads();
  // Every warp adds up the warps before it.
  const GroupsAndTiles part = lane < warp ? partial[lane] : GroupsAndTiles{};
  const GroupsAndTiles before{__reduce_add_sync(kFullWarp, part.groups),
                              __reduce_add_sync(kFullWarp, part.tiles)};
  GroupsAndTiles all = before + sum;
  if (first != 0) all = all + GroupsAndTiles{to.first_group[first], to.first_tile[first]};
  if (expert < experts) {
    to.counts[expert] = count;
    to.first_group[expert + 1] = all.groups;
    to.first_tile[expert + 1] = all.tiles;
  }
  if (expert == 0) to.first_group[0] = to.first_tile[0] = 0;
  __syncthreads();
}

// The expert with firsts[expert] <= index < firsts[expert + 1], by binary search.
__device__ inline std::uint32_t find_expert(const std::uint32_t* firsts, std::uint32_t experts,
                                            std::uint32_t index) {
  std::uint32_t low = 0, high = experts;  // firsts[low] <= index < firsts[high]
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    if (firsts[middle] <= index)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// The expert of a tile. All lanes of a warp call with the same tile.
__device__ inline std::uint32_t expert_of_tile(const ExpertTables& tables, std::uint32_t experts,
                                               std::uint32_t tile) {
  // Usually every expert has one tile.
  if (tile < experts && tables.first_tile[tile] == tile && tables.first_tile[tile + 1] > tile)
    return tile;
  std::uint32_t before = 0;
  for (std::uint32_t first = 0; first < experts; first += 32) {
    const std::uint32_t expert = first + threadIdx.x % 32;
    const bool is_before = expert < experts && tables.first_tile[expert + 1] <= tile;
    before += __popc(__ballot_sync(kFullWarp, is_before));
  }
  return before;
}

// How an expert's row groups are split into its tiles: the first `larger` tiles have one group more.
struct TileSplit {
  std::uint32_t each, larger;

  __device__ TileSplit(const ExpertTables& tables, std::uint32_t expert) {
    const std::uint32_t groups = tables.first_group[expert + 1] - tables.first_group[expert];
    const std::uint32_t tiles = tables.first_tile[expert + 1] - tables.first_tile[expert];
    each = tiles == 1 ? groups : groups / tiles;
    larger = groups - each * tiles;
  }
  // The tile of the expert that holds its row group `group`.
  __device__ std::uint32_t tile(std::uint32_t group) const {
    if (group < each) return 0;
    const std::uint32_t in_larger = larger * (each + 1);
    return group < in_larger ? group / (each + 1) : larger + (group - in_larger) / each;
  }
};
// Tile `index` of all tiles, which belongs to `expert`.
__device__ inline TokenTile make_tile(const ExpertTables& tables, std::uint32_t expert,
                                      std::uint32_t index) {
  const auto [each, larger] = TileSplit(tables, expert);
  const std::uint32_t own = index - tables.first_tile[expert];
  const std::uint32_t first = own * each + min(own, larger);
  TokenTile result;
  result.expert = static_cast<std::int32_t>(expert);
  result.first_row = (tables.first_group[expert] + first) * kRowGroup;
  result.rows = (each + (own < larger ? 1 : 0)) * kRowGroup;
  result.expert_tiles = tables.first_tile[expert + 1] - tables.first_tile[expert];
  return result;
}

}  // namespace fp4moe::kernels::cuda::sm90
