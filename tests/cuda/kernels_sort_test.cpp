#include <fmt/format.h>

#include "kernels.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

// Ids of `tokens` x `top_k` slots; some are -1, or of no expert.
std::vector<std::int32_t> random_ids(std::size_t slots, std::uint32_t experts, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::int32_t> made(slots);
  for (std::int32_t& id : made) {
    const std::uint64_t kind = random.next() % 16;
    id = static_cast<std::int32_t>(random.next() % experts);
    if (kind == 0) id = -1;
    if (kind == 1) id += static_cast<std::int32_t>(experts);
  }
  return made;
}

class Sort : public OnDevice {
 protected:
  // Runs sort on a call whose slots have these local experts and compares every table.
  void expect_sorted(SortParams params, const std::vector<std::int32_t>& experts_of_slots) {
    const PlainTables plain = plain_tables(experts_of_slots, params.experts, params.call.top_k);
    const std::size_t slots = experts_of_slots.size();
    const std::uint32_t chunks = sort_blocks(params.call);
    const std::size_t counts = std::size_t{chunks} * params.experts;
    const std::size_t sums = std::size_t{stretches_of(chunks)} * params.experts;
    const SortMemory memory{.ranks = room<std::int32_t>(slots),
                            .counts = room<std::uint32_t>(counts),
                            .stretches = upload(std::vector<std::uint32_t>(sums, 3))};
    params.to = memory.tables();
    run("fp4moe_sm90_sort", params, {chunks, kSortThreads, sort_shared(params.experts, 0)});
    EXPECT_EQ(download<std::int32_t>(memory.ranks, slots), plain.rank_of_slot);
    const auto first = [](const std::vector<std::uint32_t>& all, std::size_t count) {
      return std::vector(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
    };
    EXPECT_EQ(download<std::uint32_t>(memory.counts, counts), first(plain.counts, counts));
    std::vector<std::uint32_t> added = first(plain.stretches, sums);
    for (std::uint32_t& sum : added) sum += 3;  // to what is there
    EXPECT_EQ(download<std::uint32_t>(memory.stretches, sums), added);
  }
  // Ids that are positions, where they are experts' at all.
  void expect_ids_sorted(SortParams params, const std::vector<std::int32_t>& ids,
                         std::uint32_t top_k = 1) {
    SCOPED_TRACE(
        fmt::format("{} experts, {} slots, {} choices", params.experts, ids.size(), top_k));
    const Memory on_device = upload(ids);
    params.call.tokens = static_cast<std::uint32_t>(ids.size()) / top_k;
    params.call.top_k = top_k;
    params.call.ids = on_device.as<std::int32_t>();
    std::vector<std::int32_t> local = ids;
    for (std::int32_t& id : local)
      if (id >= static_cast<std::int32_t>(params.experts)) id = -1;
    expect_sorted(params, local);
  }
};

TEST_F(Sort, GroupsSlotsByExpertInTheirOrder) {
  for (const std::uint32_t experts : {1u, 3u, 128u, 300u, 512u, 1024u})
    for (const std::uint32_t tokens : {0u, 1u, 3u, 17u, 31u, 100u, 1024u, 1025u, 5000u, 40000u})
      for (const std::uint32_t top_k : {1u, 4u, 7u})
        expect_ids_sorted({.experts = experts},
                          random_ids(std::size_t{tokens} * top_k, experts, tokens + top_k), top_k);
}

TEST_F(Sort, TakesMoreSlotsThanWarpsLoadAtOnce) {
  constexpr std::size_t kSlots = 630000;
  static_assert(sort_chunk(kSlots, 1) > 4 * kSortThreads);
  expect_ids_sorted({.experts = 300}, random_ids(kSlots, 300, 4));
}

TEST_F(Sort, SlotsOfNobodyHaveNoRows) {
  for (const std::uint32_t count : {1u, 1024u, 5000u})
    expect_ids_sorted({.experts = 3}, std::vector(count, -1));
}

TEST_F(Sort, TakesTheExpertsOfARankByRangeOrByMap) {
  const auto ids = random_ids(1200, 64, 9);
  std::vector<std::int32_t> map(64, -1);
  for (std::int32_t i = 0; i < 20; ++i) map[static_cast<std::size_t>(i) * 3 + 1] = 19 - i;
  map[0] = 20;  // no expert of this rank
  const Memory on_device = upload(ids), map_on_device = upload(map);
  SortParams params{.experts = 20};
  params.call.tokens = 300;
  params.call.top_k = 4;
  params.call.ids = on_device.as<std::int32_t>();

  std::vector<std::int32_t> local = ids;
  for (std::int32_t& id : local) id = id >= 30 && id < 50 ? id - 30 : -1;
  params.call.first_expert = 30;
  expect_sorted(params, local);

  for (std::size_t i = 0; i < ids.size(); ++i) {
    local[i] = ids[i] >= 0 && ids[i] < 64 ? map[static_cast<std::size_t>(ids[i])] : -1;
    if (local[i] == 20) local[i] = -1;
  }
  params.call.first_expert = 0;
  params.call.expert_map = map_on_device.as<std::int32_t>();
  params.call.map_size = 64;
  expect_sorted(params, local);
}

}  // namespace
}  // namespace fp4moe::kernels::cuda::sm90
