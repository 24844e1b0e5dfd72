// The platform's findings name the order in which variables win; the policies hold that order.
#include "fp4moe/platform/findings.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/oracle/select.hpp"

namespace fp4moe::backends {
namespace findings_test {

using platform::Variable;

// Of two variables that both force a backend, the finding calls that one idle which the policy
// does not come to.
TEST(Findings, AgreeWithThePolicyOnWhichVariableWins) {
  const oracle::Policy& april = *find_policy("2026-04-24", oracle::WeightFormat::mxfp4);
  const platform::PolicyVariables reads{april.name, oracle::variables_read(april)};
  for (std::size_t first = 0; first < april.steps.size(); ++first) {
    for (std::size_t second = first + 1; second < april.steps.size(); ++second) {
      platform::Environment environment;
      std::vector<std::string> names;
      for (const std::size_t which : {first, second}) {
        environment.set(april.steps[which].variable, "1");
        names.emplace_back(platform::row(april.steps[which].variable).name);
      }

      const auto findings = platform::environment_findings(names, environment, &reads);

      ASSERT_EQ(findings.size(), 1u) << names[0] << " " << names[1];
      EXPECT_EQ(findings[0].variable, names[1]);
      EXPECT_NE(findings[0].sentence.find(names[0]), std::string::npos) << findings[0].sentence;
    }
  }
}

}  // namespace findings_test
}  // namespace fp4moe::backends
