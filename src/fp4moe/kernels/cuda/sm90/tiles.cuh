// Rows of experts and the tiles that they are cut into, see params.hpp: what is counted of slots,
// and what follows from the counts.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/params.hpp"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"

namespace fp4moe::kernels::cuda::sm90 {

inline constexpr std::uint32_t kGroup = 8;  // rows

// An expert's rows in groups of 8, and its tiles.
struct Extent {
  std::uint32_t groups = 0, tiles = 0;

  __device__ static Extent of(std::uint32_t count, std::uint32_t tile_tokens) {
    return {(count + kGroup - 1) / kGroup, (count + tile_tokens - 1) / tile_tokens};
  }
  __device__ Extent operator+(const Extent& other) const {
    return {groups + other.groups, tiles + other.tiles};
  }
};
// Sums over the lanes of a warp up to and with this one.
__device__ inline Extent sum_to_here(Extent sum) {
  for (std::uint32_t step = 1; step < 32; step *= 2) {
    const Extent before{__shfl_up_sync(kFullWarp, sum.groups, step),
                        __shfl_up_sync(kFullWarp, sum.tiles, step)};
    if (threadIdx.x % 32 >= step) sum = sum + before;
  }
  return sum;
}

// In shared memory.
struct ExpertTables {
  std::uint32_t* totals;       // [experts]: slots
  std::uint32_t* first_group;  // [experts + 1], the last: of all
  std::uint32_t* first_tile;   // likewise

  __device__ static ExpertTables at(std::uint32_t* begin, std::uint32_t experts) {
    return {begin, begin + experts, begin + 2 * experts + 1};
  }
};

// All threads of a block, `count` slots of expert first + threadIdx.x each: what is in front of the
// expert, where that of the first one is known if it is not the first of all. `partial`: one for
// each warp.
__device__ inline void add_up_experts(const ExpertTables& to, Extent* partial,
                                      std::uint32_t experts, std::uint32_t tile_tokens,
                                      std::uint32_t count, std::uint32_t first = 0) {
  const std::uint32_t expert = first + threadIdx.x;
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Extent own = Extent::of(count, tile_tokens), sum = sum_to_here(own);
  if (lane == 31) partial[warp] = sum;
  __syncthreads();
  // Every warp adds up the warps before it.
  const Extent part = lane < warp ? partial[lane] : Extent{};
  const Extent before{__reduce_add_sync(kFullWarp, part.groups),
                      __reduce_add_sync(kFullWarp, part.tiles)};
  Extent all = before + sum;
  if (first != 0) all = all + Extent{to.first_group[first], to.first_tile[first]};
  if (expert < experts) {
    to.totals[expert] = count;
    to.first_group[expert + 1] = all.groups;
    to.first_tile[expert + 1] = all.tiles;
  }
  if (expert == 0) to.first_group[0] = to.first_tile[0] = 0;
  __syncthreads();
}

// The expert whose stretch of `firsts`, [experts + 1], holds `number`.
__device__ inline std::uint32_t expert_at(const std::uint32_t* firsts, std::uint32_t experts,
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

// Likewise, by all lanes of a warp, all of which ask for the same.
__device__ inline std::uint32_t expert_of_tile(const ExpertTables& of, std::uint32_t experts,
                                               std::uint32_t number) {
  if (number < experts && of.first_tile[number] == number && of.first_tile[number + 1] > number)
    return number;  // as a rule
  std::uint32_t before = 0;
  for (std::uint32_t first = 0; first < experts; first += 32) {
    const std::uint32_t expert = first + threadIdx.x % 32;
    const bool is_before = expert < experts && of.first_tile[expert + 1] <= number;
    before += __popc(__ballot_sync(kFullWarp, is_before));
  }
  return before;
}

// An expert's groups in its tiles: the first ones have one more where groups do not come out even.
struct Share {
  std::uint32_t each, larger;  // groups of a tile; tiles with one more

  __device__ Share(const ExpertTables& of, std::uint32_t expert) {
    const std::uint32_t groups = of.first_group[expert + 1] - of.first_group[expert];
    const std::uint32_t tiles = of.first_tile[expert + 1] - of.first_tile[expert];
    each = tiles == 1 ? groups : groups / tiles;
    larger = groups - each * tiles;
  }
  // The tile of the expert that has its group.
  __device__ std::uint32_t tile(std::uint32_t group) const {
    if (group < each) return 0;
    const std::uint32_t in_larger = larger * (each + 1);
    return group < in_larger ? group / (each + 1) : larger + (group - in_larger) / each;
  }
};
// Tile `number` of all, one of the expert's.
__device__ inline Tile tile_of(const ExpertTables& of, std::uint32_t expert, std::uint32_t number) {
  const auto [each, larger] = Share(of, expert);
  const std::uint32_t own = number - of.first_tile[expert];
  const std::uint32_t first = own * each + min(own, larger);
  Tile made;
  made.expert = static_cast<std::int32_t>(expert);
  made.first_row = (of.first_group[expert] + first) * kGroup;
  made.rows = (each + (own < larger ? 1 : 0)) * kGroup;
  made.tiles = of.first_tile[expert + 1] - of.first_tile[expert];
  return made;
}

}  // namespace fp4moe::kernels::cuda::sm90
