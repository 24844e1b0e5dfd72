#include "fp4moe/moe/expert_map.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace fp4moe::moe {
namespace {

constexpr std::uint64_t kMaxMapped = 1 << 20;
constexpr std::uint32_t kGoldenRatio = 2654435769;  // 2^32 / 1.618...: spreads copies over tokens

Result<Done> check_experts(std::uint64_t experts) {
  if (experts > 0 && experts <= kMaxMapped) return Done{};
  return usage("expert_map.experts", "too many experts")
      .expects(fmt::format("1 to {}", kMaxMapped), std::to_string(experts));
}

Error wrong_table(std::string_view message, std::string_view expected, std::string_view found) {
  return usage("eplb.table", message).expects(expected, found);
}

}  // namespace

Result<std::vector<std::int32_t>> expert_map(std::uint64_t experts, checkpoint::Rank rank,
                                             checkpoint::Placement placement) {
  if (const Result<Done> good = check_experts(experts); !good) return good.why();
  const auto owned = checkpoint::local_experts(experts, rank, placement);
  if (!owned) return owned.why();
  std::vector<std::int32_t> map(experts, -1);
  for (std::size_t local = 0; local < owned->size(); ++local)
    map[(*owned)[local]] = static_cast<std::int32_t>(local);
  return map;
}

Result<std::vector<std::int32_t>> dispatch_numbers(std::uint64_t experts, std::uint64_t ranks) {
  if (const Result<Done> good = check_experts(experts); !good) return good.why();
  std::vector<std::int32_t> numbers(experts);
  std::int32_t next = 0;
  for (std::uint64_t rank = 0; rank < std::min(ranks, experts); ++rank) {
    const auto owned =
        checkpoint::local_experts(experts, {rank, ranks}, checkpoint::Placement::round_robin);
    if (!owned) return owned.why();
    for (const std::uint64_t expert : *owned) numbers[expert] = next++;
  }
  if (static_cast<std::uint64_t>(next) != experts)
    return usage("expert_map.ranks", "number of ranks").expects("at least 1", "0");
  return numbers;
}

PlacementChoice choose_placement(const PlacementCase& asked) {
  using checkpoint::Placement;
  if (asked.asked == Placement::linear) return {};
  const auto refused = [](std::string_view why) {
    return PlacementChoice{Placement::linear,
                           fmt::format("round-robin placement needs {}: linear it is", why)};
  };
  if (asked.expert_groups <= 1) return refused("more than one expert group");
  if (asked.has_redundant_experts) return refused("no redundant experts");
  if (asked.has_eplb) return refused("no load balancing (EPLB)");
  if (asked.uses_all2all && !asked.renumbers_for_dispatch)
    return refused("DeepEP low latency or NIXL as all2all");
  return {Placement::round_robin, ""};
}

Result<std::vector<std::int32_t>> initial_physical_experts(std::uint64_t experts,
                                                           std::uint64_t redundant) {
  if (const Result<Done> good = check_experts(experts); !good) return good.why();
  if (redundant > kMaxMapped - experts)
    return usage("expert_map.experts", "too many experts")
        .expects(fmt::format("up to {} in all", kMaxMapped),
                 fmt::format("{} and {} redundant", experts, redundant));
  std::vector<std::int32_t> logical(experts + redundant);
  for (std::uint64_t i = 0; i < logical.size(); ++i)
    logical[i] = static_cast<std::int32_t>(i % experts);
  return logical;
}

Result<ReplicaTable> replica_table(std::uint64_t experts,
                                   std::span<const std::int32_t> logical_of_physical) {
  if (const Result<Done> good = check_experts(experts); !good) return good.why();
  ReplicaTable table{.experts = experts, .physical = logical_of_physical.size()};
  table.replicas.assign(experts, 0);
  for (const std::int32_t logical : logical_of_physical) {
    if (logical < 0 || static_cast<std::uint64_t>(logical) >= experts)
      return wrong_table("a physical expert is a copy of a logical one",
                         fmt::format("0 to {}", experts - 1), std::to_string(logical));
    ++table.replicas[static_cast<std::size_t>(logical)];
  }
  if (const auto none = std::ranges::find(table.replicas, 0); none != table.replicas.end())
    return wrong_table("every logical expert has a copy", "at least one",
                       fmt::format("none of expert {}", none - table.replicas.begin()));
  table.max_replicas = static_cast<std::uint64_t>(*std::ranges::max_element(table.replicas));
  table.physical_of.assign(experts * table.max_replicas, -1);
  std::vector<std::uint64_t> placed(experts);
  for (std::size_t i = 0; i < logical_of_physical.size(); ++i) {
    const auto logical = static_cast<std::size_t>(logical_of_physical[i]);
    table.physical_of[logical * table.max_replicas + placed[logical]++] =
        static_cast<std::int32_t>(i);
  }
  return table;
}

Result<ReplicaTable> replica_table(ReplicaTable given) {
  if (const Result<Done> good = check_experts(given.experts); !good) return good.why();
  if (given.max_replicas == 0 || given.physical_of.size() / given.max_replicas != given.experts ||
      given.physical_of.size() % given.max_replicas != 0 || given.replicas.size() != given.experts)
    return wrong_table(
        "the tables are those of the experts",
        fmt::format("{} experts with up to {} copies", given.experts, given.max_replicas),
        fmt::format("{} and {} numbers", given.physical_of.size(), given.replicas.size()));
  for (std::uint64_t expert = 0; expert < given.experts; ++expert) {
    const std::int32_t copies = given.replicas[expert];
    if (copies < 1 || static_cast<std::uint64_t>(copies) > given.max_replicas)
      return wrong_table(fmt::format("expert {} has another number of copies", expert),
                         fmt::format("1 to {}", given.max_replicas), std::to_string(copies));
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(copies); ++i) {
      const std::int32_t physical = given.physical_of[expert * given.max_replicas + i];
      if (physical < 0 || static_cast<std::uint64_t>(physical) >= given.physical)
        return wrong_table(fmt::format("copy {} of expert {} is a physical expert", i, expert),
                           fmt::format("below {}", given.physical), std::to_string(physical));
    }
  }
  return given;
}

Result<Done> map_to_physical(const ReplicaTable& table, const PhysicalIds& ids) {
  const bool fits = ids.top_k > 0 && ids.ids.size() % ids.top_k == 0;
  const std::uint64_t tokens = fits ? ids.ids.size() / ids.top_k : 0;
  if (!fits || (!ids.is_padding.empty() && ids.is_padding.size() != tokens) ||
      (!ids.loads.empty() && ids.loads.size() != table.physical))
    return usage("eplb.sizes", "ids, padding and loads are those of tokens and physical experts")
        .expects(fmt::format("{} loads, {} tokens", table.physical, tokens),
                 fmt::format("{} loads, {} marks", ids.loads.size(), ids.is_padding.size()));
  for (std::uint64_t assignment = 0; assignment < ids.ids.size(); ++assignment) {
    const std::uint64_t token = assignment / ids.top_k;
    const auto logical = static_cast<std::uint32_t>(ids.ids[assignment]);
    if (logical >= table.experts) {
      ids.ids[assignment] = -1;
      continue;
    }
    const std::uint32_t spread = static_cast<std::uint32_t>(token) * kGoldenRatio;
    const std::uint32_t copy = spread % static_cast<std::uint32_t>(table.replicas[logical]);
    ids.ids[assignment] = table.physical_of[logical * table.max_replicas + copy];
    const bool counts = ids.is_padding.empty() || ids.is_padding[token] == 0;
    if (counts && !ids.loads.empty()) ++ids.loads[static_cast<std::size_t>(ids.ids[assignment])];
  }
  return Done{};
}

}  // namespace fp4moe::moe
