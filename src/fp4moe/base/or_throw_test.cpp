#include "fp4moe/base/or_throw.hpp"

#include <memory>
#include <string>

#include <gtest/gtest.h>

namespace fp4moe {
namespace or_throw_test {

TEST(OrThrow, GivesTheValue) {
  EXPECT_EQ(or_throw(Result<int>(7)), 7);
  const auto moved = or_throw(Result<std::unique_ptr<int>>(std::make_unique<int>(8)));
  EXPECT_EQ(*moved, 8);
}

TEST(OrThrow, ThrowsTheErrorWithItsWords) {
  try {
    or_throw(Result<Done>(usage("some.id", "no such thing").expects("a thing", "none")));
    FAIL();
  } catch (const ErrorThrown& thrown) {
    EXPECT_EQ(thrown.why().id, "some.id");
    EXPECT_EQ(thrown.what(), text(thrown.why()));
    EXPECT_NE(std::string(thrown.what()).find("no such thing"), std::string::npos);
  }
}

}  // namespace or_throw_test
}  // namespace fp4moe
