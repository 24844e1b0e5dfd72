#include "fp4moe/base/enum_set.hpp"

#include <gtest/gtest.h>

namespace fp4moe {
namespace enum_set_test {

enum class Colour : std::uint8_t { red, green, last = 63 };

static_assert(EnumSet<Colour>{Colour::red}.contains(Colour::red));

TEST(EnumSet, InsertsAndErases) {
  EnumSet<Colour> set;
  EXPECT_TRUE(set.empty());
  set.insert(Colour::last);
  set.insert(Colour::red);
  EXPECT_TRUE(set.contains(Colour::last));
  EXPECT_FALSE(set.contains(Colour::green));
  set.erase(Colour::last);
  set.erase(Colour::green);
  EXPECT_EQ(set, EnumSet<Colour>{Colour::red});
}

TEST(EnumSet, KnowsItsSubsets) {
  const EnumSet<Colour> both{Colour::red, Colour::last};
  EXPECT_TRUE(both.contains_all({Colour::last}));
  EXPECT_TRUE(both.contains_all({}));
  EXPECT_FALSE(both.contains_all({Colour::red, Colour::green}));
}

}  // namespace enum_set_test
}  // namespace fp4moe
