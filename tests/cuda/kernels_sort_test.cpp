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
  // Runs sort, twice as graphs do, on a call whose slots have these local experts and compares
  // every table.
  void expect_sorted(SortParams params, const std::vector<std::int32_t>& experts_of_slots) {
    const PlainTables plain = plain_tables(experts_of_slots, params.experts,
                                           std::max(params.call.top_k, 1u), params.tile_tokens);
    const std::size_t slots = experts_of_slots.size(), rows = plain.slot_of_row.size();
    const std::uint32_t blocks = sort_blocks(params.call);
    const std::size_t firsts = std::size_t{blocks} * params.experts;
    // Gather writes rows that are not padding.
    const std::vector<std::int32_t> untouched(rows, 7);
    std::vector<std::int32_t> padding = untouched;
    for (std::size_t row = 0; row < rows; ++row)
      if (plain.slot_of_row[row] < 0) padding[row] = -1;
    const SortMemory memory{.tiles = room<Tile>(plain.tiles.size()),
                            .counters = upload(std::vector<std::uint32_t>{9, 9, 9, 0}),
                            .ranks = room<std::int32_t>(slots),
                            .first_rows = room<std::uint32_t>(firsts),
                            .slot_of_row = upload(untouched),
                            .expert_of_row = upload(untouched),
                            .tile_of_row = room<std::int32_t>(rows / 8)};
    params.chunks = blocks;
    params.to = memory.tables();
    for (int turn = 0; turn < 2; ++turn)
      run("fp4moe_sm90_sort", params, {blocks, kSortThreads, sort_shared(params.experts, 0)});

    const auto tile_count = static_cast<std::uint32_t>(plain.tiles.size());
    ASSERT_EQ(download<std::uint32_t>(memory.counters, 4),
              (std::vector<std::uint32_t>{tile_count, 9, 9, 0}));
    const auto made = download<Tile>(memory.tiles, plain.tiles.size());
    for (std::size_t i = 0; i < made.size(); ++i) {
      EXPECT_EQ(made[i].expert, plain.tiles[i].expert) << i;
      EXPECT_EQ(made[i].first_row, plain.tiles[i].first_row) << i;
      EXPECT_EQ(made[i].rows, plain.tiles[i].rows) << i;
      EXPECT_EQ(made[i].count, plain.tiles[i].count) << i;
    }
    if (params.call.counts == nullptr) {
      EXPECT_EQ(download<std::int32_t>(memory.ranks, slots), plain.rank_of_slot);
    }
    EXPECT_EQ(download<std::uint32_t>(memory.first_rows, firsts),
              std::vector(plain.first_rows.begin(),
                          plain.first_rows.begin() + static_cast<std::ptrdiff_t>(firsts)));
    EXPECT_EQ(download<std::int32_t>(memory.slot_of_row, rows), padding);
    EXPECT_EQ(download<std::int32_t>(memory.expert_of_row, rows), padding);
    EXPECT_EQ(download<std::int32_t>(memory.tile_of_row, rows / 8), plain.tile_of_row);
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

TEST_F(Sort, CutsManyTokensOfOneExpertIntoEvenTiles) {
  for (const std::uint32_t tile_tokens : {32u, 64u, 128u})
    for (const std::uint32_t count : {1u, 8u, 33u, 127u, 128u, 129u, 257u, 1000u, 60000u}) {
      SCOPED_TRACE(fmt::format("{} of at most {}", count, tile_tokens));
      expect_ids_sorted({.experts = 7, .tile_tokens = tile_tokens}, std::vector(count, 5));
    }
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

TEST_F(Sort, TakesBatchesAsTheyAre) {
  const std::vector<std::int32_t> counts{3, 0, 40, 200, 1};
  constexpr std::uint32_t kCapacity = 200;
  const Memory on_device = upload(counts);
  SortParams params{.experts = 5};
  params.call.counts = on_device.as<std::int32_t>();
  params.call.capacity = kCapacity;

  std::vector<std::int32_t> local(5 * kCapacity, -1);
  for (std::size_t slot = 0; slot < local.size(); ++slot)
    if (static_cast<std::int32_t>(slot % kCapacity) < counts[slot / kCapacity])
      local[slot] = static_cast<std::int32_t>(slot / kCapacity);
  expect_sorted(params, local);
}

}  // namespace
}  // namespace fp4moe::kernels::cuda::sm90
