// Few slots in the order of experts, sorted by every block of a product for itself: sooner done
// than what one block does for all. The ring of stages is the space for it, behind the first.
//
//   1  rows and tiles of experts add up: prepare has counted their slots, and has given each its
//      place among them
//   2  slots find their rows; meanwhile the first piece of work is looked up, and its first stage
//      is sent for
//   3  tiles, and which token a row is, go to memory of the block's own
//
// What combine looks up is written once, some slots by each block.
#pragma once
#include <cstdint>

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
  // `begin`: of the space.
  __device__ OwnSort(const ProductParams& p, std::uint8_t* begin)
      : p_(p),
        experts_(p.own.experts),
        slots_(p.own.slots),
        tiles_(reinterpret_cast<Tile*>(begin)),
        tokens_(reinterpret_cast<std::uint16_t*>(tiles_ + own_tiles(slots_, experts_))),
        partial_(reinterpret_cast<Extent*>(tokens_ + own_rows(slots_, experts_))),
        tables_(ExpertTables::at(reinterpret_cast<std::uint32_t*>(partial_ + 32), experts_)) {}

  // All threads of the block. when_waited() comes when kernels before are done,
  // when_counted(tables) in the first warp that will not multiply, when_told(tokens of rows) when
  // they are known, but only near.
  template <class Waited, class Counted, class Told>
  __device__ Tiles run(const Waited& when_waited, const Counted& when_counted,
                       const Told& when_told) {
    // Rows of padding are the first token's.
    for (std::uint32_t i = threadIdx.x; i < own_rows(slots_, experts_) / 8; i += kThreads)
      reinterpret_cast<uint4*>(tokens_)[i] = {};
    pdl_wait();
    pdl_launch_dependents();
    const std::uint32_t count =
        threadIdx.x < experts_ ? __ldcg(p_.sorted.totals + threadIdx.x * kApart) : 0;
    int4 held[kHeld];
#pragma unroll
    for (std::uint32_t i = 0; i < kHeld; ++i) held[i] = held_at(threadIdx.x + i * kPlacers);
    when_waited();
    add_up_experts(tables_, partial_, experts_, p_.own.tile_tokens, count);
    if (threadIdx.x < kPlacers)
      place_slots(held);
    else if (threadIdx.x < kPlacers + 32)
      when_counted(tables_);
    else
      make_tiles();
    fence_proxy_async();  // what is copied into the ring comes behind all this
    __syncthreads();
    when_told(tokens_);
    const Tiles made = write();
    __syncthreads();
    return made;
  }

 private:
  static constexpr std::uint32_t kThreads = kProductThreads;
  static constexpr std::uint32_t kPlacers = kConsumers * 128, kMakers = kThreads - kPlacers - 32;
  static constexpr std::uint32_t kHeld = kOwnSlots / (4 * kPlacers);  // fours of slots of a thread

  // Experts and ranks of four slots; -1: of none here.
  __device__ int4 held_at(std::uint32_t four) const {
    if (threadIdx.x >= kPlacers || four * 4 >= slots_) return {-1, -1, -1, -1};
    return __ldcg(reinterpret_cast<const int4*>(p_.sorted.rank_of_slot) + four);
  }
  __device__ std::uint32_t row_of(std::int32_t both) const {
    return tables_.first_group[expert_of(both)] * kGroup + rank_of(both);
  }
  __device__ void place_slots(const int4 (&held)[kHeld]) {
#pragma unroll
    for (std::uint32_t i = 0; i < kHeld; ++i) {
      const std::uint32_t first = (threadIdx.x + i * kPlacers) * 4;
      if (first >= slots_) break;
      const std::int32_t both[] = {held[i].x, held[i].y, held[i].z, held[i].w};
#pragma unroll
      for (std::uint32_t j = 0; j < 4; ++j) {
        const std::uint32_t slot = first + j;
        const std::uint32_t token = p_.own.part == 0 ? slot : __umulhi(slot, p_.own.part);
        if (both[j] >= 0) tokens_[row_of(both[j])] = static_cast<std::uint16_t>(token);
      }
    }
  }
  __device__ void make_tiles() {
#pragma unroll 1
    for (std::uint32_t expert = threadIdx.x - (kThreads - kMakers); expert < experts_;
         expert += kMakers)
      for (std::uint32_t i = tables_.first_tile[expert]; i < tables_.first_tile[expert + 1]; ++i)
        tiles_[i] = tile_of(tables_, expert, i);
  }
  __device__ void tell_slots() const {
#pragma unroll 1
    for (std::uint32_t slot = blockIdx.x * kOwnShare + threadIdx.x; slot < slots_;
         slot += gridDim.x * kOwnShare) {
      const std::int32_t both = __ldcg(p_.sorted.rank_of_slot + slot);
      const std::int32_t row = both < 0 ? -1 : static_cast<std::int32_t>(row_of(both));
      p_.sorted.row_of_slot[slot] = row;
      if (row >= 0) p_.sorted.expert_of_row[row] = static_cast<std::int32_t>(expert_of(both));
    }
  }
  // Tiles and tokens lie one behind the other, there as here.
  __device__ Tiles write() {
    const std::uint32_t count = tables_.first_tile[experts_];
    auto* to = reinterpret_cast<uint4*>(p_.own.tables + blockIdx.x * p_.own.stride);
    const std::uint32_t most = own_tiles(slots_, experts_);
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < most + tables_.first_group[experts_]; i += kThreads)
      to[i] = reinterpret_cast<const uint4*>(tiles_)[i];
    if (threadIdx.x < kOwnShare) tell_slots();
    if (blockIdx.x == 0 && threadIdx.x == 0) p_.sorted.tile_count[0] = count;
    return {reinterpret_cast<const Tile*>(to), count,
            reinterpret_cast<const std::uint16_t*>(to + most)};
  }

  const ProductParams& p_;
  std::uint32_t experts_, slots_;
  Tile* tiles_;
  std::uint16_t* tokens_;  // of rows
  Extent* partial_;        // [32]
  ExpertTables tables_;
};

}  // namespace fp4moe::kernels::cuda::sm90::product
