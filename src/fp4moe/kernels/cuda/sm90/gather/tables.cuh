// The tables of token tiles. Each block computes the prefix sums over experts and writes the tables of its
// assignments; the first block writes all tiles.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/gather/params.hpp"
#include "fp4moe/kernels/cuda/sm90/token_tiles.cuh"
#include "fp4moe/kernels/cuda/sm90/vec8.cuh"

namespace fp4moe::kernels::cuda::sm90 {

// In shared memory, see GatherSharedStorage.
struct GatherTables {
  ExpertTables experts;
  GroupsAndTiles* partial;    // [warps]
  const std::int32_t* ranks;  // of each assignment: see pack_expert_rank; here or in global memory

  __device__ GatherTables(std::uint32_t* shared, std::uint32_t count, const std::int32_t* of)
      : experts(ExpertTables::at(shared + GatherSharedStorage::kExpertTables, count)),
        partial(reinterpret_cast<GroupsAndTiles*>(shared)),
        ranks(of) {}
};

__device__ inline std::uint32_t assignments_of(const GatherParams& p, std::uint32_t expert) {
  if (expert >= p.layer.experts) return 0;
  if (p.call.counts == nullptr) return __ldcg(p.tables.expert_counts + expert * kCounterStride);
  return static_cast<std::uint32_t>(
      min(max(p.call.counts[expert], 0), static_cast<std::int32_t>(p.call.capacity)));
}
// count_of(expert): the number of its assignments.
template <class CountOf>
__device__ inline void scan_all_experts(const GatherParams& p, const GatherTables& to,
                                        const CountOf& count_of) {
  for (std::uint32_t first = 0; first < p.layer.experts; first += kGatherThreads)
    scan_experts(to.experts, to.partial, p.layer.experts, p.tile_tokens,
                 count_of(first + threadIdx.x), first);
}

__device__ inline void write_tiles(const GatherParams& p, const ExpertTables& experts) {
  const std::uint32_t tiles = experts.first_tile[p.layer.experts];
  for (std::uint32_t i = threadIdx.x; i < tiles; i += kGatherThreads)
    p.tables.tiles[i] = make_tile(experts, find_expert(experts.first_tile, p.layer.experts, i), i);
  if (threadIdx.x == 0) p.tables.tile_count[0] = tiles;
}

// The begin of a kernel that lays out tokens. All threads of the block call.
__device__ inline void begin_tables(const GatherParams& p, const GatherTables& to) {
  pdl_wait();
  scan_all_experts(p, to, [&](std::uint32_t expert) { return assignments_of(p, expert); });
  if (blockIdx.x == 0) {
    write_tiles(p, to.experts);
    __threadfence();
    __syncthreads();
  }
  pdl_launch_dependents();  // the GEMM reads the tiles before its pdl_wait
}

// The destination of a lane's assignment of the token, and its quantization scale.
struct GatherTarget {
  float global = 1.0f;
  std::uint32_t row = 0;
  TileRowAddress address{};
};

// An assignment's expert, and its rank among the assignments of that expert. Expert -1: not on
// this rank.
struct ExpertRank {
  std::int32_t expert = -1;
  std::uint32_t rank = 0;
};
__device__ inline ExpertRank expert_rank(const GatherParams& p, const GatherTables& tables,
                                         std::uint32_t assignment) {
  if (p.call.counts != nullptr) {  // rank i of an expert is row i of its batch
    const std::uint32_t expert = assignment / p.call.capacity;
    const std::uint32_t rank = assignment - expert * p.call.capacity;
    if (rank >= tables.experts.counts[expert]) return {};
    return {static_cast<std::int32_t>(expert), rank};
  }
  const std::int32_t both = tables.ranks[assignment];
  if (both < 0) return {};
  return {static_cast<std::int32_t>(packed_expert(both)), packed_rank(both)};
}

// Writes the table entries of an assignment and its row. The first row of a row group also writes
// the group's tile, the last row of an expert also writes the padding behind it.
__device__ inline void write_row(const RoutingTables& to, std::uint32_t assignment,
                                 std::uint32_t row, const ExpertRank& from, std::uint32_t count,
                                 std::uint32_t tile) {
  to.row_of_assignment[assignment] = static_cast<std::int32_t>(row);
  to.assignment_of_row[row] = static_cast<std::int32_t>(assignment);
  to.expert_of_row[row] = from.expert;
  if (row % kRowGroup == 0) to.tile_of_row_group[row / kRowGroup] = static_cast<std::int32_t>(tile);
  if (from.rank + 1 != count) return;
  for (std::uint32_t r = row + 1; r % kRowGroup != 0; ++r)
    to.assignment_of_row[r] = to.expert_of_row[r] = -1;
}

// `writes_tables`: also writes the table entries. address_of(tile, row): where the row begins.
template <class AddressOf>
__device__ GatherTarget target_of(const GatherParams& p, const GatherTables& tables,
                                  std::uint32_t token, std::uint32_t choices, bool writes_tables,
                                  const AddressOf& address_of) {
  const std::uint32_t lane = threadIdx.x % 32, assignment = token * choices + lane;
  GatherTarget result;
  if (lane >= choices) return result;
  const ExpertRank from = expert_rank(p, tables, assignment);
  if (from.expert < 0) {
    if (writes_tables) p.tables.row_of_assignment[assignment] = -1;
    return result;
  }
  const auto expert = static_cast<std::uint32_t>(from.expert);
  const std::uint32_t row = tables.experts.first_group[expert] * kRowGroup + from.rank;
  const std::uint32_t tile = tables.experts.first_tile[expert] +
                             TileSplit(tables.experts, expert).tile(from.rank / kRowGroup);
  result.row = row;
  if (tile < p.filled_tiles)
    result.address = address_of(make_tile(tables.experts, expert, tile), row);
  if (p.layer.quantization != Quantization::none) result.global = input_scale(p.layer, expert);
  if (writes_tables)
    write_row(p.tables, assignment, row, from, tables.experts.counts[expert], tile);
  return result;
}

}  // namespace fp4moe::kernels::cuda::sm90
