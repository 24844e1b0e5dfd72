#include "fp4moe/base/thread_pool.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <vector>

#include <gtest/gtest.h>

#include "support/limits.hpp"

namespace fp4moe {
namespace thread_pool_test {

TEST(ThreadPool, DoesEveryItemOnce) {
  for (const std::size_t threads : {0u, 1u, 2u, 3u, 7u}) {
    ThreadPool pool(threads);
    for (const std::size_t count : {0u, 1u, 2u, 7u, 64u, 1001u}) {
      std::vector<std::atomic<int>> done(count);
      pool.run(count, [&](std::size_t i) { done[i].fetch_add(1); });
      for (const std::atomic<int>& times : done) EXPECT_EQ(times.load(), 1);
    }
  }
}

TEST(ThreadPool, RangesCoverEverythingAndCarryANumberOfTheirOwn) {
  ThreadPool pool(3);
  for (const std::size_t grain : {0u, 1u, 5u, 100u, 1000u}) {
    std::vector<int> done(503);
    std::vector<std::atomic<int>> inside(pool.threads());
    std::atomic<bool> shared{false};
    pool.run_ranges(done.size(), grain, [&](std::size_t begin, std::size_t end, std::size_t who) {
      if (inside[who].fetch_add(1) != 0) shared = true;
      for (std::size_t i = begin; i < end; ++i) ++done[i];
      inside[who].fetch_sub(1);
    });
    EXPECT_FALSE(shared);
    EXPECT_EQ(done, std::vector<int>(done.size(), 1));
  }
}

TEST(ThreadPool, StretchesCoverEverythingInOrderAndAreNoLongerThanSaid) {
  for (const bool pins : {false, true})
    for (const std::size_t threads : {1u, 2u, 5u}) {
      ThreadPool pool(threads, {.pins = pins});
      for (const std::size_t count : {0u, 1u, 3u, 64u, 1001u}) {
        std::vector<std::atomic<int>> done(count);
        std::atomic<std::size_t> longest{0};
        pool.run_stretches(count, [&](std::size_t begin, std::size_t end, std::size_t who) {
          EXPECT_LT(who, pool.threads());
          for (std::size_t seen = longest; end - begin > seen;)
            if (longest.compare_exchange_weak(seen, end - begin)) break;
          for (std::size_t i = begin; i < end; ++i) done[i].fetch_add(1);
        });
        EXPECT_LE(longest, pool.longest_stretch(count));
        for (const std::atomic<int>& times : done) EXPECT_EQ(times.load(), 1);
      }
    }
}

TEST(ThreadPool, TakesManySmallJobsInARow) {
  ThreadPool pool(4);
  std::uint64_t plain = 0;  // written by one item at a time: the end of a run is a border
  for (int job = 0; job < 3000; ++job) {
    std::array<std::uint64_t, 8> parts{};
    pool.run_ranges(parts.size(), 1, [&](std::size_t begin, std::size_t, std::size_t) {
      parts[begin] = plain + begin;
    });
    for (const std::uint64_t part : parts) plain = (plain + part) % 1000003;
  }
  std::uint64_t expected = 0;
  for (int job = 0; job < 3000; ++job) {
    std::array<std::uint64_t, 8> parts{};
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = expected + i;
    for (const std::uint64_t part : parts) expected = (expected + part) % 1000003;
  }
  EXPECT_EQ(plain, expected);
}

TEST(ThreadPool, ARunInsideARunIsDoneByItsCaller) {
  ThreadPool pool(3);
  std::atomic<int> sum{0};
  pool.run(20, [&](std::size_t) {
    const std::thread::id me = std::this_thread::get_id();
    pool.run(10, [&](std::size_t) {
      if (std::this_thread::get_id() == me) sum.fetch_add(1);
    });
  });
  EXPECT_EQ(sum.load(), 200);
}

TEST(ThreadPool, TwoCallersDoNotDisturbEachOther) {
  ThreadPool pool(3);
  const auto work = [&pool](std::vector<int>& mine) {
    for (int job = 0; job < 300; ++job) pool.run(mine.size(), [&](std::size_t i) { ++mine[i]; });
  };
  std::vector<int> one(50), two(70);
  std::thread other([&] { work(two); });
  work(one);
  other.join();
  EXPECT_EQ(one, std::vector<int>(50, 300));
  EXPECT_EQ(two, std::vector<int>(70, 300));
}

TEST(ThreadPool, SleepingWorkersAreWokenAndLetGo) {
  for (int pools = 0; pools < 20; ++pools) {
    ThreadPool pool(3);
    for (int spin = 0; spin < 200; ++spin) std::this_thread::yield();  // some are asleep by now
    std::atomic<int> done{0};
    pool.run(100, [&](std::size_t) { done.fetch_add(1); });
    EXPECT_EQ(done.load(), 100);
  }
}

TEST(ThreadPool, CarriesWhatIsThrownToTheCallerAndGoesOn) {
  for (const std::size_t threads : {1u, 4u}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 20; ++round) {
      EXPECT_THROW(pool.run(100,
                            [](std::size_t i) {
                              if (i % 40 == 39) throw std::bad_alloc();
                            }),
                   std::bad_alloc);
      EXPECT_THROW(pool.run_stretches(
                       1000, [](std::size_t, std::size_t, std::size_t) { throw std::bad_alloc(); }),
                   std::bad_alloc);
      std::atomic<int> done{0};
      pool.run(100, [&](std::size_t) { ++done; });
      EXPECT_EQ(done, 100);
    }
  }
}

// A team of threads of their own for every call.
void team(void (*work)(void*), void* data, unsigned threads, unsigned) {
  std::vector<std::thread> others;
  for (unsigned i = 1; i < threads; ++i) others.emplace_back(work, data);
  work(data);
  for (std::thread& other : others) other.join();
}
// One that has fewer than it is asked for, as OpenMP's inside a parallel region of another's.
void lonely_team(void (*work)(void*), void* data, unsigned, unsigned) { work(data); }

TEST(ThreadPool, BorrowsTheThreadsOfATeam) {
  for (const ThreadPool::Team lent : {&team, &lonely_team})
    for (const std::size_t threads : {0u, 1u, 4u}) {
      ThreadPool pool(threads, {.team = lent});
      EXPECT_EQ(pool.threads(), std::max<std::size_t>(1, threads));
      for (const std::size_t count : {0u, 1u, 7u, 1001u}) {
        std::vector<std::atomic<int>> done(count), inside(pool.threads());
        std::atomic<bool> shared{false};
        pool.run_ranges(count, 3, [&](std::size_t begin, std::size_t end, std::size_t who) {
          if (inside[who].fetch_add(1) != 0) shared = true;
          for (std::size_t i = begin; i < end; ++i) done[i].fetch_add(1);
          inside[who].fetch_sub(1);
        });
        pool.run_stretches(count, [&](std::size_t begin, std::size_t end, std::size_t) {
          for (std::size_t i = begin; i < end; ++i) done[i].fetch_add(1);
        });
        EXPECT_FALSE(shared);
        for (const std::atomic<int>& times : done) EXPECT_EQ(times.load(), 2);
      }
    }
}

TEST(ThreadPool, ATeamHasWorkOfOneCallerAtATime) {
  ThreadPool pool(3, {.team = &team});
  std::atomic<int> sum{0}, inner{0};
  pool.run(20, [&](std::size_t) {
    sum.fetch_add(1);
    const std::thread::id me = std::this_thread::get_id();
    pool.run(10, [&](std::size_t) {
      if (std::this_thread::get_id() == me) inner.fetch_add(1);
    });
  });
  EXPECT_EQ(sum.load(), 20);
  EXPECT_EQ(inner.load(), 200);
}

// No exception leaves the work that a team calls: it may be of another language.
TEST(ThreadPool, WhatIsThrownOnATeamReachesTheCaller) {
  ThreadPool pool(4, {.team = &team});
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.run(100,
                          [](std::size_t i) {
                            if (i % 40 == 39) throw std::bad_alloc();
                          }),
                 std::bad_alloc);
    std::atomic<int> done{0};
    pool.run(100, [&](std::size_t) { ++done; });
    EXPECT_EQ(done, 100);
  }
}

TEST(ThreadPool, HasFewerThreadsWhereThereIsNoMemoryForMore) {
  if (!testing::has_own_memory()) GTEST_SKIP() << "a sanitizer needs all address space";
  const int status = testing::status_in_child([] {
    testing::limit_memory(20 << 20);  // two stacks
    ThreadPool pool(64);
    std::atomic<int> done{0};
    pool.run(1000, [&](std::size_t) { ++done; });
    return pool.threads() < 64 && done == 1000 ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
}

}  // namespace thread_pool_test
}  // namespace fp4moe
