// Few slots in the order of experts, sorted by every block of a product for itself: sooner done
// than what one block does for all. The ring of stages is the space for it, behind the first.
//
//   1  ids come into shared memory; of each slot a bit is set, in its expert's word of 32 slots
//   2  bits up to each word are counted, in parts of all words; rows and tiles of experts add up
//   3  slots find their rows; meanwhile the first piece of work is looked up, and its first stage
//      is sent for
//   4  tiles, and which token a row is, go to memory of the block's own
//
// What combine looks up is written once, some slots by each block.
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
  // `begin`: of the space.
  __device__ OwnSort(const ProductParams& p, std::uint8_t* begin)
      : p_(p),
        call_(p.own.call),
        experts_(p.own.experts),
        slots_(call_.tokens * call_.top_k),
        words_((slots_ + 31) / 32),
        each_((words_ + kParts - 1) / kParts),
        tiles_(reinterpret_cast<Tile*>(begin)),
        tokens_(reinterpret_cast<std::uint16_t*>(tiles_ + own_tiles(slots_, experts_))),
        held_(reinterpret_cast<std::int32_t*>(tokens_ + own_rows(slots_, experts_))),
        bits_(reinterpret_cast<std::uint32_t*>(held_ + slots_)),
        parts_(bits_ + words_ * experts_),
        tables_(ExpertTables::at(parts_ + kParts * experts_, experts_)),
        partial_(reinterpret_cast<Extent*>(tables_.first_tile + experts_ + 1)),
        before_(reinterpret_cast<std::uint16_t*>(partial_ + 32)) {}

  // All threads of the block. when_waited() comes when kernels before are done,
  // when_counted(tables) in the first warp that will not multiply, when_told(tokens of rows) when
  // they are known, but only near.
  template <class Waited, class Counted, class Told>
  __device__ Tiles run(const Waited& when_waited, const Counted& when_counted,
                       const Told& when_told) {
    // Rows of padding are the first token's.
    clear(reinterpret_cast<std::uint32_t*>(tokens_), own_rows(slots_, experts_) / 2);
    clear(bits_, words_ * experts_);
    __syncthreads();
    wait_for_previous();
    let_next_begin();
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < slots_; i += kThreads)
      copy_later4(shared_address(held_ + i), call_.ids + i);
    when_waited();
    wait_for_copies();
    mark_slots();  // each thread those that it copied
    __syncthreads();
    count_bits();
    __syncthreads();
    add_up_experts(tables_, partial_, experts_, p_.own.tile_tokens, add_up_parts());
    if (threadIdx.x < kPlacers)
      place_slots();
    else if (threadIdx.x < kPlacers + 32)
      when_counted(tables_);
    else
      make_tiles();
    fence_for_tensor_cores();  // what is copied into the ring comes behind all this
    __syncthreads();
    when_told(tokens_);
    const Tiles made = write();
    __syncthreads();
    return made;
  }

 private:
  static constexpr std::uint32_t kThreads = kProductThreads, kParts = kOwnParts;
  static constexpr std::uint32_t kPlacers = kConsumers * 128, kMakers = kThreads - kPlacers - 32;

  static __device__ void clear(std::uint32_t* at, std::uint32_t count) {
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) at[i] = 0;
  }
  // The expert of each slot stays in its place.
  __device__ void mark_slots() {
#pragma unroll 2
    for (std::uint32_t slot = threadIdx.x; slot < slots_; slot += kThreads) {
      const std::int32_t expert = local_expert(call_, experts_, held_[slot]);
      held_[slot] = expert;
      if (expert >= 0) atomicOr(bits_ + slot / 32 * experts_ + expert, 1u << slot % 32);
    }
  }
  // Of a part of all words, a thread an expert's, as many parts at once as there are threads for.
  __device__ void count_bits() {
    std::uint32_t part = 0, expert = threadIdx.x;
    for (; expert >= experts_ && part < kParts; ++part) expert -= experts_;
    const std::uint32_t at_once = kThreads >= kParts * experts_       ? kParts
                                  : kThreads >= kParts / 2 * experts_ ? kParts / 2
                                                                      : 1;
    if (part >= at_once) return;
#pragma unroll 1
    for (; part < kParts; part += at_once) {
      std::uint32_t sum = 0;
#pragma unroll 4
      for (std::uint32_t w = part * each_; w < min((part + 1) * each_, words_); ++w) {
        const std::uint32_t bits = bits_[w * experts_ + expert];
        before_[w * experts_ + expert] = static_cast<std::uint16_t>(sum);
        sum += __popc(bits);
      }
      parts_[part * experts_ + expert] = sum;
    }
  }
  // Counts of the thread's expert become those before; the total is returned.
  __device__ std::uint32_t add_up_parts() {
    std::uint32_t sum = 0;
    if (threadIdx.x >= experts_) return 0;
#pragma unroll
    for (std::uint32_t part = 0; part < kParts; ++part) {
      const std::uint32_t count = parts_[part * experts_ + threadIdx.x];
      parts_[part * experts_ + threadIdx.x] = sum;
      sum += count;
    }
    return sum;
  }
  __device__ void make_tiles() {
#pragma unroll 1
    for (std::uint32_t expert = threadIdx.x - (kThreads - kMakers); expert < experts_;
         expert += kMakers)
      for (std::uint32_t i = tables_.first_tile[expert]; i < tables_.first_tile[expert + 1]; ++i)
        tiles_[i] = tile_of(tables_, expert, i);
  }
  __device__ void place_slots() {
#pragma unroll 2
    for (std::uint32_t slot = threadIdx.x; slot < slots_; slot += kPlacers) {
      const std::int32_t expert = held_[slot];
      const std::uint32_t word = slot / 32;
      if (expert >= 0) {
        std::uint32_t part = 0;
#pragma unroll
        for (std::uint32_t i = 1; i < kParts; ++i) part += word >= i * each_ ? 1 : 0;
        const std::uint32_t at = word * experts_ + expert;
        const std::uint32_t row = tables_.first_group[expert] * kGroup +
                                  parts_[part * experts_ + expert] + before_[at] +
                                  __popc(bits_[at] & ((1u << slot % 32) - 1));
        const std::uint32_t token = p_.own.part == 0 ? slot : __umulhi(slot, p_.own.part);
        tokens_[row] = static_cast<std::uint16_t>(token);
        held_[slot] = ranked(static_cast<std::uint32_t>(expert), row);
      }
    }
  }
  __device__ void tell_slots() const {
#pragma unroll 1
    for (std::uint32_t slot = blockIdx.x * kOwnShare + threadIdx.x; slot < slots_;
         slot += gridDim.x * kOwnShare) {
      const std::int32_t both = held_[slot];
      const auto row = static_cast<std::int32_t>(rank_of(both));
      p_.sorted.row_of_slot[slot] = both < 0 ? -1 : row;
      if (both >= 0) p_.sorted.expert_of_row[row] = static_cast<std::int32_t>(expert_of(both));
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
  const Call& call_;
  std::uint32_t experts_, slots_, words_, each_;  // words of a part
  Tile* tiles_;
  std::uint16_t* tokens_;  // of rows
  std::int32_t* held_;     // [slots]: ids, then experts, then with rows behind them
  std::uint32_t* bits_;    // [words][experts]
  std::uint32_t* parts_;   // [parts][experts]: counts
  ExpertTables tables_;
  Extent* partial_;        // [32]
  std::uint16_t* before_;  // [words][experts]: bits of the part's words in front
};

}  // namespace fp4moe::kernels::cuda::sm90::product
