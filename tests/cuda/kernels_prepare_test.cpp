#include <fmt/format.h>

#include "kernels.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace kernels_prepare_test {

// Ids of `tokens` x `top_k` assignments; some are -1, or of no expert.
std::vector<std::int32_t> random_ids(std::size_t assignments, std::uint32_t experts,
                                     std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::int32_t> result(assignments);
  for (std::int32_t& id : result) {
    const std::uint64_t kind = random.next() % 16;
    id = static_cast<std::int32_t>(random.next() % experts);
    if (kind == 0) id = -1;
    if (kind == 1) id += static_cast<std::int32_t>(experts);
  }
  return result;
}

class Ranks : public OnDevice {
 protected:
  // Runs prepare on a call whose assignments have these local experts: every assignment gets its
  // expert and a rank of its own among the assignments of that expert.
  void expect_ranked(PrepareParams params,
                     const std::vector<std::int32_t>& experts_of_assignments) {
    const std::size_t assignments = experts_of_assignments.size(),
                      rounded = (assignments + 3) / 4 * 4;
    const std::uint32_t experts = params.layer.experts;
    const Memory ranks = upload(std::vector<std::int32_t>(rounded + 1, 5));
    const Memory expert_counts = upload(std::vector<std::uint32_t>(experts * kCounterStride));
    params.tables.rank_of_assignment = ranks.as<std::int32_t>();
    params.tables.expert_counts = expert_counts.as<std::uint32_t>();
    params.rank_blocks = prepare_rank_blocks({}, assignments);
    run("fp4moe_sm90_prepare", params, {params.rank_blocks, kPrepareThreads, 0});
    const auto result = download<std::int32_t>(ranks, rounded + 1);
    const HostTables plain = host_tables(experts_of_assignments, experts);
    EXPECT_EQ(download<std::uint32_t>(expert_counts, experts * kCounterStride),
              plain.expert_counts);
    std::vector<std::vector<bool>> is_taken(experts);
    for (std::uint32_t e = 0; e < experts; ++e)
      is_taken[e].resize(plain.expert_counts[e * kCounterStride]);
    for (std::size_t assignment = 0; assignment < assignments; ++assignment) {
      if (experts_of_assignments[assignment] < 0) {
        ASSERT_EQ(result[assignment], -1) << assignment;
        continue;
      }
      ASSERT_GE(result[assignment], 0) << assignment;
      const std::uint32_t expert = packed_expert(result[assignment]),
                          rank = packed_rank(result[assignment]);
      ASSERT_EQ(static_cast<std::int32_t>(expert), experts_of_assignments[assignment])
          << assignment;
      ASSERT_LT(rank, is_taken[expert].size()) << assignment;
      ASSERT_FALSE(is_taken[expert][rank]) << assignment;
      is_taken[expert][rank] = true;
    }
    for (std::size_t assignment = assignments; assignment < rounded; ++assignment)
      EXPECT_EQ(result[assignment], -1) << assignment;
    EXPECT_EQ(result[rounded], 5);
  }
  // Ids that are positions, where they are experts' at all.
  void expect_ids_ranked(std::uint32_t experts, const std::vector<std::int32_t>& ids,
                         std::uint32_t top_k = 1) {
    SCOPED_TRACE(fmt::format("{} experts, {} assignments, {} choices", experts, ids.size(), top_k));
    const Memory on_device = upload(ids);
    PrepareParams params;
    params.layer.experts = experts;
    params.call.tokens = static_cast<std::uint32_t>(ids.size()) / top_k;
    params.call.top_k = top_k;
    params.call.ids = on_device.as<std::int32_t>();
    std::vector<std::int32_t> local = ids;
    for (std::int32_t& id : local)
      if (id >= static_cast<std::int32_t>(experts)) id = -1;
    expect_ranked(params, local);
  }
};

TEST_F(Ranks, AreTheRanksOfAssignmentsAmongThoseOfTheirExperts) {
  for (const std::uint32_t experts : {1u, 3u, 128u, 300u, 512u, 1024u})
    for (const std::uint32_t tokens : {1u, 3u, 17u, 31u, 100u, 1024u, 1025u, 5000u, 40000u})
      for (const std::uint32_t top_k : {1u, 4u, 7u})
        expect_ids_ranked(experts, random_ids(std::size_t{tokens} * top_k, experts, tokens + top_k),
                          top_k);
}

TEST_F(Ranks, AssignmentsToNoExpertHaveNone) {
  for (const std::uint32_t count : {1u, 1024u, 5001u}) expect_ids_ranked(3, std::vector(count, -1));
}

TEST_F(Ranks, TakeTheExpertsOfARankByRangeOrByMap) {
  const auto ids = random_ids(1200, 64, 9);
  std::vector<std::int32_t> map(64, -1);
  for (std::int32_t i = 0; i < 20; ++i) map[static_cast<std::size_t>(i) * 3 + 1] = 19 - i;
  map[0] = 20;  // no expert of this rank
  const Memory on_device = upload(ids), map_on_device = upload(map);
  PrepareParams params;
  params.layer.experts = 20;
  params.call.tokens = 300;
  params.call.top_k = 4;
  params.call.ids = on_device.as<std::int32_t>();

  std::vector<std::int32_t> local = ids;
  for (std::int32_t& id : local) id = id >= 30 && id < 50 ? id - 30 : -1;
  params.call.first_expert = 30;
  expect_ranked(params, local);

  for (std::size_t i = 0; i < ids.size(); ++i) {
    local[i] = ids[i] >= 0 && ids[i] < 64 ? map[static_cast<std::size_t>(ids[i])] : -1;
    if (local[i] == 20) local[i] = -1;
  }
  params.call.first_expert = 0;
  params.call.expert_map = map_on_device.as<std::int32_t>();
  params.call.map_size = 64;
  expect_ranked(params, local);
}

}  // namespace kernels_prepare_test
}  // namespace fp4moe::kernels::cuda::sm90
