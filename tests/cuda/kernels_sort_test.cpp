#include <fmt/format.h>

#include "kernels.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

class Sort : public OnDevice {
 protected:
  // Runs sort on a call whose slots have these local experts and compares every table.
  void expect_sorted(SortParams params, const std::vector<std::int32_t>& experts_of_slots) {
    const PlainTables plain = plain_tables(experts_of_slots, params.experts, params.tile_tokens);
    const std::size_t slots = experts_of_slots.size(), rows = plain.slot_of_row.size();
    const Memory tiles = room<Tile>(plain.tiles.size()), counters = room<std::uint32_t>(3);
    const Memory row_of_slot = room<std::int32_t>(slots), slot_of_row = room<std::int32_t>(rows);
    const Memory expert_of_row = room<std::int32_t>(rows);
    const Memory tile_of_row = room<std::int32_t>(rows / 8);
    params.to = {.tiles = tiles.as<Tile>(),
                 .tile_count = counters.as<std::uint32_t>(),
                 .work = counters.as<std::uint32_t>() + 1,
                 .row_of_slot = row_of_slot.as<std::int32_t>(),
                 .slot_of_row = slot_of_row.as<std::int32_t>(),
                 .expert_of_row = expert_of_row.as<std::int32_t>(),
                 .tile_of_row = tile_of_row.as<std::int32_t>()};
    run("fp4moe_sm90_sort", params, {1, kSortThreads, sort_shared(params.experts, slots)});

    const auto counted = download<std::uint32_t>(counters, 3);
    ASSERT_EQ(counted,
              (std::vector<std::uint32_t>{static_cast<std::uint32_t>(plain.tiles.size()), 0, 0}));
    const auto made = download<Tile>(tiles, plain.tiles.size());
    for (std::size_t i = 0; i < made.size(); ++i) {
      EXPECT_EQ(made[i].expert, plain.tiles[i].expert) << i;
      EXPECT_EQ(made[i].first_row, plain.tiles[i].first_row) << i;
      EXPECT_EQ(made[i].rows, plain.tiles[i].rows) << i;
      EXPECT_EQ(made[i].count, plain.tiles[i].count) << i;
    }
    EXPECT_EQ(download<std::int32_t>(row_of_slot, slots), plain.row_of_slot);
    EXPECT_EQ(download<std::int32_t>(slot_of_row, rows), plain.slot_of_row);
    EXPECT_EQ(download<std::int32_t>(expert_of_row, rows), plain.expert_of_row);
    EXPECT_EQ(download<std::int32_t>(tile_of_row, rows / 8), plain.tile_of_row);
  }
};

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

TEST_F(Sort, GroupsSlotsByExpertInTheirOrder) {
  for (const std::uint32_t experts : {1u, 3u, 128u, 300u, 512u, 1024u})
    for (const std::uint32_t tokens : {0u, 1u, 3u, 17u, 100u, 1000u, 9001u})
      for (const std::uint32_t top_k : {1u, 4u, 7u}) {
        SCOPED_TRACE(fmt::format("{} experts, {} tokens, {} choices", experts, tokens, top_k));
        const auto ids = random_ids(std::size_t{tokens} * top_k, experts, tokens + top_k);
        const Memory on_device = upload(ids);
        SortParams params{.experts = experts};
        params.call.tokens = tokens;
        params.call.top_k = top_k;
        params.call.ids = on_device.as<std::int32_t>();
        std::vector<std::int32_t> local = ids;
        for (std::int32_t& id : local)
          if (id >= static_cast<std::int32_t>(experts)) id = -1;
        expect_sorted(params, local);
      }
}

TEST_F(Sort, CutsManyTokensOfOneExpertIntoEvenTiles) {
  for (const std::uint32_t tile_tokens : {32u, 64u, 128u})
    for (const std::uint32_t count : {1u, 8u, 33u, 127u, 128u, 129u, 257u, 1000u, 60000u}) {
      SCOPED_TRACE(fmt::format("{} of at most {}", count, tile_tokens));
      const std::vector<std::int32_t> ids(count, 5);
      const Memory on_device = upload(ids);
      SortParams params{.experts = 7, .tile_tokens = tile_tokens};
      params.call.tokens = count;
      params.call.top_k = 1;
      params.call.ids = on_device.as<std::int32_t>();
      expect_sorted(params, ids);
    }
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
