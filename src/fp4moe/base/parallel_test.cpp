#include "fp4moe/base/parallel.hpp"

#include <atomic>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/limits.hpp"

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

TEST(ParallelFor, DoesWithFewerThreadsWhenThereIsNoMemoryForMore) {
  if (!testing::has_own_memory()) GTEST_SKIP() << "a sanitizer needs all address space";
  const int status = testing::status_in_child([] {
    testing::limit_memory(3 << 20);  // less than a stack
    std::atomic<int> done{0};
    const Result<Done> all = parallel_for(64, 1000, [&](std::size_t) -> Result<Done> {
      ++done;
      return Done{};
    });
    return all && done == 1000 ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
}

TEST(RunTogether, RunsAllAtOnce) {
  for (const std::size_t count : {0u, 1u, 2u, 7u}) {
    std::atomic<std::size_t> there{0};
    std::vector<std::atomic<int>> calls(count);
    ASSERT_TRUE(run_together(count, [&](std::size_t i) {
      ++calls[i];
      ++there;
      while (there < count) std::this_thread::yield();  // for all the others
    }));
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(calls[i], 1);
  }
}

TEST(RunTogether, CarriesWhatIsThrownToTheCallerOnceAllHaveEnded) {
  for (const std::size_t thrower : {0u, 3u}) {
    std::atomic<int> ended{0};
    EXPECT_THROW((void)run_together(4,
                                    [&](std::size_t i) {
                                      ++ended;
                                      if (i == thrower) throw std::bad_alloc();
                                    }),
                 std::bad_alloc);
    EXPECT_EQ(ended, 4);
  }
}

TEST(RunTogether, CallsNothingWhenThereAreNotEnoughThreads) {
  if (!testing::has_own_memory()) GTEST_SKIP() << "a sanitizer needs all address space";
  const int status = testing::status_in_child([] {
    testing::limit_memory(20 << 20);  // two stacks, not seven
    std::atomic<int> calls{0};
    const Result<Done> done = run_together(8, [&](std::size_t) { ++calls; });
    return !done && done.why().code == ErrorCode::exhausted && calls == 0 ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
}

TEST(AvailableThreads, AreAtLeastOne) { EXPECT_GE(available_threads(), 1u); }

}  // namespace parallel_test
}  // namespace fp4moe
