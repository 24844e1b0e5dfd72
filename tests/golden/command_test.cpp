#include "golden/command.hpp"

#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/command_line.hpp"
#include "support/temporary_folder.hpp"

namespace fp4moe::golden {
namespace {

const std::string kGoldenFile = std::string(FP4MOE_TESTDATA) + "/formats.json";

class GoldenCommand : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) {
    const std::string path = folder_ / name;
    fp4moe::testing::write_text(path, content);
    return path;
  }

  int run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "golden");
    const cli::Command golden = command();
    const cli::testing::Outcome outcome = cli::testing::run(arguments, std::span(&golden, 1));
    out_ = outcome.out;
    return outcome.status;
  }

  std::string last_line() const {
    const std::size_t end = out_.rfind('\n', out_.size() - 2);
    return out_.substr(end == std::string::npos ? 0 : end + 1);
  }

  fp4moe::testing::TemporaryFolder folder_{};
  std::string out_{};
};

constexpr const char* kAgreeing =
    R"({"schema": "fp4moe-golden-formats/1",
        "block_scales": [{"rule": "ceil6", "amax": "40c00000", "scale": "7f"}]})";
constexpr const char* kDiffering =
    R"({"schema": "fp4moe-golden-formats/1",
        "block_scales": [{"rule": "ceil6", "amax": "40c00000", "scale": "80"}]})";
constexpr const char* kMalformedCase =
    R"({"schema": "fp4moe-golden-formats/1", "block_scales": [{"rule": "ceil6"}]})";

TEST_F(GoldenCommand, EndsWithTheTotalAloneOnItsLine) {
  EXPECT_EQ(run({kGoldenFile}), 0);

  EXPECT_EQ(last_line(), "613 passed, 0 failed\n");
}

TEST_F(GoldenCommand, ADisagreementIsPrintedAndExitsWith5) {
  const std::string good = write("good.json", kAgreeing), bad = write("bad.json", kDiffering);

  EXPECT_EQ(run({good, bad}), 5);

  EXPECT_NE(out_.find("block_scales[0] ceil6: maximum 0, 40c00000 (6), has a different scale; "
                      "expected 128, found 127\n"),
            std::string::npos)
      << out_;
  EXPECT_EQ(last_line(), "1 passed, 1 failed\n");
}

TEST_F(GoldenCommand, MalformedInputExitsWith3WhateverElseDiffers) {
  const std::string bad = write("bad.json", kDiffering);
  const std::string malformed = write("malformed.json", kMalformedCase);
  const std::string broken = write("broken.json", "{\"schema\": ");
  const std::string unknown = write("unknown.json", R"({"schema": "nobody's/1"})");

  EXPECT_EQ(run({bad, malformed}), 3);
  EXPECT_EQ(run({malformed, bad}), 3);
  EXPECT_EQ(run({broken, bad}), 3);
  EXPECT_EQ(last_line(), "0 passed, 2 failed\n");
  EXPECT_EQ(run({bad, unknown}), 3);
  EXPECT_NE(out_.find("fp4moe-golden-formats/1"), std::string::npos) << out_;
}

TEST_F(GoldenCommand, AMissingFileIsAFailure) {
  EXPECT_EQ(run({folder_ / "none.json"}), 1);

  EXPECT_EQ(last_line(), "0 passed, 1 failed\n");
}

TEST_F(GoldenCommand, AnEngineIsForFilesWithLayers) {
  EXPECT_EQ(run({kGoldenFile, "--engine", "steam"}), 2);
  EXPECT_EQ(run({kGoldenFile, "--engine", "reference"}), 0);
  EXPECT_EQ(run({kGoldenFile, "--engine", "auto"}), 2);
  EXPECT_NE(out_.find("golden.engine"), std::string::npos) << out_;
}

TEST_F(GoldenCommand, JsonIsOneObjectWithEveryFailure) {
  const std::string bad = write("bad.json", kDiffering);
  const std::string broken = write("broken.json", "[]");

  EXPECT_EQ(run({bad, broken, "--json"}), 3);

  const Result<Json> report = parse_json(out_);
  ASSERT_TRUE(report) << out_;
  EXPECT_EQ((*report)["failed"], 2);
  EXPECT_EQ((*report)["files"][0]["failures"][0]["found"], "127");
  EXPECT_EQ((*report)["files"][1]["error"]["id"], "golden.document");
}

}  // namespace
}  // namespace fp4moe::golden
