// Tokens' experts, and slots in the order of experts: a stable counting sort, a chunk of slots a
// block.
//
//   1  warps route the chunk's tokens, unless ids are given
//   2  a slot's rank in its warp's stretch of the chunk is the count of its expert so far; counts
//      add up over the warps before
//   3  the chunk's counts go to memory; ranks become those in the chunk
//   4  the block whose counts come last adds up all: over the chunks before, and experts' rows and
//      tiles over the experts before. That is the first row of a chunk's slots of an expert
//   5  the same block writes the tiles: an expert's groups of 8 rows, dealt out evenly
//
// Nobody waits for another block. Gather adds ranks to first rows. More blocks prefetch weights.
#include "fp4moe/kernels/cuda/sm90/launches.hpp"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/route.cuh"
#include "fp4moe/kernels/cuda/sm90/tiles.cuh"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

inline constexpr std::uint32_t kWarps = kSortThreads / 32;
inline constexpr std::uint32_t kAhead = 4;     // slots that a lane holds
inline constexpr std::uint32_t kTogether = 8;  // counts that are loaded at once
inline constexpr std::uint32_t kHeld = 16;     // of chunks, in a thread

struct SortSpace {
  Extent* partial;         // [32]: of warps
  std::uint32_t* is_last;  // [1]: whether this block's counts came last
  std::int32_t* ids;       // [kSortNearIds]: that this block routed
  std::uint32_t* counts;   // [32][experts]: of warps, or of parts of the chunks
  ExpertTables of;
};

__device__ SortSpace space_of(std::uint32_t* shared, std::uint32_t experts) {
  SortSpace made{};
  made.partial = reinterpret_cast<Extent*>(shared);
  made.is_last = shared + 2 * kWarps;
  made.ids = reinterpret_cast<std::int32_t*>(shared + kSortTables);
  made.counts = shared + kSortTables + kSortNearIds;
  made.of = ExpertTables::at(made.counts + kWarps * experts, experts);
  return made;
}

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

// What a thread adds up of all chunks' counts: some chunks of one expert, a part of them, the first
// of which it holds. Counts of parts are [parts][experts], in the order of threads.
struct Share {
  std::uint32_t parts, begin, end;  // chunks; empty in threads beyond the last part
  std::uint32_t expert, experts;
  std::uint32_t* counts;  // [chunks][experts]
  std::uint32_t held[kHeld];

  __device__ explicit Share(const SortParams& p) {
    const std::uint32_t chunks = p.chunks, most = min(kWarps, kSortThreads / p.experts);
    const std::uint32_t each = (chunks + most - 1) / most, part = threadIdx.x / p.experts;
    parts = (chunks + each - 1) / each;
    begin = part * each;
    end = min(begin + each, chunks);
    expert = threadIdx.x - part * p.experts;
    experts = p.experts;
    counts = p.to.first_rows;
#pragma unroll
    for (std::uint32_t i = 0; i < kHeld; ++i) held[i] = begin + i < end ? __ldcg(at(begin + i)) : 0;
  }
  __device__ std::uint32_t* at(std::uint32_t chunk) const {
    return counts + chunk * experts + expert;
  }
  // use(count, its place), in order.
  template <class Use>
  __device__ void for_chunks(const Use& use) const {
#pragma unroll
    for (std::uint32_t i = 0; i < kHeld; ++i)
      if (begin + i < end) use(held[i], at(begin + i));
    for (std::uint32_t c = begin + kHeld; c < end; c += kTogether) {
      std::uint32_t loaded[kTogether];
#pragma unroll
      for (std::uint32_t i = 0; i < kTogether; ++i) loaded[i] = c + i < end ? __ldcg(at(c + i)) : 0;
#pragma unroll
      for (std::uint32_t i = 0; i < kTogether; ++i)
        if (c + i < end) use(loaded[i], at(c + i));
    }
  }
};

// Counts of the parts of an expert become those before; its total is returned to its thread.
__device__ std::uint32_t add_up_chunks(const SortParams& p, const SortSpace& space,
                                       const Share& own) {
  std::uint32_t sum = 0;
  own.for_chunks([&](std::uint32_t count, const std::uint32_t*) { sum += count; });
  if (own.begin < own.end) space.counts[threadIdx.x] = sum;
  __syncthreads();
  return add_up_counts(p, space, own.parts);
}

// Of each chunk's slots of each expert, in the place of their counts.
__device__ void write_first_rows(const SortSpace& space, const Share& own) {
  if (own.begin >= own.end) return;
  std::uint32_t row = space.of.first_group[own.expert] * kGroup + space.counts[threadIdx.x];
  own.for_chunks([&](std::uint32_t count, std::uint32_t* place) {
    *place = row;
    row += count;
  });
}

// A thread a tile, with all that is said of its groups and its padding.
__device__ void write_tiles(const SortParams& p, const SortSpace& space) {
  const std::uint32_t tiles = space.of.first_tile[p.experts];
  for (std::uint32_t i = threadIdx.x; i < tiles; i += kSortThreads) {
    const Tile tile = tile_of(space.of, expert_at(space.of.first_tile, p.experts, i), i);
    p.to.tiles[i] = tile;
    for (std::uint32_t g = 0; g < tile.rows / kGroup; ++g)
      p.to.tile_of_row[tile.first_row / kGroup + g] = static_cast<std::int32_t>(i);
    for (std::uint32_t r = tile.count; r < tile.rows; ++r) {
      p.to.slot_of_row[tile.first_row + r] = -1;
      p.to.expert_of_row[tile.first_row + r] = -1;
    }
  }
  if (threadIdx.x == 0) p.to.tile_count[0] = tiles;
}

// The thread's expert in batches.
__device__ std::uint32_t batch_count(const SortParams& p) {
  if (threadIdx.x >= p.experts) return 0;
  return static_cast<std::uint32_t>(
      min(max(p.call.counts[threadIdx.x], 0), static_cast<std::int32_t>(p.call.capacity)));
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

// The chunk's slots of the thread's expert; ranks are written.
__device__ std::uint32_t count_chunk(const SortParams& p, const SortSpace& space,
                                     const std::int32_t* ids) {
  Ranks ranks(p, space, ids);
  ranks.count();
  __syncthreads();
  const std::uint32_t count = add_up_counts(p, space, Chunk(p.call).warps());
  if (p.chunks > 1 && threadIdx.x < p.experts)
    p.to.first_rows[blockIdx.x * p.experts + threadIdx.x] = count;
  __syncthreads();
  if (p.chunks > 1 && threadIdx.x == 0) {
    // First the counts of all threads, then the word that they are there; then those of others.
    *space.is_last = count_in_order(p.to.counted, p.chunks - 1) == p.chunks - 1 ? 1 : 0;
  }
  ranks.finish();
  return count;
}

// Streams by turns, so that all of them have their beginnings soon.
__device__ void prefetch(const Prefetch& p, std::uint32_t block) {
  const std::uint32_t steps = (p.bytes + kPrefetchStep - 1) / kPrefetchStep;
  for (std::uint32_t i = threadIdx.x * p.blocks + block; i < steps * p.streams;
       i += p.blocks * kSortThreads) {
    const std::uint32_t step = i / p.streams, stream = i - step * p.streams;
    const std::uint32_t first = step * kPrefetchStep;
    bulk_prefetch(p.from + stream * p.stride + first, min(kPrefetchStep, p.bytes - first));
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kSortThreads, 1)
    fp4moe_sm90_sort(const __grid_constant__ SortParams p) {
  extern __shared__ __align__(16) std::uint32_t shared[];
  const SortSpace space = space_of(shared, p.experts);
  let_next_begin();
  if (blockIdx.x >= p.chunks) return prefetch(p.prefetch, blockIdx.x - p.chunks);
  for (std::uint32_t i = threadIdx.x; i < kWarps * p.experts; i += kSortThreads)
    space.counts[i] = 0;
  __syncthreads();
  wait_for_previous();

  std::uint32_t count = 0;
  if (p.route.columns != 0) {
    Routing routing(p, space, reinterpret_cast<float*>(shared + sort_words(p.experts)));
    count = count_chunk(p, space, routing.ids());
    routing.finish();
  } else if (p.call.counts != nullptr) {
    count = batch_count(p);
  } else {
    count = count_chunk(p, space, p.call.ids + Chunk(p.call).first);
  }
  if (p.chunks > 1) {
    __syncthreads();
    if (*space.is_last == 0) return;
    const Share own(p);
    add_up_experts(space.of, space.partial, p.experts, p.tile_tokens, add_up_chunks(p, space, own));
    write_first_rows(space, own);
  } else {
    add_up_experts(space.of, space.partial, p.experts, p.tile_tokens, count);
    if (threadIdx.x < p.experts)
      p.to.first_rows[threadIdx.x] = space.of.first_group[threadIdx.x] * kGroup;
  }
  write_tiles(p, space);
}

}  // namespace fp4moe::kernels::cuda::sm90
