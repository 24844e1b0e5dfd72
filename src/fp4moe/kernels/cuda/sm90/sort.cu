// Tokens' experts, and slots in the order of experts: a stable counting sort, a chunk of slots a
// block.
//
//   1  warps route the chunk's tokens, unless ids are given
//   2  a slot's rank in its warp's stretch of the chunk is the count of its expert so far; counts
//      add up over the warps before
//   3  the chunk's counts go to memory, and are added to those of its stretch of chunks; ranks
//      become those in the chunk
//
// Nobody waits for another block. Gather adds up what is in front.
#include "fp4moe/kernels/cuda/sm90/launches.hpp"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/route.cuh"
#include "fp4moe/kernels/cuda/sm90/tiles.cuh"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

inline constexpr std::uint32_t kWarps = kSortThreads / 32;
inline constexpr std::uint32_t kAhead = 4;     // slots that a lane holds
inline constexpr std::uint32_t kTogether = 8;  // counts that are loaded at once

struct SortSpace {
  std::int32_t* ids;      // [kSortNearIds]: that this block routed
  std::uint32_t* counts;  // [32][experts]: of warps
};

// The block's slots, and those of each of its warps, whole 32 of them.
struct Chunk {
  std::uint32_t first, end, stretch;

  __device__ explicit Chunk(const Call& call) {
    const std::uint32_t slots = call.tokens * call.top_k,
                        size = sort_chunk(call.tokens, call.top_k);
    first = blockIdx.x * size;
    end = min(first + size, slots);
    stretch = (size + kSortThreads - 1) / kSortThreads * 32;
  }
  // Warps that have any.
  __device__ std::uint32_t warps() const { return (end - first + stretch - 1) / stretch; }
};

class Ranks {
 public:
  // `ids`: of the chunk's slots.
  __device__ Ranks(const SortParams& p, const SortSpace& space, const std::int32_t* ids)
      : p_(p),
        chunk_(p.call),
        ids_(ids),
        counts_(space.counts + threadIdx.x / 32 * p.experts),
        lane_(threadIdx.x % 32),
        first_(chunk_.first + threadIdx.x / 32 * chunk_.stretch),
        end_(min(first_ + chunk_.stretch, chunk_.end)) {}

  // Ranks in the stretch, and its counts. All of a short stretch stay in registers.
  __device__ void count() {
    for (std::uint32_t at = first_; at < end_; at += kAhead * 32) {
      std::int32_t ids[kAhead];
#pragma unroll
      for (std::uint32_t i = 0; i < kAhead; ++i) {
        const std::uint32_t slot = at + i * 32 + lane_;
        ids[i] = slot < end_ ? ids_[slot - chunk_.first] : -1;
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kAhead; ++i) {
        held_[i] = -1;
        if (at + i * 32 < end_) held_[i] = rank(local_expert(p_.call, p_.experts, ids[i]));
      }
      if (!is_short()) store(at);
    }
  }
  // Counts of the warp are those of the warps before by now.
  __device__ void finish() {
    for (std::uint32_t at = first_; at < end_; at += kAhead * 32) {
      if (!is_short()) load(at);
#pragma unroll
      for (std::int32_t& both : held_)
        if (both >= 0) both += static_cast<std::int32_t>(counts_[expert_of(both)]);
      store(at);
    }
  }

 private:
  __device__ bool is_short() const { return chunk_.stretch <= kAhead * 32; }

  __device__ std::int32_t rank(std::int32_t expert) const {
    const std::uint32_t own = rank_in_warp(counts_, expert, bits_of(p_.experts));
    return expert < 0 ? -1 : ranked(static_cast<std::uint32_t>(expert), own);
  }
  __device__ void store(std::uint32_t at) const {
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      const std::uint32_t slot = at + i * 32 + lane_;
      if (slot < end_) p_.to.rank_of_slot[slot] = held_[i];
    }
  }
  __device__ void load(std::uint32_t at) {
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      const std::uint32_t slot = at + i * 32 + lane_;
      held_[i] = slot < end_ ? p_.to.rank_of_slot[slot] : -1;
    }
  }

  const SortParams& p_;
  Chunk chunk_;
  const std::int32_t* ids_;
  std::uint32_t* counts_;
  std::uint32_t lane_, first_, end_;
  std::int32_t held_[kAhead] = {};  // experts with ranks, -1: of none here
};

// Counts of an expert, a thread each, become those before; the total is returned.
__device__ std::uint32_t add_up_counts(const SortParams& p, const SortSpace& space,
                                       std::uint32_t used) {
  std::uint32_t total = 0;
  if (threadIdx.x >= p.experts) return 0;
  std::uint32_t* counts = space.counts + threadIdx.x;
  for (std::uint32_t r = 0; r < used; r += kTogether) {
    std::uint32_t parts[kTogether];
#pragma unroll
    for (std::uint32_t i = 0; i < kTogether; ++i)
      parts[i] = r + i < used ? counts[(r + i) * p.experts] : 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kTogether; ++i) {
      if (r + i < used) counts[(r + i) * p.experts] = total;
      total += parts[i];
    }
  }
  return total;
}

// Ids and weights of the chunk's tokens; ids also near, if there is room. Weights of a warp's last
// token have time: finish() is called when others no longer wait for this block.
class Routing {
 public:
  __device__ Routing(const SortParams& p, const SortSpace& space, float* scratch) : p_(p.route) {
    const Chunk chunk(p.call);
    const std::uint32_t warp = threadIdx.x / 32, routers = sort_routers(p_.columns);
    const bool is_near = chunk.end - chunk.first <= kSortNearIds;
    std::int32_t* to = is_near ? space.ids : p_.ids + chunk.first;
    const std::uint32_t first = chunk.first / p_.top_k, end = chunk.end / p_.top_k;
    if (warp < routers)
      for (std::uint32_t token = first + warp; token < end; token += routers) {
        finish();
        const std::uint64_t at = std::uint64_t{token - first} * p_.top_k;
        weights_ = p_.weights + chunk.first + at;
        is_left_ =
            choose_token(p_, token, scratch + warp * 2 * p_.columns, to + at, weights_, row_);
      }
    __syncthreads();
    if (is_near)
      for (std::uint32_t i = threadIdx.x; i < chunk.end - chunk.first; i += kSortThreads)
        p_.ids[chunk.first + i] = to[i];
    ids_ = to;
  }
  __device__ void finish() {
    if (is_left_) weigh_token(p_, row_, weights_);
    is_left_ = false;
  }
  // Of the chunk.
  __device__ const std::int32_t* ids() const { return ids_; }

 private:
  const RouteParams& p_;
  const std::int32_t* ids_ = nullptr;
  float* weights_ = nullptr;
  bool is_left_ = false;
  HeldRow row_;
};

__device__ void sort_chunk_of(const SortParams& p, const SortSpace& space,
                              const std::int32_t* ids) {
  Ranks ranks(p, space, ids);
  ranks.count();
  __syncthreads();
  const std::uint32_t count = add_up_counts(p, space, Chunk(p.call).warps());
  if (threadIdx.x < p.experts) {
    p.to.counts[blockIdx.x * p.experts + threadIdx.x] = count;
    if (count != 0)
      atomicAdd(p.to.stretches + blockIdx.x / kStretch * p.experts + threadIdx.x, count);
  }
  __syncthreads();
  ranks.finish();
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kSortThreads, 1)
    fp4moe_sm90_sort(const __grid_constant__ SortParams p) {
  extern __shared__ __align__(16) std::uint32_t shared[];
  const SortSpace space{reinterpret_cast<std::int32_t*>(shared), shared + kSortNearIds};
  let_next_begin();
  fetch_params(p);
  for (std::uint32_t i = threadIdx.x; i < kWarps * p.experts; i += kSortThreads)
    space.counts[i] = 0;
  __syncthreads();
  wait_for_previous();
  if (p.route.columns != 0) {
    Routing routing(p, space, reinterpret_cast<float*>(shared + sort_words(p.experts)));
    sort_chunk_of(p, space, routing.ids());
    routing.finish();
  } else {
    sort_chunk_of(p, space, p.call.ids + Chunk(p.call).first);
  }
}

}  // namespace fp4moe::kernels::cuda::sm90
