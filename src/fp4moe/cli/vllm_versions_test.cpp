// Releases of vLLM on the command line: the table, and --vllm wherever --policy is.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/oracle/releases.hpp"
#include "support/command_line.hpp"

namespace fp4moe::cli {
namespace vllm_versions_test {

using testing::Outcome;
using testing::run;
using Words = std::vector<std::string>;

Json asked(Words words) {
  words.emplace_back("--json");
  const Result<Json> result = parse_json(run(words).out);
  EXPECT_TRUE(result);
  return result ? *result : Json();
}

TEST(VllmVersions, AreListedAsTextAndAsJson) {
  const Outcome text = run({"vllm-versions"});
  EXPECT_EQ(text.status, 0);
  const Json table = asked({"vllm-versions"});
  ASSERT_EQ(table["releases"].size(), oracle::vllm_releases().size());
  for (const Json& row : table["releases"]) {
    EXPECT_NE(text.out.find(row["version"].string()), std::string::npos);
    EXPECT_FALSE(row["layouts"].string().empty());
  }
  const Json& newest = table["releases"][table["releases"].size() - 1];
  EXPECT_EQ(newest["version"], "0.33.0");
  EXPECT_EQ(newest["mxfp4"]["policy"], "vllm-0.33.0");
  EXPECT_EQ(newest["mxfp4"]["match"], "exact");
}

TEST(VllmVersions, AVersionStandsForItsPolicy) {
  const Json exact = asked({"explain", "--device", "h100", "--vllm", "0.33.0"});
  EXPECT_EQ(exact["policy"], "vllm-0.33.0");
  EXPECT_EQ(exact["vllm"]["match"], "exact");
  EXPECT_EQ(exact["vllm"]["note"], "");
  const Json near = asked({"explain", "--device", "h100", "--vllm", "0.21"});
  EXPECT_EQ(near["policy"], "2026-04-24");
  EXPECT_EQ(near["vllm"]["version"], "0.21");
  EXPECT_EQ(near["vllm"]["match"], "near");
  EXPECT_EQ(near["notes"][0], near["vllm"]["note"]);
  const Json second =
      asked({"explain", "--device", "h100", "--vllm", "latest", "--model", "deepseek-v4-flash"});
  EXPECT_EQ(second["policy"], "vllm-0.33.0-deepseek-v4");
  EXPECT_EQ(second["backend"], "HUMMING");  // which the wheel brings
  EXPECT_EQ(asked({"explain", "--device", "h100", "--policy", "latest"})["policy"], "vllm-0.33.0");
  EXPECT_FALSE(asked({"explain", "--device", "h100"}).contains("vllm"));
}

TEST(VllmVersions, AreTakenByPlanAndMatrix) {
  const Json plan = asked({"plan", "--model", "gpt-oss-20b", "--device", "h100", "--vllm", "0.20"});
  EXPECT_EQ(plan["policy"], "2026-04-24");
  EXPECT_EQ(plan["vllm"]["release"], "0.20.2");
  const Json matrix = asked({"matrix", "--vllm", "0.19.0"});
  ASSERT_EQ(matrix["policies"].size(), 2u);
  EXPECT_EQ(matrix["policies"][0]["policy"], "2026-03-27");
  EXPECT_EQ(matrix["policies"][1]["policy"], "2026-04-24");
  EXPECT_EQ(asked({"matrix", "--policy", "latest"})["policies"].size(), 3u);
}

TEST(VllmVersions, PackagesOfTheWheelCanBeTakenAway) {
  const auto backend = [](Words more) {
    Words words{"explain", "--device", "h100", "--model", "deepseek-v3", "--vllm", "0.33.0"};
    words.insert(words.end(), more.begin(), more.end());
    return asked(words)["backend"].string();
  };
  EXPECT_EQ(backend({}), "HUMMING");
  EXPECT_EQ(backend({"--lib=-humming"}), "MARLIN");
  EXPECT_EQ(backend({"--lib", "flashinfer"}), "MARLIN");
}

TEST(VllmVersions, WrongOnesAreUsageErrors) {
  for (const Words& words :
       {Words{"explain", "--vllm", "soon"},
        {"matrix", "--vllm", "33"},
        {"plan", "--model", "gpt-oss-20b", "--vllm", "0.x"},
        {"explain", "--device", "h100", "--vllm", "0.33", "--policy", "2026-04-24"}}) {
    const Outcome said = run(words);
    EXPECT_EQ(said.status, 2) << words[0] << " " << words.back();
    EXPECT_FALSE(said.err.empty());
  }
}

TEST(VllmVersions, ABackendThatExchangesItselfFixesTheExchange) {
  const Json bound =
      asked({"explain", "--device", "b200", "--policy", "latest", "--model", "deepseek-v4-flash",
             "--ep", "--dp", "4", "--backend", "flashinfer_moe_ep_mega_deep_gemm"});
  EXPECT_EQ(bound["backend"], "FLASHINFER_MOE_EP_DEEP_GEMM");
  EXPECT_EQ(bound["consequences"]["kernel"]["prepare_finalize"], "PassThroughPrepareAndFinalize");
  EXPECT_EQ(
      run({"explain", "--device", "b200", "--policy", "latest", "--all2all", "passthrough"}).status,
      2);
}

}  // namespace vllm_versions_test
}  // namespace fp4moe::cli
