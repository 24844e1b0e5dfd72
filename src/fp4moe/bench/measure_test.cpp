#include "fp4moe/bench/measure.hpp"

#include <atomic>
#include <vector>

#include <gtest/gtest.h>

namespace fp4moe::bench {
namespace measure_test {

TEST(Summarize, GivesMedianAndTenths) {
  std::vector<Sample> samples;
  for (int i = 100; i >= 0; --i) samples.push_back({.us = static_cast<double>(i)});

  const Timing timing = summarize(samples, 5000);

  EXPECT_DOUBLE_EQ(timing.us_median, 50);
  EXPECT_DOUBLE_EQ(timing.us_p10, 10);
  EXPECT_DOUBLE_EQ(timing.us_p90, 90);
  EXPECT_DOUBLE_EQ(timing.rate(), 0.1);  // 5000 in 50 us
  EXPECT_EQ(timing.rounds, 101u);
}

TEST(Summarize, LiesBetweenTheTwoMiddleTimes) {
  const Sample four[] = {{1}, {2}, {4}, {8}};
  const Sample one[] = {{7}};
  EXPECT_DOUBLE_EQ(summarize(four, 1).us_median, 3);
  EXPECT_DOUBLE_EQ(summarize(one, 1).us_p90, 7);
}

TEST(Summarize, LeavesDisturbedRoundsOutWhenEnoughAreLeft) {
  const Sample samples[] = {{1}, {100, true}, {2}, {100, true}, {3}};

  EXPECT_DOUBLE_EQ(summarize(samples, 1, 3).us_median, 2);
  EXPECT_DOUBLE_EQ(summarize(samples, 1, 4).us_median, 3);  // too few: all count
  EXPECT_EQ(summarize(samples, 1, 3).disturbed, 2u);
}

TEST(Summarize, HasNoRateWithoutTimes) { EXPECT_EQ(summarize({}, 1).rate(), 0); }

TEST(Measure, RunsEveryJobOncePerRoundInterleaved) {
  std::vector<int> order;
  const Job jobs[] = {{"a", 1,
                       [&order]() -> Result<Done> {
                         order.push_back(1);
                         return Done{};
                       }},
                      {"b", 1, [&order]() -> Result<Done> {
                         order.push_back(2);
                         return Done{};
                       }}};

  const auto timings = measure(jobs, {.min = 3, .max = 3});

  ASSERT_TRUE(timings);
  EXPECT_EQ(timings->size(), 2u);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 1, 2, 1, 2, 1, 2}));  // one round to warm up
}

TEST(Measure, StopsAtTheFirstError) {
  int runs = 0;
  const Job jobs[] = {{"fails", 1, [&runs]() -> Result<Done> {
                         if (++runs == 3)
                           return error(ErrorCode::failed, "test.third", "third run");
                         return Done{};
                       }}};

  const auto timings = measure(jobs, {.min = 9, .max = 9});

  ASSERT_FALSE(timings);
  EXPECT_EQ(timings.why().id, "test.third");
  EXPECT_EQ(runs, 3);
}

TEST(InParts, CoversEverythingOnceInMultiplesOfTheGrain) {
  for (const std::size_t count : {0u, 1u, 63u, 64u, 65u, 1000u})
    for (const std::size_t threads : {1u, 3u}) {
      std::vector<std::atomic<int>> touched(count);
      const auto done = in_parts(threads, count, 64, [&](std::size_t first, std::size_t part) {
        EXPECT_EQ(first % 64, 0u);
        for (std::size_t i = first; i < first + part; ++i) ++touched[i];
      });
      ASSERT_TRUE(done);
      for (const auto& times : touched) EXPECT_EQ(times, 1);
    }
}

TEST(Rounded, KeepsThreeDigits) { EXPECT_DOUBLE_EQ(rounded(1.23456), 1.235); }

}  // namespace measure_test
}  // namespace fp4moe::bench
