#include "fp4moe/base/checked.hpp"

#include <array>

#include <gtest/gtest.h>

namespace fp4moe {
namespace checked_test {

constexpr std::uint64_t kMax = UINT64_MAX;

TEST(Checked, AddsUntilItOverflows) {
  EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
  EXPECT_EQ(checked_add(kMax, 1), std::nullopt);
}

TEST(Checked, MultipliesUntilItOverflows) {
  EXPECT_EQ(checked_multiply(std::uint64_t{1} << 32, (std::uint64_t{1} << 32) - 1),
            (std::uint64_t{1} << 32) * ((std::uint64_t{1} << 32) - 1));
  EXPECT_EQ(checked_multiply(std::uint64_t{1} << 32, std::uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(checked_multiply(kMax, 0), 0u);
}

TEST(Checked, ProductOfNothingIsOne) { EXPECT_EQ(checked_product({}), 1u); }

TEST(Checked, AZeroAnywhereMakesTheProductZero) {
  const std::array<std::uint64_t, 3> last{kMax, kMax, 0};
  const std::array<std::uint64_t, 3> first{0, kMax, kMax};
  const std::array<std::uint64_t, 3> none{kMax, 2, 1};
  EXPECT_EQ(checked_product(last), 0u);
  EXPECT_EQ(checked_product(first), 0u);
  EXPECT_EQ(checked_product(none), std::nullopt);
}

TEST(Checked, DividesAndRoundsUp) {
  EXPECT_EQ(ceil_div(0, 8), 0u);
  EXPECT_EQ(ceil_div(1, 8), 1u);
  EXPECT_EQ(ceil_div(8, 8), 1u);
  EXPECT_EQ(ceil_div(kMax, 2), (std::uint64_t{1} << 63));
  EXPECT_EQ(round_up(0, 32), 0u);
  EXPECT_EQ(round_up(33, 32), 64u);
}

}  // namespace checked_test
}  // namespace fp4moe
