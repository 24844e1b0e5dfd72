// Few slots in the order of experts, sorted by every block of a product for itself: sooner done
// than what one block does for all. The ring of stages is the space for it, as nothing is in there
// yet.
//
//   1  ids come into shared memory
//   2  a slot's rank in its warp's stretch is the count of its expert so far
//   3  counts add up over the warps before, rows and tiles over the experts before
//   4  tiles, and which token a row is, go to memory of the block's own
//
// What combine looks up is written once, a share of the slots by each block.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/local_expert.cuh"
#include "fp4moe/kernels/cuda/sm90/params.hpp"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/shapes.hpp"
#include "fp4moe/kernels/cuda/sm90/tiles.cuh"

namespace fp4moe::kernels::cuda::sm90::product {

// What a product goes by.
struct Tiles {
  const Tile* tiles;
  std::uint32_t count;
  const std::uint16_t* tokens;  // of rows, where they are still among all
};

class OwnSort {
 public:
  // `begin`: of the ring.
  __device__ OwnSort(const ProductParams& p, std::uint8_t* begin)
      : p_(p),
        call_(p.own.call),
        experts_(p.own.experts),
        slots_(call_.tokens * call_.top_k),
        stretch_((slots_ + kThreads - 1) / kThreads * 32),
        tokens_(reinterpret_cast<std::uint16_t*>(begin)),
        held_(reinterpret_cast<std::int32_t*>(begin + 2 * own_rows(slots_, experts_))),
        counts_(reinterpret_cast<std::uint32_t*>(held_ + slots_)),
        tables_(ExpertTables::at(counts_ + kWarps * experts_, experts_)) {}

  // All threads of the block.
  __device__ Tiles run() {
    for (std::uint32_t i = threadIdx.x; i < kWarps * experts_; i += kThreads) counts_[i] = 0;
    // Rows of padding are the first token's.
    auto* words = reinterpret_cast<std::uint32_t*>(tokens_);
    for (std::uint32_t i = threadIdx.x; i < own_rows(slots_, experts_) / 2; i += kThreads)
      words[i] = 0;
    wait_for_previous();
    let_next_begin();
    for (std::uint32_t i = threadIdx.x; i < slots_; i += kThreads)
      copy_later4(shared_address(held_ + i), call_.ids + i);
    wait_for_copies();
    __syncthreads();
    rank_slots();
    __syncthreads();
    add_up_warps();
    __syncthreads();
    if (threadIdx.x < 32) add_up_experts();
    __syncthreads();
    return write();
  }

 private:
  static constexpr std::uint32_t kThreads = kProductThreads, kWarps = kThreads / 32;

  __device__ void rank_slots() {
    const std::uint32_t warp = threadIdx.x / 32, end = min((warp + 1) * stretch_, slots_);
    for (std::uint32_t at = warp * stretch_; at < end; at += 32) {
      const std::uint32_t slot = at + threadIdx.x % 32;
      const std::int32_t expert = slot < end ? local_expert(call_, experts_, held_[slot]) : -1;
      const std::uint32_t rank = rank_in_warp(counts_ + warp * experts_, expert);
      if (slot < end)
        held_[slot] = expert < 0 ? -1 : ranked(static_cast<std::uint32_t>(expert), rank);
    }
  }
  __device__ void add_up_warps() {
    for (std::uint32_t e = threadIdx.x; e < experts_; e += kThreads) {
      std::uint32_t sum = 0;
#pragma unroll 5
      for (std::uint32_t w = 0; w < kWarps; ++w) {
        const std::uint32_t count = counts_[w * experts_ + e];
        counts_[w * experts_ + e] = sum;
        sum += count;
      }
      tables_.totals[e] = sum;
    }
  }
  // One warp, some neighbouring experts a lane.
  __device__ void add_up_experts() {
    const std::uint32_t each = (experts_ + 31) / 32, lane = threadIdx.x;
    const std::uint32_t begin = min(lane * each, experts_), end = min(begin + each, experts_);
    const auto extent = [&](std::uint32_t e) {
      return Extent::of(tables_.totals[e], p_.own.tile_tokens);
    };
    Extent sum{};
    for (std::uint32_t e = begin; e < end; ++e) sum = sum + extent(e);
    const Extent all = sum_to_here(sum);
    Extent before{all.groups - sum.groups, all.tiles - sum.tiles};
    for (std::uint32_t e = begin; e < end; ++e) {
      tables_.first_group[e] = before.groups;
      tables_.first_tile[e] = before.tiles;
      before = before + extent(e);
    }
    if (lane == 31) {
      tables_.first_group[experts_] = all.groups;
      tables_.first_tile[experts_] = all.tiles;
    }
  }
  __device__ Tiles write() {
    const std::uint32_t count = tables_.first_tile[experts_];
    auto* tiles = reinterpret_cast<Tile*>(p_.own.tables + blockIdx.x * p_.own.stride);
    auto* tokens = reinterpret_cast<uint4*>(tiles + own_tiles(slots_, experts_));
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads)
      tiles[i] = tile_of(tables_, experts_, i);
    for (std::uint32_t slot = threadIdx.x; slot < slots_; slot += kThreads) {
      const std::int32_t both = held_[slot];
      std::int32_t row = -1;
      if (both >= 0) {
        const std::uint32_t expert = expert_of(both), warp = slot / stretch_;
        row = static_cast<std::int32_t>(tables_.first_group[expert] * kGroup +
                                        counts_[warp * experts_ + expert] + rank_of(both));
        tokens_[row] = static_cast<std::uint16_t>(slot / call_.top_k);
      }
      if (slot % gridDim.x != blockIdx.x) continue;
      p_.sorted.row_of_slot[slot] = row;
      if (row >= 0) p_.sorted.expert_of_row[row] = static_cast<std::int32_t>(expert_of(both));
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) p_.sorted.tile_count[0] = count;
    __syncthreads();
    const std::uint32_t groups = tables_.first_group[experts_];
    for (std::uint32_t i = threadIdx.x; i < groups; i += kThreads)
      tokens[i] = reinterpret_cast<const uint4*>(tokens_)[i];
    fence_for_tensor_cores();  // what is copied into the ring comes behind all this
    __syncthreads();
    return {tiles, count, reinterpret_cast<const std::uint16_t*>(tokens)};
  }

  const ProductParams& p_;
  const Call& call_;
  std::uint32_t experts_, slots_, stretch_;
  std::uint16_t* tokens_;  // of rows
  std::int32_t* held_;     // [slots]: ids, then experts with ranks
  std::uint32_t* counts_;  // [warps][experts]
  ExpertTables tables_;
};

}  // namespace fp4moe::kernels::cuda::sm90::product
