// Assignments put in the order of their experts. An assignment is a token's choice: choice j of
// token t has the number t * top_k + j and the id ids[t * top_k + j]. Ids below 0, beyond the
// experts, or mapped to -1 are unassigned. Inside an expert assignments keep their order, whatever
// the number of threads.
//
// Kernels take this order in one of two forms; both come out of one counting sort:
//
//   of ids 1 2 0 1, with 3 experts and 4 rows a block:
//
//   block aligned   assignments   2 . . .   0 3 . .   1 . . .   experts 0 1 2   (. is 4: no assignment)
//   grouped         assignments   2 0 3 1   offsets 0 1 3 4     rows of assignments 1 3 0 2
//
// The structures own their memory and keep it from call to call.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"

namespace fp4moe::moe {

struct Assignments {
  std::span<const std::int32_t> ids{};         // [tokens * top_k], global
  std::uint64_t experts = 0;                   // global
  std::span<const std::int32_t> expert_map{};  // [experts] local numbers or -1; none: all are local
  std::uint64_t local_experts = 0;             // with a map
};

// Errors of all: permute.experts, permute.map, permute.block, permute.slots (too many assignments to
// number).

// Marlin, Triton, emulation.
struct BlockAligned {
  std::vector<std::int32_t>
      sorted_assignments{};  // capacity; padding and tail are the number of assignments
  std::vector<std::int32_t> expert_ids{};  // one a block; tail -1
  std::uint64_t used = 0;                  // of sorted_assignments, a multiple of the block
  std::vector<std::uint32_t> scratch{};
};
struct BlockOptions {
  std::uint64_t block = 1;
  // Marlin drops foreign assignments. Triton keeps their blocks, and expert_ids says -1 of them.
  bool ignores_foreign = false;
};
Result<Done> align_blocks(const Assignments& assignments, BlockOptions options, ThreadPool& pool,
                          BlockAligned& out);
// The size of sorted_assignments: assignments + experts * (block - 1), or one block per assignment
// if that is less.
std::uint64_t block_capacity(std::uint64_t assignments, std::uint64_t experts, std::uint64_t block);

// Grouped GEMMs.
struct Grouped {
  std::vector<std::int64_t> offsets{};  // [local experts + 1]; the last: rows that are assigned
  std::vector<std::int32_t>
      row_of_assignment{};  // unassigned ones follow the others, in their order
  std::vector<std::int32_t>
      assignment_of_row{};  // the number of assignments where the row is unassigned
  std::vector<std::uint32_t> scratch{};

  std::uint64_t valid() const {
    return offsets.empty() ? 0 : static_cast<std::uint64_t>(offsets.back());
  }
};
Result<Done> group_assignments(const Assignments& assignments, ThreadPool& pool, Grouped& out);

}  // namespace fp4moe::moe
