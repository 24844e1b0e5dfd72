// list, error and man: what the program knows by name, asked of itself.
#include <string>

#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/base/json.hpp"
#include "fp4moe/checkpoint/lint/lint.hpp"
#include "fp4moe/checkpoint/models.hpp"
#include "fp4moe/oracle/releases.hpp"
#include "fp4moe/platform/device.hpp"
#include "support/command_line.hpp"
#include "support/files.hpp"

namespace fp4moe::cli {
namespace list_test {

using tensor::testing::TemporaryFolder;
using testing::has;
using testing::Outcome;
using testing::run;

bool lists(std::string_view subject, std::string_view name) {
  const Result<Json> json = parse_json(run({"list", std::string(subject), "--json"}).out);
  EXPECT_TRUE(json) << subject;
  if (json)
    for (const Json& row : (*json)["rows"])
      if (row["name"] == name) return !row["what"].string().empty();
  return false;
}

TEST(ListCommand, HasEveryNameThatOptionsTake) {
  for (const checkpoint::ModelRow& model : checkpoint::models())
    EXPECT_TRUE(lists("models", model.name));
  for (const auto& device : platform::described_devices())
    EXPECT_TRUE(lists("devices", device.name)) << device.name;
  for (const oracle::Policy& policy : backends::policies())
    EXPECT_TRUE(lists("policies", policy.name)) << policy.name;
  for (const layout::Layout& layout : backends::layouts())
    EXPECT_TRUE(lists("layouts", layout.id)) << layout.id;
  EXPECT_TRUE(lists("backends", "FLASHINFER_TRTLLM_MXFP4_BF16"));
  EXPECT_FALSE(lists("backends", "None"));
  for (const oracle::Release& release : oracle::vllm_releases())
    EXPECT_TRUE(lists("vllm", release.version)) << release.version;
  EXPECT_TRUE(lists("dialects", "gguf"));
  EXPECT_TRUE(lists("engines", "reference"));
  EXPECT_TRUE(lists("variables", "FP4MOE_THREADS"));
  EXPECT_TRUE(lists("variables", "VLLM_MXFP4_USE_MARLIN"));
}

TEST(ListCommand, SaysWhatCanBeListed) {
  const Outcome outcome = run({"list"});
  EXPECT_EQ(outcome.status, 0);
  for (const char* subject : {"models", "devices", "policies", "backends", "layouts"})
    EXPECT_TRUE(has(outcome.out, subject)) << subject;
  const Outcome refused = run({"list", "devics"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_TRUE(has(refused.err, "did you mean devices?")) << refused.err;
}

TEST(ErrorCommand, ExplainsErrorsAndFindings) {
  const Outcome nan = run({"error", "scale.nan"});
  EXPECT_EQ(nan.status, 0);
  EXPECT_TRUE(has(nan.out, "means  A block scale is NaN")) << nan.out;
  for (const checkpoint::LintRule& rule : checkpoint::lint_rules())
    EXPECT_EQ(run({"error", std::string(rule.code)}).status, 0) << rule.code;
  const Result<Json> command = parse_json(run({"error", "command", "--json"}).out);
  ASSERT_TRUE(command);
  EXPECT_GE((*command)["errors"].size(), 5u);
  for (const Json& row : (*command)["errors"])
    EXPECT_TRUE(row["id"].string().starts_with("command.")) << row.dump();
}

TEST(ErrorCommand, KnowsTheIdOfItsOwnRefusal) {
  const Outcome refused = run({"error", "scale.nann", "--json"});
  EXPECT_EQ(refused.status, 2);
  const std::string id = (*parse_json(refused.out))["error"]["id"].string();
  EXPECT_EQ(run({"error", id}).status, 0) << id;
  EXPECT_TRUE(has(refused.err, "did you mean scale.nan?")) << refused.err;
}

TEST(ManCommand, WritesAPageForEveryCommand) {
  const TemporaryFolder folder;
  const Outcome outcome = run({"man", "--folder", folder / "."});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(folder.names().size(), commands().size() + 1);
  const std::string page = tensor::testing::read_text(folder / "fp4moe-convert.1");
  EXPECT_EQ(page, run({"man", "convert"}).out);
  EXPECT_TRUE(has(page, ".TH FP4MOE-CONVERT 1"));
  EXPECT_TRUE(has(page, "\\fB\\-o, \\-\\-out PATH\\fR"));
  EXPECT_TRUE(has(page, ".SH EXIT STATUS"));
  EXPECT_TRUE(has(run({"man"}).out, "\\fBconvert\\fR"));
  EXPECT_EQ(run({"man", "convrt"}).status, 2);
  EXPECT_EQ(run({"man", "--folder", folder / "nothing"}).status, 1);
}

}  // namespace list_test
}  // namespace fp4moe::cli
