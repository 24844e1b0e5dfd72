#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "support/command_line.hpp"
#include "support/run_fixture.hpp"

namespace fp4moe::cli {
namespace diff_test {

using testing::has;
using testing::Outcome;
using testing::run;

class DiffCommand : public testing::RunFixture {
 protected:
  static Outcome diff(const std::string& a, const std::string& b,
                      std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"diff", a, b, "--checkpoint", source()});
    return run(more);
  }
  static std::string written(const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> words{"-o", file(name)};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_with(words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return file(name);
  }
};

TEST_F(DiffCommand, SaysWhenNoBitDiffers) {
  const Outcome outcome = diff("MARLIN", "backend=MARLIN,batch=1,threads=2");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "equal, bit for bit")) << outcome.out;
}

TEST_F(DiffCommand, NamesTheFirstDifferenceAndTheStage) {
  const Outcome outcome = diff("MARLIN", "exact", {"--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  const Json json = *parse_json(outcome.out);
  EXPECT_EQ(json["command"], "diff");
  EXPECT_EQ(json["verdict"], "within the backends' numerics");
  EXPECT_EQ(json["stage"], "GEMM1, choice 0");
  EXPECT_EQ(json["a"]["numerics"], "marlin");
  EXPECT_EQ(json["b"]["numerics"], "exact");
  EXPECT_EQ(json["difference"]["elements"], 16 * kHidden);
  EXPECT_GT(json["difference"]["unequal"].get<int>(), 0);
  EXPECT_TRUE(json["difference"]["first"].contains("column"));
  EXPECT_EQ(json["allowed"]["rel_error"], 2e-2);
  const Outcome words = diff("MARLIN", "exact");
  EXPECT_TRUE(has(words.out, "they part at        GEMM1, choice 0")) << words.out;
  EXPECT_TRUE(has(words.out, "first difference    token 0, column ")) << words.out;
}

TEST_F(DiffCommand, ComparesRanksWithOne) {
  EXPECT_EQ(diff("CPU,ep=2,exchange=gather", "CPU").status, 0);
  EXPECT_EQ(diff("CPU,tp=2", "CPU,ep=4,placement=round_robin").status, 0);
}

TEST_F(DiffCommand, ComparesEveryLayerWhenAskedForAll) {
  const Outcome outcome = diff("MARLIN", "exact", {"--layer", "all", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  const Json json = *parse_json(outcome.out);
  ASSERT_EQ(json["layers"].size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(json["layers"][i]["layer"], i);
    EXPECT_EQ(json["layers"][i]["a"]["layer"], i);
  }
  EXPECT_NE(json["layers"][0]["difference"], json["layers"][1]["difference"]);
  EXPECT_EQ(json["within_numerics"], true);
  EXPECT_TRUE(has(diff("MARLIN", "exact", {"--layer", "all"}).out,
                  "all 2 layers within the backends' numerics"));
}

TEST_F(DiffCommand, ComparesFilesOfSeveralLayers) {
  const std::string a = written("a.safetensors", {"--layer", "all"});
  const std::string b = written("b.safetensors", {"--layer", "all", "--seed", "2"});
  EXPECT_TRUE(has(run({"diff", a, a}).out, "all 2 layers within")) << run({"diff", a, a}).out;
  EXPECT_EQ(run({"diff", a, b}).status, 5);
  EXPECT_TRUE(has(run({"diff", a, a, "--layer", "1"}).out, "equal, bit for bit"));
  EXPECT_EQ(run({"diff", a, a, "--layer", "7"}).status, 2);
  EXPECT_EQ(diff(a, "CPU", {"--layer", "all"}).status, 0);
}

TEST_F(DiffCommand, SaysThatABackendHasNoKernelsForTheWeights) {
  const std::string path = file("nvfp4");
  ASSERT_EQ(run({"synth", "--model", "qwen3-30b-a3b", "--experts", "4", "--hidden", "128",
                 "--intermediate", "64", "-o", path})
                .status,
            0);
  const Outcome outcome = run({"diff", "MARLIN", "TRITON", "--checkpoint", path});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_TRUE(has(outcome.err, "this backend has no kernels for nvfp4 weights")) << outcome.err;
  EXPECT_FALSE(has(outcome.err, "--policy")) << outcome.err;
}

TEST_F(DiffCommand, EndsWith5BeyondTheNumerics) {
  const std::string a = written("a.safetensors", {}), b = written("b.safetensors", {"--seed", "2"});
  const Outcome outcome = run({"diff", a, b});
  EXPECT_EQ(outcome.status, 5);
  EXPECT_TRUE(has(outcome.out, "NOT within the backends' numerics")) << outcome.out;
  EXPECT_EQ(run({"diff", a, a}).status, 0);
}

TEST_F(DiffCommand, ComparesAFileWithARun) {
  const std::string a = written("marlin.safetensors", {"--backend", "MARLIN"});
  EXPECT_TRUE(has(diff(a, "MARLIN").out, "equal, bit for bit"));
  EXPECT_EQ(diff(a, "TRITON").status, 0);
  EXPECT_EQ(diff(a, "TRITON", {"--seed", "2"}).status, 5);
}

TEST_F(DiffCommand, RefusesWhatCannotBeCompared) {
  const std::string a = written("a.safetensors", {}),
                    b = written("b.safetensors", {"--tokens", "3"});
  refused(run({"diff", a, b}), 3, "found: [3, 96]; expected: [16, 96]");
  refused(run({"diff", a, source() + "/model.safetensors"}), 3, "diff.file");
  refused(run({"diff", a, "MARLIN"}), 2, "--checkpoint PATH");
  refused(diff("MARLIM", "CPU"), 2, "did you mean MARLIN?");
  refused(diff("MARLIN,speed=3", "CPU"), 2, "a specification");
  refused(diff("MARLIN,batch=some", "CPU"), 2, "a whole number");
  refused(diff("MARLIN,tp=none", "CPU"), 2, "--tp does not take this value");
  refused(diff("MARLIN,placement=heap", "CPU"), 2, "--placement does not take this value");
  refused(diff("MARLIN", "CPU", {"--layer", "7"}), 2, "--layer does not take this value");
  EXPECT_NE(run({"diff", a, file("nothing.safetensors")}).status, 0);
  refused(run({"diff", a}), 2, "B");
}

}  // namespace diff_test
}  // namespace fp4moe::cli
