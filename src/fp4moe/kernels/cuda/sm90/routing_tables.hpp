// Tables that map assignments to rows and rows to token tiles. They lie in the workspace.
//
//   prepare       counts the assignments of each expert and gives each its rank among them
//   gather        writes all other tables; or every block of the grouped GEMM computes them
//                 (grouped_gemm/block_sort.cuh)
//   combine       clears the counters for the next call
//
// Ranks are given in the order of arrival. No result depends on the order of rows.
//
// Activations of a token tile have the layout that tensor cores read from shared memory (128-byte
// swizzle), K block after K block:
//
//   byte of (row r of the tile, column c) = tile.first_row * k_blocks * 128
//       + (c / 64) * tile.rows * 128 + r * 128 + (((c % 64) / 8) ^ (r % 8)) * 16 + (c % 8) * 2
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90 {

struct TokenTile {
  std::int32_t expert = 0;
  std::uint32_t first_row = 0;
  std::uint32_t rows = 0;          // multiple of 8
  std::uint32_t expert_tiles = 0;  // tiles of the same expert
};

// Each counter of an expert has a 32-byte sector of its own: atomics on them do not collide.
inline constexpr std::uint32_t kCounterStride = 8;  // words

// Counters are 0 between calls.
struct RoutingTables {
  TokenTile* tiles = nullptr;
  std::uint32_t* tile_count = nullptr;  // [1]
  // [3]: next work tile of each GEMM launch, next row group of the deferred gather
  std::uint32_t* work_counters = nullptr;
  // [tiles]: row groups that the deferred gather has written, plus M blocks of h that are complete
  std::uint32_t* tile_progress = nullptr;
  std::uint32_t* combine_signals = nullptr;  // [kCombineSignals]
  // [assignments, rounded up to 4]: see pack_expert_rank; -1: not on this rank
  std::int32_t* rank_of_assignment = nullptr;
  std::uint32_t* expert_counts = nullptr;     // [experts][kCounterStride]: assignments
  std::int32_t* row_of_assignment = nullptr;  // [assignments], -1: not on this rank
  std::int32_t* assignment_of_row = nullptr;  // [rows], -1: padding
  std::int32_t* expert_of_row = nullptr;      // [rows], local; -1: padding
  std::int32_t* tile_of_row_group = nullptr;  // [rows / 8]
};

// Counters that the grouped GEMM writes for combine:
//   kEarlyBlocksLeft        early M blocks of GEMM2 that are not complete, over all tiles
//   kTablesReady            low bits: blocks whose tables are written; high bits: early M blocks of
//                           a tile
//   kCombineBlocksStarted   counted by combine itself
inline constexpr std::uint32_t kEarlyBlocksLeft = 0, kTablesReady = 1, kCombineBlocksStarted = 2;
inline constexpr std::uint32_t kCombineSignals = 3;
inline constexpr std::uint32_t kTablesReadyBits = 16;

// An expert, and the rank of an assignment among the assignments of that expert, in one word.
inline constexpr std::uint32_t kRankBits = 21;
static_assert(kMaxExperts <= 1u << (31 - kRankBits));
constexpr std::int32_t pack_expert_rank(std::uint32_t expert, std::uint32_t rank) {
  return static_cast<std::int32_t>(expert << kRankBits | rank);
}
constexpr std::uint32_t packed_expert(std::int32_t both) {
  return static_cast<std::uint32_t>(both) >> kRankBits;
}
constexpr std::uint32_t packed_rank(std::int32_t both) {
  return static_cast<std::uint32_t>(both) & ((1u << kRankBits) - 1);
}

// Shared memory of a prefix sum over experts, the only place with its offsets, in words:
//
//   counts        [experts]: assignments
//   first_group   [experts + 1], the last: the sum of all
//   first_tile    [experts + 1]
//
// Pointers to the tables are ExpertTables in token_tiles.cuh. Before them are partial sums, one for
// each warp (GroupsAndTiles). Functions are static: with an object the compiler chooses other
// registers.
struct ExpertSharedStorage {
  static constexpr std::uint32_t kPartialBytes = 8;  // of a warp

  static constexpr std::uint32_t first_group(std::uint32_t experts) { return experts; }
  // 64 bits, as an address: the 1 becomes a part of the offset in each load and store.
  static constexpr std::uint64_t first_tile(std::uint32_t experts) {
    return std::uint64_t{2 * experts} + 1;
  }
  static constexpr std::uint32_t words(std::uint32_t experts) { return 3 * experts + 2; }
};

// Upper bounds, however the assignments are routed: rows of an expert are padded to a multiple of
// 8, and the smallest tiles hold 32 tokens.
constexpr std::uint32_t max_rows(std::uint32_t assignments, std::uint32_t experts) {
  return (assignments + 7 * (assignments < experts ? assignments : experts) + 7) / 8 * 8;
}
constexpr std::uint32_t max_tiles(std::uint32_t assignments, std::uint32_t experts) {
  return assignments / 32 + (assignments < experts ? assignments : experts);
}

}  // namespace fp4moe::kernels::cuda::sm90
