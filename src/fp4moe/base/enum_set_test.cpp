#include "fp4moe/base/enum_set.hpp"

#include <gtest/gtest.h>

namespace fp4moe {
namespace enum_set_test {

enum class Color : std::uint8_t { red, green, last = 63 };

static_assert(EnumSet<Color>{Color::red}.contains(Color::red));

TEST(EnumSet, InsertsAndErases) {
  EnumSet<Color> set;
  EXPECT_TRUE(set.empty());
  set.insert(Color::last);
  set.insert(Color::red);
  EXPECT_TRUE(set.contains(Color::last));
  EXPECT_FALSE(set.contains(Color::green));
  set.erase(Color::last);
  set.erase(Color::green);
  EXPECT_EQ(set, EnumSet<Color>{Color::red});
}

TEST(EnumSet, KnowsItsSubsets) {
  const EnumSet<Color> both{Color::red, Color::last};
  EXPECT_TRUE(both.contains_all({Color::last}));
  EXPECT_TRUE(both.contains_all({}));
  EXPECT_FALSE(both.contains_all({Color::red, Color::green}));
}

}  // namespace enum_set_test
}  // namespace fp4moe
