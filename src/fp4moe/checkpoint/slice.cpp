#include "fp4moe/checkpoint/slice.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"

namespace fp4moe::checkpoint {
namespace {

Result<Done> check(Rank rank, std::string_view what) {
  if (rank.size > 0 && rank.rank < rank.size) return Done{};
  return usage("slice.rank", fmt::format("{} rank is not one of the group", what))
      .expects("rank < size", fmt::format("rank {} of {}", rank.rank, rank.size));
}

// The nearest sizes below and above `size` that divide `blocks`; the upper one is absent when
// `size` is past them all.
std::string nearest_divisors(std::uint64_t blocks, std::uint64_t size) {
  std::uint64_t below = 1, above = 0;
  for (std::uint64_t divisor = 1; divisor <= blocks / divisor; ++divisor) {
    if (blocks % divisor != 0) continue;
    for (const std::uint64_t candidate : {divisor, blocks / divisor}) {
      if (candidate < size) below = std::max(below, candidate);
      if (candidate > size && (above == 0 || candidate < above)) above = candidate;
    }
  }
  if (above == 0) return fmt::format("Possible is {}", below);
  return fmt::format("Nearest possible are {} and {}", below, above);
}

}  // namespace

Result<Range> split_intermediate(std::uint64_t intermediate, std::uint64_t block, Rank rank,
                                 SplitRule rule) {
  if (const auto fine = check(rank, "tensor-parallel"); !fine) return fine.why();
  if (rank.size == 1) return Range{0, intermediate};
  if (block == 0 || intermediate % block != 0) {
    return usage("slice.blocks", "an intermediate size of part blocks cannot be split")
        .expects(fmt::format("a multiple of {}", block), fmt::format("{}", intermediate))
        .try_this("Use tensor-parallel size 1, or expert parallel");
  }
  const std::uint64_t blocks = intermediate / block;
  if (rule == SplitRule::equal) {
    if (blocks % rank.size != 0) {
      return usage("slice.uneven", "the intermediate size does not split at scale-block borders")
          .expects(
              fmt::format("{} blocks of {} to divide by the tensor-parallel size", blocks, block),
              fmt::format("size {}", rank.size))
          .try_this(nearest_divisors(blocks, rank.size) + ", or use expert parallel");
    }
    const std::uint64_t each = intermediate / rank.size;
    return Range{rank.rank * each, (rank.rank + 1) * each};
  }
  const std::uint64_t each = ceil_div(blocks, rank.size);
  // rank.rank may be huge: compare blocks before multiplying.
  const auto border = [&](std::uint64_t number) {
    return number > blocks / each ? intermediate : std::min(number * each, blocks) * block;
  };
  return Range{border(rank.rank), border(rank.rank + 1)};
}

Result<std::vector<std::uint64_t>> local_experts(std::uint64_t experts, Rank rank,
                                                 Placement placement) {
  if (const auto fine = check(rank, "expert-parallel"); !fine) return fine.why();
  const std::uint64_t base = experts / rank.size, rest = experts % rank.size;
  const std::uint64_t count = base + (rank.rank < rest ? 1 : 0);
  const std::uint64_t first =
      placement == Placement::linear ? rank.rank * base + std::min(rank.rank, rest) : rank.rank;
  const std::uint64_t step = placement == Placement::linear ? 1 : rank.size;
  std::vector<std::uint64_t> owned(count);
  for (std::uint64_t i = 0; i < count; ++i) owned[i] = first + i * step;
  return owned;
}

bool owns_expert(std::uint64_t experts, Rank rank, Placement placement, std::uint64_t expert) {
  if (rank.size == 0 || expert >= experts) return false;
  if (placement == Placement::round_robin) return expert % rank.size == rank.rank;
  const std::uint64_t base = experts / rank.size, rest = experts % rank.size;
  const std::uint64_t first = rank.rank * base + std::min(rank.rank, rest);
  return expert >= first && expert - first < base + (rank.rank < rest ? 1 : 0);
}

}  // namespace fp4moe::checkpoint
