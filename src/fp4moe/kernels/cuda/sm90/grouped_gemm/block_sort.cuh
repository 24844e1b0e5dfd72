// Every block sorts the assignments by expert for itself: for few assignments this is faster than one
// launch that does it for all. Prepare has counted the assignments of each expert and ranked them.
// The stages behind the first one are the scratch memory (SortAndStart in kernel.cuh):
//
//   1  prefix sums over experts: first row and first tile of each
//   2  assignments find their rows, experts write their tiles
//   3  tiles and the token of each row go to global memory of this block
//
// The tables that combine reads are written once: each block writes the entries of its share.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/grouped_gemm/storage.cuh"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/token_tiles.cuh"

namespace fp4moe::kernels::cuda::sm90::grouped_gemm {

class BlockLocalSort {
 public:
  static constexpr std::uint32_t kThreads = kGroupedGemmThreads;
  // Math threads place assignments, the weight loader warp starts the first work tile, the threads
  // behind it write tiles.
  static constexpr std::uint32_t kPlacers = kMathWarpgroups * 128;
  static constexpr std::uint32_t kTileWriters = kThreads - kPlacers - 32;

  // A thread loads this before the prefix sums: the count of one expert, and ranks of assignments.
  struct Loaded {
    static constexpr std::uint32_t kVectors = kMaxBlockSortAssignments / (4 * kPlacers);
    std::uint32_t count;
    int4 ranks[kVectors];  // of four assignments each
  };

  // `scratch`: shared memory, see BlockSortStorage.
  __device__ BlockLocalSort(const GroupedGemmParams& p, std::uint8_t* scratch)
      : p_(p),
        experts_(p.block_sort.experts),
        assignments_(p.block_sort.assignments),
        tiles_(reinterpret_cast<TokenTile*>(scratch)),
        token_of_row_(behind<std::uint16_t>(tiles_, Storage::tile_bytes(assignments_, experts_))),
        partial_(behind<GroupsAndTiles>(token_of_row_, Storage::row_bytes(assignments_, experts_))),
        tables_(
            ExpertTables::at(behind<std::uint32_t>(partial_, Storage::kPartialBytes), experts_)) {}

  // Padding rows read token 0.
  __device__ void clear_rows() {
    for (std::uint32_t i = threadIdx.x; i < max_rows(assignments_, experts_) / 8; i += kThreads)
      reinterpret_cast<uint4*>(token_of_row_)[i] = {};
  }
  __device__ void load(Loaded& to) const {
    to.count =
        threadIdx.x < experts_ ? __ldcg(p_.tables.expert_counts + threadIdx.x * kCounterStride) : 0;
#pragma unroll
    for (std::uint32_t i = 0; i < Loaded::kVectors; ++i)
      to.ranks[i] = load_ranks(threadIdx.x + i * kPlacers);
  }
  __device__ void scan(const Loaded& loaded) {
    scan_experts(tables_, partial_, experts_, p_.block_sort.tile_tokens, loaded.count);
  }
  __device__ void place_assignments(const Loaded& loaded) {
#pragma unroll
    for (std::uint32_t i = 0; i < Loaded::kVectors; ++i) {
      const std::uint32_t first = (threadIdx.x + i * kPlacers) * 4;
      if (first >= assignments_) break;
      const int4 four = loaded.ranks[i];
      const std::int32_t ranks[] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (std::uint32_t j = 0; j < 4; ++j) {
        const std::uint32_t assignment = first + j;
        const std::uint32_t token = p_.block_sort.inverse_top_k == 0
                                        ? assignment
                                        : __umulhi(assignment, p_.block_sort.inverse_top_k);
        if (ranks[j] >= 0) token_of_row_[row_of(ranks[j])] = static_cast<std::uint16_t>(token);
      }
    }
  }
  __device__ void write_tiles() {
#pragma unroll 1
    for (std::uint32_t expert = threadIdx.x - (kThreads - kTileWriters); expert < experts_;
         expert += kTileWriters)
      for (std::uint32_t i = tables_.first_tile[expert]; i < tables_.first_tile[expert + 1]; ++i)
        tiles_[i] = make_tile(tables_, expert, i);
  }
  // To global memory: tiles, then the token of each row, in the same layout as in shared memory.
  __device__ TileTables store() {
    const std::uint32_t count = tables_.first_tile[experts_];
    auto* to = reinterpret_cast<uint4*>(p_.block_sort.tables + blockIdx.x * p_.block_sort.stride);
    const std::uint32_t tile_capacity = max_tiles(assignments_, experts_);
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < tile_capacity + tables_.first_group[experts_];
         i += kThreads)
      to[i] = reinterpret_cast<const uint4*>(tiles_)[i];
    if (threadIdx.x < kBlockSortShare) store_share();
    if (blockIdx.x == 0 && threadIdx.x == 0) p_.tables.tile_count[0] = count;
    return {reinterpret_cast<const TokenTile*>(to), count,
            reinterpret_cast<const std::uint16_t*>(to + tile_capacity)};
  }

  __device__ const ExpertTables& tables() const { return tables_; }
  __device__ const std::uint16_t* token_of_row() const { return token_of_row_; }

 private:
  using Storage = BlockSortStorage;
  // The array behind one of so many bytes. With offsets from the beginning of the scratch memory,
  // the compiler chooses other registers.
  template <class To, class From>
  __device__ static To* behind(From* array, std::uint64_t bytes) {
    return reinterpret_cast<To*>(array + bytes / sizeof(From));
  }
  // -1: not on this rank.
  __device__ int4 load_ranks(std::uint32_t four) const {
    if (threadIdx.x >= kPlacers || four * 4 >= assignments_) return {-1, -1, -1, -1};
    return __ldcg(reinterpret_cast<const int4*>(p_.tables.rank_of_assignment) + four);
  }
  __device__ std::uint32_t row_of(std::int32_t expert_rank) const {
    return tables_.first_group[packed_expert(expert_rank)] * kRowGroup + packed_rank(expert_rank);
  }
  // combine reads this.
  __device__ void store_share() const {
#pragma unroll 1
    for (std::uint32_t assignment = blockIdx.x * kBlockSortShare + threadIdx.x;
         assignment < assignments_; assignment += gridDim.x * kBlockSortShare) {
      const std::int32_t both = __ldcg(p_.tables.rank_of_assignment + assignment);
      const std::int32_t row = both < 0 ? -1 : static_cast<std::int32_t>(row_of(both));
      p_.tables.row_of_assignment[assignment] = row;
      if (row >= 0) p_.tables.expert_of_row[row] = static_cast<std::int32_t>(packed_expert(both));
    }
  }

  const GroupedGemmParams& p_;
  std::uint32_t experts_, assignments_;
  TokenTile* tiles_;
  std::uint16_t* token_of_row_;
  GroupsAndTiles* partial_;  // [32]
  ExpertTables tables_;
};

}  // namespace fp4moe::kernels::cuda::sm90::grouped_gemm
