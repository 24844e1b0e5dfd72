#include "fp4moe/cli/progress.hpp"

#include <gtest/gtest.h>

namespace fp4moe::cli {
namespace progress_test {

constexpr ProgressState kHalf{
    .title = "convert", .done = 3'000'000'000, .total = 6'000'000'000, .seconds = 12};

TEST(ProgressLine, SaysEverythingWhereThereIsRoom) {
  EXPECT_EQ(
      progress_line(kHalf, 0),
      "convert [===============               ]  50% 2.79 GiB of 5.59 GiB, 238.42 MiB/s, 12 s "
      "left");
}

TEST(ProgressLine, FitsEveryTerminal) {
  for (std::size_t columns = 2; columns < 200; ++columns) {
    const std::string line = progress_line(kHalf, columns);
    EXPECT_LT(line.size(), columns);
    if (columns > 24) {
      EXPECT_NE(line.find("50%"), std::string::npos) << columns;
    }
    if (columns > 40) {
      EXPECT_NE(line.find("s left"), std::string::npos) << columns;
    }
  }
}

TEST(ProgressLine, KnowsTheBeginningAndTheEnd) {
  EXPECT_EQ(progress_line({.title = "lint", .done = 0, .total = 100}, 60),
            "lint [                           ]   0% 0 B of 100 B, 0 B/s");
  EXPECT_EQ(progress_line({.title = "lint", .done = 200, .total = 100, .seconds = 1}, 24),
            "lint [===========] 100%");
}

}  // namespace progress_test
}  // namespace fp4moe::cli
