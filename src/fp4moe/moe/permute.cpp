#include "fp4moe/moe/permute.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

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
    return usage("permute.block", "blocks have rows").expects("1 to 65536", std::to_string(block));
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

Result<Done> check_tokens(const ConstRows& rows, std::string_view what, std::uint64_t wanted) {
  if (rows.rows >= wanted) return Done{};
  return usage("permute.rows", fmt::format("there are too few {}", what))
      .expects(std::to_string(wanted), std::to_string(rows.rows));
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

Result<Done> align_batches(std::span<const std::int32_t> counts, std::uint64_t capacity,
                           std::uint64_t block, BlockAligned& out) {
  if (block == 0 || block > 65536)
    return usage("permute.block", "blocks have rows").expects("1 to 65536", std::to_string(block));
  const auto total =
      checked_multiply(counts.size(), round_up(std::min(capacity, kMaxAssignments), block));
  if (!total || *total > kMaxAssignments || capacity > kMaxAssignments)
    return usage("permute.slots", "too many rows")
        .expects(fmt::format("at most {}", kMaxAssignments),
                 fmt::format("{} batches of {}", counts.size(), capacity));
  const auto none = static_cast<std::int32_t>(counts.size() * capacity);
  out.sorted_assignments.assign(*total, none);
  out.expert_ids.assign(*total / block, -1);
  out.used = 0;
  for (std::size_t batch = 0; batch < counts.size(); ++batch) {
    if (counts[batch] < 0 || static_cast<std::uint64_t>(counts[batch]) > capacity)
      return usage("permute.batch", fmt::format("batch {} has another number of rows", batch))
          .expects(fmt::format("0 to {}", capacity), std::to_string(counts[batch]));
    const auto rows = static_cast<std::uint64_t>(counts[batch]);
    for (std::uint64_t i = 0; i < rows; ++i)
      out.sorted_assignments[out.used + i] = static_cast<std::int32_t>(batch * capacity + i);
    for (std::uint64_t i = 0; i < rows; i += block)
      out.expert_ids[(out.used + i) / block] = static_cast<std::int32_t>(batch);
    out.used += round_up(rows, block);
  }
  return Done{};
}

std::uint64_t marlin_block(const MarlinBlockCase& asked) {
  static constexpr std::array<std::uint64_t, 5> kBlocks{8, 16, 32, 48, 64};
  const auto local = static_cast<double>(std::max<std::uint64_t>(1, asked.local_experts));
  const double share = local / static_cast<double>(std::max<std::uint64_t>(1, asked.experts));
  const double rows = static_cast<double>(asked.tokens) * share * static_cast<double>(asked.top_k);
  const auto* found = std::ranges::find_if(kBlocks, [&](std::uint64_t block) {
    return rows / local / static_cast<double>(block) < 0.9;
  });
  const std::uint64_t block = found == kBlocks.end() ? kBlocks.back() : *found;
  return asked.has_8bit_activations ? std::max<std::uint64_t>(16, block) : block;
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

Result<Done> permute_rows(const ConstRows& x, const Grouped& order, ThreadPool& pool,
                          const MutableRows& out) {
  const std::uint64_t assignments = order.assignment_of_row.size();
  if (Result<Done> good = check_rows(x, "x", x.columns); !good) return good;
  if (Result<Done> good = check_rows(out, "out", x.columns); !good) return good;
  if (Result<Done> good = check_tokens(out, "permuted rows", order.valid()); !good) return good;
  const std::uint64_t bytes = x.columns * element_bytes(x.dtype);
  if (out.dtype != x.dtype || bytes % 16 != 0)
    return usage("permute.rows", "rows are moved as they are, 16 bytes at a time")
        .expects("equal types and a multiple of 16 bytes",
                 fmt::format("{} to {}, {} bytes", tensor::name(x.dtype), tensor::name(out.dtype),
                             bytes));
  if (assignments == 0) return Done{};
  if (x.rows == 0 || assignments % x.rows != 0)
    return usage("permute.rows", "every token has as many assignments")
        .expects(fmt::format("a number of tokens that divides {}", assignments),
                 std::to_string(x.rows));
  const std::uint64_t top_k = assignments / x.rows;
  pool.run(order.valid(), [&](std::size_t row) {
    const auto assignment = static_cast<std::uint64_t>(order.assignment_of_row[row]);
    std::memcpy(out.row(row), x.row(assignment / top_k), bytes);
  });
  return Done{};
}

Result<Done> tile_assignments(const Assignments& assignments, std::uint64_t top_k,
                              std::uint64_t tile, Tiled& out) {
  if (Result<Done> good = check_assignments(assignments, tile); !good) return good;
  if (tile < 8 || tile > 128 || !std::has_single_bit(tile))
    return usage("permute.block", "a tile of TRT-LLM has another number of rows")
        .expects("8, 16, 32, 64 or 128", std::to_string(tile));
  if (top_k == 0 || assignments.ids.size() % top_k != 0)
    return usage("permute.rows", "every token has as many assignments")
        .expects(fmt::format("a number that divides {}", assignments.ids.size()),
                 std::to_string(top_k));
  const Sort sort = sort_of_local(assignments, tile);
  const Parts whole{1, assignments.ids.size()};
  out.scratch.resize(sort.buckets + 1);
  out.row_of_assignment.assign(assignments.ids.size(), -1);
  out.padded_counts.assign(sort.buckets, 0);
  out.offsets.assign(sort.buckets + 1, 0);
  out.expert_of_tile.clear();
  count_part(sort, whole, 0, out.scratch);
  const std::uint64_t used = add_up(
      sort, whole, out.scratch, [&](std::uint64_t bucket, std::uint64_t begin, std::uint64_t end) {
        const std::uint64_t rows = round_up(end - begin, tile);
        out.padded_counts[bucket] = static_cast<std::int32_t>(rows);
        out.offsets[bucket + 1] = static_cast<std::int32_t>(begin + rows);
        out.expert_of_tile.insert(out.expert_of_tile.end(), rows / tile,
                                  static_cast<std::int32_t>(bucket));
      });
  out.token_of_row.assign(used, -1);
  place_part(sort, whole, 0, out.scratch,
             [&](std::size_t assignment, std::uint32_t at, bool is_ours) {
               if (!is_ours) return;
               out.row_of_assignment[assignment] = static_cast<std::int32_t>(at);
               out.token_of_row[at] = static_cast<std::int32_t>(assignment / top_k);
             });
  return Done{};
}

}  // namespace fp4moe::moe
