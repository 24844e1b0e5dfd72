// The experts of this rank, in the forms kernels ask for, and copies of busy experts (EPLB). Which
// rank owns an expert is said once, by checkpoint::local_experts.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/slice.hpp"

namespace fp4moe::moe {

// [experts]: the expert's number on this rank, or -1. (With one rank, kernels get none.) Errors:
// those of checkpoint::local_experts, expert_map.experts.
Result<std::vector<std::int32_t>> expert_map(std::uint64_t experts, checkpoint::Rank rank,
                                             checkpoint::Placement placement);

// Round-robin experts in the order in which ranks hold them: the number that dispatch uses.
Result<std::vector<std::int32_t>> dispatch_numbers(std::uint64_t experts, std::uint64_t ranks);

// Round robin is honored only where everything else allows it.
struct PlacementCase {
  checkpoint::Placement asked = checkpoint::Placement::linear;
  std::uint64_t expert_groups = 0;
  bool has_redundant_experts = false, has_eplb = false;
  bool uses_all2all = false, renumbers_for_dispatch = false;  // DeepEP low latency, NIXL
};
struct PlacementChoice {
  checkpoint::Placement placement = checkpoint::Placement::linear;
  std::string warning{};  // why it is not what was asked for
};
PlacementChoice choose_placement(const PlacementCase& asked);

// Physical experts are the logical ones and copies of some.
struct ReplicaTable {
  std::uint64_t experts = 0, physical = 0, max_replicas = 1;
  std::vector<std::int32_t> physical_of{};  // [experts, max_replicas]; -1: fewer copies
  std::vector<std::int32_t> replicas{};     // [experts]
};
// 0, 1, ... and then again from 0 for the redundant ones.
Result<std::vector<std::int32_t>> initial_physical_experts(std::uint64_t experts,
                                                           std::uint64_t redundant);
// From the logical number of each physical expert; every logical one must be there.
Result<ReplicaTable> replica_table(std::uint64_t experts,
                                   std::span<const std::int32_t> logical_of_physical);
// From the two tables themselves, as a server keeps them. Errors: eplb.table.
Result<ReplicaTable> replica_table(ReplicaTable given);

// Logical ids become physical ones in place; token t takes copy (t * 2654435769 mod 2^32) mod
// replicas. Ids of no expert become -1. `loads` [physical] or none: counted up, but for rows that
// `is_padding` [tokens] or none marks.
struct PhysicalIds {
  std::span<std::int32_t> ids{};  // [tokens, top_k]
  std::uint64_t top_k = 1;
  std::span<std::int64_t> loads{};
  std::span<const std::uint8_t> is_padding{};
};
Result<Done> map_to_physical(const ReplicaTable& table, const PhysicalIds& ids);

}  // namespace fp4moe::moe
