#include "fp4moe/base/parallel.hpp"

#include <atomic>
#include <new>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace fp4moe {
namespace parallel_test {

TEST(ParallelFor, DoesEveryItemOnce) {
  for (const std::size_t threads : {0u, 1u, 2u, 8u}) {
    std::vector<std::atomic<int>> done(1000);
    ASSERT_TRUE(parallel_for(threads, done.size(), [&](std::size_t i) -> Result<Done> {
      ++done[i];
      return Done{};
    }));
    for (std::size_t i = 0; i < done.size(); ++i) EXPECT_EQ(done[i], 1) << i;
  }
}

TEST(ParallelFor, DoesNothingForNoItems) {
  EXPECT_TRUE(
      parallel_for(4, 0, [](std::size_t) -> Result<Done> { return usage("a.b", "never"); }));
}

TEST(ParallelFor, ReturnsTheErrorOfTheLowestFailedItem) {
  for (int round = 0; round < 50; ++round) {
    const Result<Done> result = parallel_for(8, 1000, [](std::size_t i) -> Result<Done> {
      if (i >= 100) return usage("a.b", std::to_string(i));
      return Done{};
    });
    ASSERT_FALSE(result);
    EXPECT_EQ(result.why().message, "100");
  }
}

TEST(ParallelFor, StopsAfterAFailure) {
  std::atomic<int> started{0};
  const Result<Done> result = parallel_for(1, 1000, [&](std::size_t i) -> Result<Done> {
    ++started;
    if (i == 10) return usage("a.b", "stop");
    return Done{};
  });
  EXPECT_FALSE(result);
  EXPECT_EQ(started, 11);
}

TEST(ParallelFor, CarriesMissingMemoryToTheCaller) {
  for (const std::size_t threads : {1u, 4u})
    EXPECT_THROW((void)parallel_for(threads, 100,
                                    [](std::size_t i) -> Result<Done> {
                                      if (i == 50) throw std::bad_alloc();
                                      return Done{};
                                    }),
                 std::bad_alloc);
}

TEST(AvailableThreads, AreAtLeastOne) { EXPECT_GE(available_threads(), 1u); }

}  // namespace parallel_test
}  // namespace fp4moe
