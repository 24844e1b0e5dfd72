#include "fp4moe/moe/routing/scores.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/moe/routing/select_largest.hpp"

namespace fp4moe::moe::routing {
namespace scores_test {

template <class Fast, class True>
double worst_error(Fast fast, True exact, float low, float high) {
  SplitMix64 random(7);
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const float x = low + (high - low) * random.unit();
    const double wanted = exact(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(fast(x)) - wanted) / wanted);
  }
  return worst;
}

TEST(RoutingScores, StayWithinTheirBounds) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto root = [](double x) { return std::sqrt(x > 40 ? x : std::log1p(std::exp(x))); };
  const auto exponential = [](double x) { return std::exp(x); };
  for (const float edge : {1.0f, 8.0f, kTamest}) {
    EXPECT_LT(worst_error(fast_exp, exponential, -edge, edge), 3e-7);
    EXPECT_LT(worst_error(fast_sigmoid, sigmoid, -edge, edge), error_bound(Score::sigmoid));
    EXPECT_LT(worst_error(tame_sqrt_softplus, root, -edge, edge),
              error_bound(Score::sqrt_softplus));
  }
}

TEST(RoutingScores, ExpOfAnythingIsAFiniteNumber) {
  for (const float x : {-1e30f, -200.0f, -87.5f, 89.0f, 3e38f}) {
    EXPECT_TRUE(std::isfinite(fast_exp(x))) << x;
    EXPECT_GT(fast_exp(x), 0) << x;
  }
  EXPECT_EQ(fast_exp(0), 1.0f);
}

TEST(SelectLargest, OrdersFloatsAsIntegers) {
  const float ordered_floats[] = {-INFINITY, -3e38f, -1.0f, -1e-45f, 0.0f, 1e-45f, 1.0f, INFINITY};
  for (std::size_t i = 0; i + 1 < std::size(ordered_floats); ++i) {
    EXPECT_LT(ordered(ordered_floats[i]), ordered(ordered_floats[i + 1]));
    EXPECT_EQ(from_ordered(ordered(ordered_floats[i])), ordered_floats[i]);
  }
  EXPECT_EQ(ordered(-0.0f), ordered(0.0f));
  EXPECT_GT(ordered(-INFINITY), kTaken);
}

TEST(SelectLargest, TakesInTheOrderOfAStableSort) {
  SplitMix64 random(3);
  for (const std::size_t count :
       {1u, 2u, 15u, 16u, 17u, 100u, 256u, 257u, 512u, 1000u, 1024u, 2000u}) {
    LargestSelector<2048> selector, again;
    std::vector<std::int32_t> keys(count), order(count);
    for (std::size_t i = 0; i < count; ++i) {
      keys[i] = selector.keys[i] = again.keys[i] = static_cast<std::int32_t>(random.next() % 9) - 4;
      order[i] = static_cast<std::int32_t>(i);
    }
    std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) {
      return keys[static_cast<std::size_t>(a)] > keys[static_cast<std::size_t>(b)];
    });
    selector.prepare(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int32_t next = selector.next_key();
      EXPECT_EQ(selector.take(next), order[i]);
    }
    EXPECT_EQ(selector.next_key(), kTaken);

    std::vector<std::int32_t> places(count), taken(count);
    again.prepare(count);
    again.take_many(count / 2, places.data(), taken.data());
    const std::size_t rest = count - count / 2;
    EXPECT_EQ(again.next_key(), keys[static_cast<std::size_t>(order[count / 2])]);
    again.take_many(rest, places.data() + count / 2, taken.data() + count / 2);
    EXPECT_EQ(places, order);
    for (std::size_t i = 0; i < count; ++i)
      EXPECT_EQ(taken[i], keys[static_cast<std::size_t>(order[i])]);
  }
}

}  // namespace scores_test
}  // namespace fp4moe::moe::routing
