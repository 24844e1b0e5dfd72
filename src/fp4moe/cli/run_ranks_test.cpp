#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "support/command_line.hpp"
#include "support/run_fixture.hpp"

namespace fp4moe::cli {
namespace run_ranks_test {

using testing::Outcome;

using RunRanks = testing::RunFixture;

TEST_F(RunRanks, GiveWhatOneRankGives) {
  const std::vector<std::vector<std::string>> splits{
      {"--tp", "2"},
      {"--ep", "2"},
      {"--ep", "3", "--placement", "round_robin"},
      {"--ep", "3", "--placement", "round-robin"},
      {"--ep", "4", "--exchange", "gather"},
      {"--ep", "4", "--exchange", "all_to_all"},
      {"--ep", "2", "--exchange", "all_to_all_batched"}};
  for (std::vector<std::string> words : splits) {
    const std::string label = fmt::format("{}", fmt::join(words, " "));
    words.insert(words.end(), {"--check", "--json"});
    const Outcome outcome = run_with(words);
    EXPECT_EQ(outcome.status, 0) << label << outcome.out << outcome.err;
    if (outcome.status != 0) continue;
    const Json json = *parse_json(outcome.out);
    EXPECT_GE(json["ranks"].get<int>(), 2) << label;
    EXPECT_EQ(json["layers"][0]["within_numerics"], true) << label;
  }
}

TEST_F(RunRanks, TakePartWithoutTokens) {
  for (const char* exchange : {"gather", "all_to_all", "all_to_all_batched"}) {
    const Outcome outcome =
        run_with({"--ep", "4", "--exchange", exchange, "--tokens", "1", "--check"});
    EXPECT_EQ(outcome.status, 0) << exchange << outcome.out << outcome.err;
  }
}

// Experts of every rank count, or the exchange is refused: never a part of the sum.
TEST_F(RunRanks, BatchesInsideAProcessAreNotTakenForAllRanks) {
  const Outcome outcome = run_with({"--ep", "2", "--exchange", "batched", "--check"});
  EXPECT_TRUE(outcome.status == 0 || outcome.status == 2) << outcome.out << outcome.err;
}

}  // namespace run_ranks_test
}  // namespace fp4moe::cli
