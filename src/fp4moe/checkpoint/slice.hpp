// Which part of a layer a rank holds: whole experts (expert parallel) or a range of the
// intermediate size (tensor parallel), cut at scale-block borders.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/moe_shape.hpp"

namespace fp4moe::checkpoint {

enum class Placement : std::uint8_t { linear, round_robin };

struct Rank {
  std::uint64_t rank = 0;
  std::uint64_t size = 1;
};

struct Slice {
  Rank tensor_parallel{};
  Rank expert_parallel{};
  Placement placement = Placement::linear;
};

struct Range {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// How the intermediate size is cut.
enum class SplitRule : std::uint8_t {
  ceil_blocks,  // gpt-oss: ceil(blocks / ranks) blocks each, the last rank takes what is left
  equal,        // everyone else: intermediate / ranks, which must fall on a block border
};

// The range of intermediate rows of a rank, or why the split is impossible, naming the nearest one
// that is possible. By ceil_blocks the last ranks may hold less, or nothing.
Result<Range> split_intermediate(std::uint64_t intermediate, std::uint64_t block, Rank rank,
                                 SplitRule rule);

// The global numbers of a rank's experts, ascending. The first (experts % ranks) ranks own one
// more.
Result<std::vector<std::uint64_t>> local_experts(std::uint64_t experts, Rank rank,
                                                 Placement placement);
// True if `expert` is among them, without making the list.
bool owns_expert(std::uint64_t experts, Rank rank, Placement placement, std::uint64_t expert);

}  // namespace fp4moe::checkpoint
