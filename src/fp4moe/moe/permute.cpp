#include "fp4moe/moe/permute.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"

namespace fp4moe::moe {
namespace {

constexpr std::uint64_t kMaxAssignments = 0x7FFFFFFF;
constexpr std::uint64_t kMaxBuckets = 1 << 20;
constexpr std::size_t kSmallPart = 4096;  // assignments that are not worth a second thread

// How ids become buckets, and where buckets begin.
struct Sort {
  std::span<const std::int32_t> ids{};
  std::span<const std::int32_t> map{};  // or none
  std::uint64_t buckets = 0;            // unassigned ones have one more
  std::uint64_t align = 1;              // buckets begin at multiples of it

  // Ids that are unassigned have the last number.
  std::uint64_t bucket(std::size_t assignment) const {
    const auto id = static_cast<std::uint32_t>(ids[assignment]);
    if (map.empty()) return std::min<std::uint64_t>(id, buckets);
    if (id >= map.size()) return buckets;
    return std::min<std::uint64_t>(static_cast<std::uint32_t>(map[id]), buckets);
  }
};

// Parts of the assignments are counted separately; a part's assignments of a bucket follow those of
// earlier parts. scratch: [parts, buckets + 1] counts, which become the places of the next
// assignment.
struct Parts {
  std::size_t count = 1, size = 0;
};
Parts parts_of(const Sort& sort, const ThreadPool& pool) {
  const std::size_t max_parts = std::max<std::size_t>(1, sort.ids.size() / kSmallPart);
  const std::size_t count = std::min(pool.threads(), max_parts);
  return {count, ceil_div(sort.ids.size(), count)};
}

void count_part(const Sort& sort, const Parts& parts, std::size_t part,
                std::span<std::uint32_t> scratch) {
  std::uint32_t* counts = scratch.data() + part * (sort.buckets + 1);
  std::fill_n(counts, sort.buckets + 1, 0u);
  const std::size_t end = std::min(sort.ids.size(), (part + 1) * parts.size);
  for (std::size_t assignment = part * parts.size; assignment < end; ++assignment)
    ++counts[sort.bucket(assignment)];
}

// Calls border(bucket, begin, end without padding) and returns where the last assigned one ends.
template <class Border>
std::uint64_t add_up(const Sort& sort, const Parts& parts, std::span<std::uint32_t> scratch,
                     const Border& border) {
  std::uint64_t at = 0, used = 0;
  for (std::uint64_t bucket = 0; bucket <= sort.buckets; ++bucket) {
    const std::uint64_t begin = at;
    for (std::size_t part = 0; part < parts.count; ++part) {
      std::uint32_t& count = scratch[part * (sort.buckets + 1) + bucket];
      const std::uint32_t here = count;
      count = static_cast<std::uint32_t>(at);
      at += here;
    }
    if (bucket == sort.buckets) break;
    border(bucket, begin, at);
    at = round_up(at, sort.align);
    used = at;
  }
  return used;
}

template <class Store>
void place_part(const Sort& sort, const Parts& parts, std::size_t part,
                std::span<std::uint32_t> scratch, const Store& place) {
  std::uint32_t* next = scratch.data() + part * (sort.buckets + 1);
  const std::size_t end = std::min(sort.ids.size(), (part + 1) * parts.size);
  for (std::size_t assignment = part * parts.size; assignment < end; ++assignment) {
    const std::uint64_t bucket = sort.bucket(assignment);
    place(assignment, next[bucket]++, bucket < sort.buckets);
  }
}

Result<Done> check_assignments(const Assignments& assignments, std::uint64_t block) {
  if (assignments.experts == 0 || assignments.experts > kMaxBuckets ||
      assignments.local_experts > assignments.experts)
    return usage("permute.experts", "too many experts")
        .expects(fmt::format("1 to {}, local ones among them", kMaxBuckets),
                 fmt::format("{}, {} local", assignments.experts, assignments.local_experts));
  if (!assignments.expert_map.empty() && assignments.expert_map.size() != assignments.experts)
    return usage("permute.map", "an expert map has a number for every expert")
        .expects(std::to_string(assignments.experts),
                 std::to_string(assignments.expert_map.size()));
  if (block == 0 || block > 65536)
    return usage("permute.block", "invalid block size")
        .expects("1 to 65536", std::to_string(block));
  if (assignments.ids.size() > kMaxAssignments ||
      assignments.experts * (block - 1) > kMaxAssignments - assignments.ids.size())
    return usage("permute.slots", "too many assignments")
        .expects(fmt::format("at most {} with their padding", kMaxAssignments),
                 fmt::format("{} of {} experts", assignments.ids.size(), assignments.experts))
        .try_this("Split the tokens into chunks");
  return Done{};
}

Sort sort_of_local(const Assignments& assignments, std::uint64_t align) {
  const bool is_mapped = !assignments.expert_map.empty();
  return {assignments.ids, assignments.expert_map,
          is_mapped ? assignments.local_experts : assignments.experts, align};
}

}  // namespace

std::uint64_t block_capacity(std::uint64_t assignments, std::uint64_t experts,
                             std::uint64_t block) {
  const std::uint64_t padded = assignments + experts * (block - 1);
  return assignments < experts ? std::min(assignments * block, padded) : padded;
}

Result<Done> align_blocks(const Assignments& assignments, BlockOptions options, ThreadPool& pool,
                          BlockAligned& out) {
  if (Result<Done> good = check_assignments(assignments, options.block); !good) return good;
  const bool maps_first = options.ignores_foreign && !assignments.expert_map.empty();
  const Sort sort = maps_first ? sort_of_local(assignments, options.block)
                               : Sort{assignments.ids, {}, assignments.experts, options.block};
  const auto none = static_cast<std::int32_t>(assignments.ids.size());
  const std::uint64_t capacity =
      block_capacity(assignments.ids.size(), assignments.experts, options.block);
  out.sorted_assignments.assign(capacity, none);
  out.expert_ids.assign(ceil_div(capacity, options.block), -1);
  const Parts parts = parts_of(sort, pool);
  out.scratch.resize(parts.count * (sort.buckets + 1));
  pool.run(parts.count, [&](std::size_t part) { count_part(sort, parts, part, out.scratch); });
  out.used = add_up(sort, parts, out.scratch,
                    [&](std::uint64_t bucket, std::uint64_t begin, std::uint64_t end) {
                      const std::int32_t expert = assignments.expert_map.empty() || maps_first
                                                      ? static_cast<std::int32_t>(bucket)
                                                      : assignments.expert_map[bucket];
                      for (std::uint64_t at = begin; at < end; at += options.block)
                        out.expert_ids[at / options.block] = expert;
                    });
  pool.run(parts.count, [&](std::size_t part) {
    place_part(sort, parts, part, out.scratch,
               [&](std::size_t assignment, std::uint32_t at, bool is_ours) {
                 if (is_ours) out.sorted_assignments[at] = static_cast<std::int32_t>(assignment);
               });
  });
  return Done{};
}

Result<Done> group_assignments(const Assignments& assignments, ThreadPool& pool, Grouped& out) {
  if (Result<Done> good = check_assignments(assignments, 1); !good) return good;
  const Sort sort = sort_of_local(assignments, 1);
  const auto none = static_cast<std::int32_t>(assignments.ids.size());
  const Parts parts = parts_of(sort, pool);
  out.offsets.resize(sort.buckets + 1);
  out.row_of_assignment.resize(assignments.ids.size());
  out.assignment_of_row.resize(assignments.ids.size());
  out.scratch.resize(parts.count * (sort.buckets + 1));
  pool.run(parts.count, [&](std::size_t part) { count_part(sort, parts, part, out.scratch); });
  out.offsets[0] = 0;
  add_up(sort, parts, out.scratch, [&](std::uint64_t bucket, std::uint64_t, std::uint64_t end) {
    out.offsets[bucket + 1] = static_cast<std::int64_t>(end);
  });
  pool.run(parts.count, [&](std::size_t part) {
    place_part(sort, parts, part, out.scratch,
               [&](std::size_t assignment, std::uint32_t at, bool is_ours) {
                 out.row_of_assignment[assignment] = static_cast<std::int32_t>(at);
                 out.assignment_of_row[at] = is_ours ? static_cast<std::int32_t>(assignment) : none;
               });
  });
  return Done{};
}

}  // namespace fp4moe::moe
