// Assignments there and back: the two forms of their order, the four ways to reduce rows, and the
// maps that say which experts are here.
#include "fp4moe/moe/permute.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/moe/expert_map.hpp"
#include "fp4moe/moe/reduce.hpp"

namespace fp4moe::moe {
namespace permute_test {

using formats::Bf16;
using Numbers = std::vector<std::int32_t>;
using checkpoint::Placement;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Numbers random_ids(std::size_t count, std::int32_t min, std::int32_t max, std::uint64_t seed) {
  SplitMix64 random(seed);
  Numbers ids(count);
  for (std::int32_t& id : ids)
    id = min + static_cast<std::int32_t>(random.next() % static_cast<std::uint64_t>(max - min));
  return ids;
}

// Assignments by expert, the plain way.
std::vector<Numbers> by_expert(const Assignments& assignments, bool maps) {
  std::vector<Numbers> result(assignments.experts);
  for (std::size_t assignment = 0; assignment < assignments.ids.size(); ++assignment) {
    std::int32_t id = assignments.ids[assignment];
    if (id < 0 || id >= static_cast<std::int32_t>(assignments.experts)) continue;
    if (maps && !assignments.expert_map.empty())
      id = assignments.expert_map[static_cast<std::size_t>(id)];
    if (id >= 0)
      result[static_cast<std::size_t>(id)].push_back(static_cast<std::int32_t>(assignment));
  }
  return result;
}

// Awkward sizes, alone and on one of two ranks.
template <class Check>
void for_many_assignments(const Check& check) {
  for (const std::size_t count : {0u, 1u, 7u, 64u, 9001u, 40000u})
    for (const std::uint64_t experts : {1u, 3u, 128u}) {
      const Numbers ids = random_ids(count, -2, static_cast<std::int32_t>(experts) + 2, count);
      check(Assignments{.ids = ids, .experts = experts});
      const auto map = expert_map(experts, {1, 2}, Placement::round_robin);
      check(Assignments{
          .ids = ids, .experts = experts, .expert_map = *map, .local_experts = experts / 2});
    }
}

TEST(AlignBlocks, AgreesWithThePlainWayWhateverTheThreads) {
  for_many_assignments([](const Assignments& assignments) {
    for (const std::uint64_t block : {1u, 4u, 16u})
      for (const bool ignores : {false, true})
        for (const std::size_t threads : {1u, 3u}) {
          ThreadPool pool(threads);
          BlockAligned out;
          ASSERT_TRUE(align_blocks(assignments, {block, ignores}, pool, out));
          const auto none = static_cast<std::int32_t>(assignments.ids.size());
          Numbers sorted, owners;
          const std::vector<Numbers> lists = by_expert(assignments, ignores);
          for (std::size_t e = 0; e < lists.size(); ++e) {
            for (std::size_t i = 0; i < lists[e].size(); i += block)
              owners.push_back(ignores || assignments.expert_map.empty()
                                   ? static_cast<std::int32_t>(e)
                                   : assignments.expert_map[e]);
            sorted.insert(sorted.end(), lists[e].begin(), lists[e].end());
            while (sorted.size() % block != 0) sorted.push_back(none);
          }
          ASSERT_EQ(out.used, sorted.size());
          ASSERT_LE(out.used, out.sorted_assignments.size());
          ASSERT_EQ(out.sorted_assignments.size(),
                    block_capacity(assignments.ids.size(), assignments.experts, block));
          sorted.resize(out.sorted_assignments.size(), none);
          owners.resize(out.expert_ids.size(), -1);
          ASSERT_EQ(out.sorted_assignments, sorted);
          ASSERT_EQ(out.expert_ids, owners);
        }
  });
}

TEST(AlignBlocks, HasRoomForAnyDistribution) {
  ThreadPool pool(1);
  for (const std::int32_t expert : {0, 7}) {
    BlockAligned out;
    const Numbers ids(5, expert);
    ASSERT_TRUE(align_blocks({.ids = ids, .experts = 8}, {.block = 4}, pool, out));
    EXPECT_EQ(out.sorted_assignments.size(),
              20u);  // fewer assignments than experts: a block each at most
    EXPECT_EQ(out.used, 8u);
  }
}

TEST(AlignBlocks, RefusesWhatCannotBe) {
  ThreadPool pool(1);
  BlockAligned out;
  const Numbers ids(4), map(3);
  EXPECT_EQ(align_blocks({.ids = ids}, {}, pool, out).why().id, "permute.experts");
  EXPECT_EQ(align_blocks({.ids = ids, .experts = 2, .local_experts = 3}, {}, pool, out).why().id,
            "permute.experts");
  EXPECT_EQ(align_blocks({.ids = ids, .experts = 2, .expert_map = map}, {}, pool, out).why().id,
            "permute.map");
  EXPECT_EQ(align_blocks({.ids = ids, .experts = 2}, {.block = 0}, pool, out).why().id,
            "permute.block");
  EXPECT_EQ(align_blocks({.ids = ids, .experts = 1 << 20}, {.block = 65536}, pool, out).why().id,
            "permute.slots");
}

TEST(GroupAssignments, AgreesWithThePlainWayWhateverTheThreads) {
  for_many_assignments([](const Assignments& assignments) {
    const std::vector<Numbers> lists = by_expert(assignments, true);
    const auto none = static_cast<std::int32_t>(assignments.ids.size());
    for (const std::size_t threads : {1u, 3u}) {
      ThreadPool pool(threads);
      Grouped out;
      ASSERT_TRUE(group_assignments(assignments, pool, out));
      std::int64_t at = 0;
      for (std::size_t e = 0; e + 1 < out.offsets.size(); ++e) {
        ASSERT_EQ(out.offsets[e], at);
        for (const std::int32_t assignment : lists[e]) {
          ASSERT_EQ(out.assignment_of_row[static_cast<std::size_t>(at)], assignment);
          ASSERT_EQ(out.row_of_assignment[static_cast<std::size_t>(assignment)], at);
          ++at;
        }
      }
      ASSERT_EQ(out.offsets.back(), at);
      Numbers rows = out.row_of_assignment;
      std::ranges::sort(rows);
      for (std::size_t i = 0; i < rows.size(); ++i)
        ASSERT_EQ(rows[i], static_cast<std::int32_t>(i));
      for (std::size_t row = out.valid(); row < out.assignment_of_row.size(); ++row)
        ASSERT_EQ(out.assignment_of_row[row], none);
    }
  });
}

// [rows, columns] of small whole numbers, as float32 or bf16.
struct Matrix {
  DType dtype = DType::f32;
  std::uint64_t rows = 0, columns = 0;
  std::vector<float> wide{};
  std::vector<std::uint16_t> narrow{};

  float at(std::uint64_t row, std::uint64_t column) const {
    const std::uint64_t i = row * columns + column;
    return dtype == DType::f32 ? wide[i] : Bf16::decode(narrow[i]);
  }
  void set(std::uint64_t row, std::uint64_t column, float value) {
    const std::uint64_t i = row * columns + column;
    if (dtype == DType::f32)
      wide[i] = value;
    else
      narrow[i] = Bf16::encode(value);
  }
  MutableRows view() {
    return dtype == DType::f32 ? dense_rows(std::span(wide), dtype, rows, columns)
                               : dense_rows(std::span(narrow), dtype, rows, columns);
  }
};
Matrix matrix(DType dtype, std::uint64_t rows, std::uint64_t columns, float value) {
  Matrix result{dtype, rows, columns};
  result.wide.resize(dtype == DType::f32 ? rows * columns : 0);
  result.narrow.resize(dtype == DType::f32 ? 0 : rows * columns);
  for (std::uint64_t r = 0; r < rows; ++r)
    for (std::uint64_t c = 0; c < columns; ++c) result.set(r, c, value);
  return result;
}
void fill_randomly(Matrix& result, std::uint64_t seed) {
  SplitMix64 random(seed);
  for (std::uint64_t r = 0; r < result.rows; ++r)
    for (std::uint64_t c = 0; c < result.columns; ++c) result.set(r, c, 4 * random.unit() - 2);
}
float rounded(DType dtype, float value) {
  return dtype == DType::f32 ? value : Bf16::decode(Bf16::encode(value));
}

constexpr std::uint64_t kTokens = 19, kTop = 4, kExperts = 6, kWide = 520;

struct Chosen {
  Numbers ids = random_ids(kTokens * kTop, -1, kExperts + 1, 4);
  std::vector<float> weights = std::vector<float>(kTokens * kTop);
  Chosen() {
    SplitMix64 random(8);
    for (float& weight : weights) weight = random.unit();
    std::fill_n(ids.begin(), kTop, -1);        // an unassigned token
    std::fill_n(ids.begin() + kTop, kTop, 3);  // four times the same
  }
};

TEST(Reduce, ContiguousSumsAssignmentsAndSkipsUnassigned) {
  const Chosen chosen;
  const Numbers map{0, -1, 1, 2, -1, 3};
  ThreadPool pool(2);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool on_input : {false, true}) {
      Matrix rows = matrix(dtype, kTokens * kTop, kWide, kNan),
             out = matrix(dtype, kTokens, kWide, kNan);
      fill_randomly(rows, 3);
      const auto is_ours = [&](std::uint64_t assignment) {
        const std::int32_t id = chosen.ids[assignment];
        return id >= 0 && id < static_cast<std::int32_t>(kExperts) &&
               map[static_cast<std::size_t>(id)] >= 0;
      };
      for (std::uint64_t assignment = 0; assignment < rows.rows; ++assignment)
        for (std::uint64_t c = 0; c < kWide && !is_ours(assignment); ++c)
          rows.set(assignment, c, kNan);
      ReduceInput input{.rows = rows.view(), .top_k = kTop, .ids = chosen.ids};
      input.weights = on_input ? std::span<const float>() : chosen.weights;
      input.experts = kExperts;
      input.expert_map = map;
      ASSERT_TRUE(weigh_and_reduce(ReducePolicy::contiguous, input, pool, out.view()));
      for (std::uint64_t t = 0; t < kTokens; ++t)
        for (std::uint64_t c = 0; c < kWide; ++c) {
          float sum = 0;
          for (std::uint64_t assignment = t * kTop; assignment < (t + 1) * kTop; ++assignment)
            if (is_ours(assignment))
              sum += on_input ? rows.at(assignment, c)
                              : rounded(dtype, chosen.weights[assignment] * rows.at(assignment, c));
          ASSERT_EQ(out.at(t, c), rounded(dtype, sum));
        }
      EXPECT_EQ(out.at(0, 0), 0);
    }
}

TEST(Reduce, BatchesAreAddedExpertByExpert) {
  const Chosen chosen;
  constexpr std::uint64_t kLocal = 3, kFirst = 3, kCapacity = kTokens;
  ThreadPool pool(2);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Matrix rows = matrix(dtype, kLocal * kCapacity, kWide, 0),
           out = matrix(dtype, kTokens, kWide, kNan);
    fill_randomly(rows, 5);
    Matrix expected = matrix(dtype, kTokens, kWide, 0);
    for (std::uint64_t e = 0; e < kLocal; ++e) {
      std::uint64_t next = e * kCapacity;
      for (std::uint64_t t = 0; t < kTokens; ++t) {
        float weight = 0;
        bool is_chosen = false;
        for (std::uint64_t assignment = t * kTop; assignment < (t + 1) * kTop; ++assignment) {
          if (chosen.ids[assignment] != static_cast<std::int32_t>(kFirst + e)) continue;
          weight += chosen.weights[assignment];
          is_chosen = true;
        }
        if (!is_chosen) continue;
        for (std::uint64_t c = 0; c < kWide; ++c)
          expected.set(t, c, expected.at(t, c) + rounded(dtype, weight * rows.at(next, c)));
        ++next;
      }
      for (; next < (e + 1) * kCapacity; ++next)  // rows past the count are anything
        for (std::uint64_t c = 0; c < kWide; ++c) rows.set(next, c, kNan);
    }
    ReduceInput input{.rows = rows.view(), .top_k = kTop, .ids = chosen.ids};
    input.weights = chosen.weights;
    input.experts = kExperts;
    input.capacity = kCapacity;
    input.first_expert = kFirst;
    input.local_experts = kLocal;
    ASSERT_TRUE(weigh_and_reduce(ReducePolicy::naive_batched, input, pool, out.view()));
    for (std::uint64_t t = 0; t < kTokens; ++t)
      for (std::uint64_t c = 0; c < kWide; ++c) ASSERT_EQ(out.at(t, c), expected.at(t, c));

    input.capacity = 1;
    EXPECT_EQ(weigh_and_reduce(ReducePolicy::naive_batched, input, pool, out.view()).why().id,
              "reduce.batch");
    input.capacity = kCapacity + 1;
    EXPECT_EQ(weigh_and_reduce(ReducePolicy::naive_batched, input, pool, out.view()).why().id,
              "reduce.sizes");
  }
}

TEST(Reduce, NoOpCopiesAndDelegateIsAnError) {
  ThreadPool pool(1);
  Matrix rows = matrix(DType::f32, 3, kWide, 0), out = matrix(DType::f32, 3, kWide, kNan);
  Matrix narrow = matrix(DType::bf16, 3, kWide, 0), few = matrix(DType::f32, 2, kWide, 0);
  fill_randomly(rows, 9);
  ASSERT_TRUE(weigh_and_reduce(ReducePolicy::noop, {.rows = rows.view()}, pool, out.view()));
  EXPECT_EQ(out.wide, rows.wide);
  ASSERT_TRUE(weigh_and_reduce(ReducePolicy::noop, {.rows = rows.view()}, pool, narrow.view()));
  EXPECT_EQ(narrow.at(1, 7), rounded(DType::bf16, rows.at(1, 7)));
  ASSERT_TRUE(weigh_and_reduce(ReducePolicy::noop, {.rows = out.view()}, pool, out.view()));
  EXPECT_EQ(out.wide, rows.wide);
  EXPECT_EQ(weigh_and_reduce(ReducePolicy::noop, {.rows = few.view()}, pool, out.view()).why().id,
            "reduce.sizes");
  const Error why =
      weigh_and_reduce(ReducePolicy::delegate, {.rows = rows.view()}, pool, out.view()).why();
  EXPECT_EQ(why.id, "reduce.delegate");
  EXPECT_FALSE(why.remedy.empty());
}

TEST(Reduce, RefusesSizesThatDisagree) {
  ThreadPool pool(1);
  const Numbers ids(6), map(1);
  const std::vector<float> weights(5);
  Matrix rows = matrix(DType::f32, 6, 8, 0), out = matrix(DType::f32, 3, 8, 0);
  const auto id = [&](ReduceInput input) {
    input.rows = rows.view();
    input.experts = 2;
    const Result<Done> done = weigh_and_reduce(ReducePolicy::contiguous, input, pool, out.view());
    return done ? std::string() : done.why().id;
  };
  EXPECT_EQ(id({.top_k = 2, .ids = ids}), "");
  EXPECT_EQ(id({.top_k = 3, .ids = ids}), "reduce.sizes");
  EXPECT_EQ(id({.top_k = 0, .ids = ids}), "reduce.sizes");
  EXPECT_EQ(id({.top_k = 2, .ids = ids, .weights = weights}), "reduce.sizes");
  EXPECT_EQ(id({.top_k = 2, .ids = ids, .expert_map = map}), "reduce.sizes");
}

TEST(ExpertMap, SaysWhoIsHere) {
  EXPECT_EQ(*expert_map(10, {1, 4}, Placement::linear),
            (Numbers{-1, -1, -1, 0, 1, 2, -1, -1, -1, -1}));
  EXPECT_EQ(*expert_map(5, {1, 2}, Placement::round_robin), (Numbers{-1, 0, -1, 1, -1}));
  EXPECT_EQ(expert_map(0, {0, 1}, Placement::linear).why().id, "expert_map.experts");
  EXPECT_EQ(expert_map(4, {2, 2}, Placement::linear).why().id, "slice.rank");
}

TEST(ExpertMap, DispatchNumbersFollowTheFormula) {
  for (const std::uint64_t experts : {1u, 8u, 10u, 13u})
    for (const std::uint64_t ranks : {1u, 2u, 4u, 20u}) {
      const Numbers numbers = *dispatch_numbers(experts, ranks);
      for (std::uint64_t g = 0; g < experts; ++g) {
        const std::uint64_t rank = g % ranks;
        EXPECT_EQ(static_cast<std::uint64_t>(numbers[g]),
                  rank * (experts / ranks) + std::min(rank, experts % ranks) + g / ranks);
      }
    }
  EXPECT_EQ(dispatch_numbers(4, 0).why().id, "expert_map.ranks");
}

TEST(ExpertMap, RoundRobinIsHonoredWhereItCanBe) {
  PlacementCase asked{.asked = Placement::round_robin, .expert_groups = 8};
  EXPECT_EQ(choose_placement(asked).placement, Placement::round_robin);
  asked.uses_all2all = true;
  EXPECT_EQ(choose_placement(asked).placement, Placement::linear);
  EXPECT_FALSE(choose_placement(asked).warning.empty());
  asked.renumbers_for_dispatch = true;
  EXPECT_EQ(choose_placement(asked).placement, Placement::round_robin);
  for (const auto change : {+[](PlacementCase& one) { one.expert_groups = 1; },
                            +[](PlacementCase& one) { one.has_redundant_experts = true; },
                            +[](PlacementCase& one) { one.has_eplb = true; }}) {
    PlacementCase changed = asked;
    change(changed);
    EXPECT_EQ(choose_placement(changed).placement, Placement::linear);
  }
  EXPECT_TRUE(choose_placement({}).warning.empty());
}

TEST(Replicas, CopiesAreFoundAndLoadsCounted) {
  const auto logical = initial_physical_experts(3, 2);
  ASSERT_TRUE(logical);
  EXPECT_EQ(*logical, (Numbers{0, 1, 2, 0, 1}));
  const auto table = replica_table(3, *logical);
  ASSERT_TRUE(table);
  EXPECT_EQ(table->physical_of, (Numbers{0, 3, 1, 4, 2, -1}));
  EXPECT_EQ(table->replicas, (Numbers{2, 2, 1}));

  Numbers ids{0, 2, 0, 1, 0, -1, 0, 7};
  std::vector<std::int64_t> loads(5);
  const std::vector<std::uint8_t> padding{0, 0, 0, 1};
  ASSERT_TRUE(map_to_physical(*table, {ids, 2, loads, padding}));
  // 2654435769 is odd: tokens alternate between two copies.
  EXPECT_EQ(ids, (Numbers{0, 2, 3, 4, 0, -1, 3, -1}));
  EXPECT_EQ(loads, (std::vector<std::int64_t>{2, 0, 1, 1, 1}));
}

TEST(Replicas, RefusesTablesThatLeaveExpertsOut) {
  EXPECT_EQ(replica_table(3, Numbers{0, 1, 1}).why().id, "eplb.table");
  EXPECT_EQ(replica_table(3, Numbers{0, 1, 3}).why().id, "eplb.table");
  EXPECT_EQ(initial_physical_experts(4, 1 << 20).why().id, "expert_map.experts");
  const ReplicaTable good{.experts = 2,
                          .physical = 3,
                          .max_replicas = 2,
                          .physical_of = {0, 2, 1, -1},
                          .replicas = {2, 1}};
  ASSERT_TRUE(replica_table(good));
  const auto refused = [&](auto change) {
    ReplicaTable table = good;
    change(table);
    const Result<ReplicaTable> result = replica_table(table);
    return result ? std::string() : result.why().id;
  };
  EXPECT_EQ(refused([](auto& t) { t.max_replicas = 0; }), "eplb.table");
  EXPECT_EQ(refused([](auto& t) { t.replicas = {2}; }), "eplb.table");
  EXPECT_EQ(refused([](auto& t) { t.replicas = {3, 1}; }), "eplb.table");
  EXPECT_EQ(refused([](auto& t) { t.replicas = {2, 0}; }), "eplb.table");
  EXPECT_EQ(refused([](auto& t) { t.replicas = {2, 2}; }), "eplb.table");
  EXPECT_EQ(refused([](auto& t) { t.physical = 2; }), "eplb.table");
  Numbers ids(4);
  std::vector<std::int64_t> loads(2);
  EXPECT_EQ(map_to_physical(good, {ids, 2, loads, {}}).why().id, "eplb.sizes");
  EXPECT_EQ(map_to_physical(good, {ids, 3, {}, {}}).why().id, "eplb.sizes");
}

}  // namespace permute_test
}  // namespace fp4moe::moe
