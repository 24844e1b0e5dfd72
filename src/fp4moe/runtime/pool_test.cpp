#include "fp4moe/runtime/pool.hpp"

#include <gtest/gtest.h>

namespace fp4moe::runtime {
namespace pool_test {

TEST(Pools, LayersWithAsManyThreadsShareThemWhileAnyHoldsThem) {
  Pools pools;
  auto first = pools.get(3);
  EXPECT_EQ(first->threads(), 3u);
  EXPECT_EQ(pools.get(3), first);
  EXPECT_NE(pools.get(2), first);
  const std::weak_ptr<ThreadPool> seen = first;
  first.reset();
  EXPECT_TRUE(seen.expired());
  EXPECT_EQ(pools.get(3)->threads(), 3u);
}

TEST(Pools, ThreadsOfATeamAreAPoolOfTheirOwn) {
  const ThreadPool::Team team = [](void (*work)(void*), void* data, unsigned, unsigned) {
    work(data);
  };
  Pools pools;
  const auto own = pools.get(3), borrowed = pools.get(3, team);
  EXPECT_NE(own, borrowed);
  EXPECT_FALSE(own->is_borrowed());
  EXPECT_TRUE(borrowed->is_borrowed());
  EXPECT_EQ(pools.get(3, team), borrowed);
}

TEST(Pools, NoNumberMeansAllThatThisProcessMayUse) {
  Pools pools;
  EXPECT_GE(pools.get(0)->threads(), 1u);
}

}  // namespace pool_test
}  // namespace fp4moe::runtime
