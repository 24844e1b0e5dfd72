#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "support/command_line.hpp"
#include "support/files.hpp"

namespace fp4moe::cli::report_test {
namespace {

using tensor::testing::read_text;
using tensor::testing::TemporaryFolder;
using tensor::testing::write_text;
using testing::has;
using testing::Outcome;
using testing::run;

std::string make(const std::string& path, checkpoint::SynthOptions options = {}) {
  options.layers = 2;
  options.experts = 4;
  options.hidden = 128;
  options.intermediate = 64;
  const auto result = checkpoint::synth(options, path);
  EXPECT_TRUE(result) << text(result.why());
  return path;
}

Json facts_of(const std::vector<std::string>& words) {
  const Outcome outcome = run(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto facts = parse_json(outcome.out);
  EXPECT_TRUE(facts) << outcome.out.substr(0, 300);
  return facts ? *facts : Json::object();
}

TEST(Report, IsOnePageThatNeedsNothingElse) {
  const TemporaryFolder folder;
  const std::string model = make(folder / "m"), page = folder / "r.html";
  const Outcome outcome = run({"report", model, "-o", page, "--device", "h100,mi355x"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string html = read_text(page);
  for (const std::string_view part :
       {"<!DOCTYPE html>", "gpt-oss", "0 errors", "<svg", "All 28 kernels", "needs rocm",
        "fp4moe explain", "prefers-color-scheme: dark", "@media print", "</html>"})
    EXPECT_TRUE(has(html, part)) << part;
  for (const std::string_view part : {"<script", "http://", "https://", "url("})
    EXPECT_FALSE(has(html, part)) << part;
}

TEST(Report, GivesWhatTheOtherCommandsSayAsJson) {
  const TemporaryFolder folder;
  const std::string model = make(folder / "m");
  const Json facts = facts_of({"report", model, "--json", "--device", "h100"});
  EXPECT_EQ(facts["kind"], "checkpoint");
  EXPECT_EQ(facts["inspect"]["result"], *parse_json(run({"inspect", model, "--json"}).out));
  const Json& device = facts["devices"][0];
  EXPECT_EQ(device["explain"]["result"],
            *parse_json(run({"explain", model, "--device", "h100", "--json"}).out));
  const std::string policy = device["explain"]["result"]["policy"].get<std::string>();
  EXPECT_EQ(
      device["plan"]["result"],
      *parse_json(run({"plan", model, "--device", "h100", "--policy", policy, "--json"}).out));
  EXPECT_EQ(facts["scales"]["layers"].size(), 2u);
  EXPECT_TRUE(facts["bench"].is_null());
  EXPECT_FALSE(std::filesystem::exists(folder / "r.html"));
}

TEST(Report, ComparesTheDevicesBackendsWithFloat64) {
  const TemporaryFolder folder;
  const std::string model = make(folder / "m"), page = folder / "r.html";
  const Json facts = facts_of(
      {"report", model, "--json", "--device", "h100,h200,b200", "--tokens", "2", "-o", page});
  ASSERT_EQ(facts["numerics"].size(), 2u) << "h100 and h200 get the same";
  EXPECT_EQ(facts["numerics"][0]["diff"]["result"]["layers"].size(), 2u);
  EXPECT_TRUE(has(read_text(page), "within"));
  const Json named = facts_of({"report", model, "--json", "--tokens", "2", "--backend", "MARLIN"});
  ASSERT_EQ(named["numerics"].size(), 1u);
  EXPECT_EQ(named["numerics"][0]["backend"], "MARLIN");
}

TEST(Report, ShowsWhatIsWrongWithACheckpoint) {
  const TemporaryFolder folder;
  const std::string model = make(folder / "m", {.defect = "nan-scale"});
  const Outcome outcome =
      run({"report", model, "-o", folder / "r.html", "--device", "cpu", "--tokens", "2"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::string html = read_text(folder / "r.html");
  EXPECT_TRUE(has(html, "scale.nan"));
  EXPECT_TRUE(has(html, "cannot be read"));
  const std::string broken = make(folder / "b", {.defect = "missing-expert"});
  EXPECT_EQ(run({"report", broken, "-o", folder / "b.html"}).status, 0);
  EXPECT_TRUE(has(read_text(folder / "b.html"), "class=\"answer bad\""));
}

TEST(Report, KnowsAConvertedFolder) {
  const TemporaryFolder folder;
  const std::string model = make(folder / "m"), converted = folder / "c";
  ASSERT_EQ(run({"convert", model, "--backend", "MARLIN", "--policy", "latest", "--device", "h100",
                 "-o", converted})
                .status,
            0);
  const Json facts = facts_of({"report", converted, "--json", "--device", "h100", "--tokens", "2",
                               "-o", folder / "r.html"});
  EXPECT_EQ(facts["kind"], "converted");
  EXPECT_EQ(facts["verify"]["result"]["findings"].size(), 0u);
  EXPECT_EQ(facts["scales"]["projections"]["up"]["blocks"], 2u * 4 * 128 * 64 / 32);
  EXPECT_EQ(facts["numerics"][0]["diff"]["status"], 0);
  EXPECT_EQ(facts["devices"][0]["explain"]["status"], 0);
  EXPECT_TRUE(has(read_text(folder / "r.html"), "marlin.mxfp4"));
}

TEST(Report, DrawsRecordsOfPeersAndRefusesOtherFiles) {
  const TemporaryFolder folder;
  const std::string model = make(folder / "m");
  write_text(folder / "peers.json", R"({"h": {"device": "H200", "peers": {}, "models": {}}})");
  EXPECT_EQ(
      run({"report", model, "-o", folder / "r.html", "--records", folder / "peers.json"}).status,
      0);
  EXPECT_TRUE(has(read_text(folder / "r.html"), "no measurement of a model with these sizes"));
  write_text(folder / "other.json", "{}");
  const Outcome refused =
      run({"report", model, "-o", folder / "s.html", "--records", folder / "other.json"});
  EXPECT_EQ(refused.status, 3) << refused.err;
  EXPECT_TRUE(has(refused.err, "plot.report"));
  EXPECT_FALSE(std::filesystem::exists(folder / "s.html"));
}

// Files of peers are not trusted: their content is shown as text, or refused.
TEST(Report, DrawsRecordsOfAnyContent) {
  const TemporaryFolder folder;
  const std::string model = make(folder / "m"), page = folder / "r.html";
  const auto drawn = [&](std::string_view what, int tokens) {  // its model is that of unknown sizes
    write_text(folder / "peers.json",
               fmt::format(R"({{"what": {}, "h": {{"device": "<i>H200", "peers": {{"a": "<i>A"}},
                   "models": {{"": {{"points": [{{"tokens": {}, "a": 1}}]}}}}}}}})",
                           what, tokens));
    const Outcome outcome =
        run({"report", model, "-o", page, "--force", "--records", folder / "peers.json"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const std::string html = read_text(page);
    EXPECT_FALSE(has(html, "<i>"));
    return html;
  };
  EXPECT_TRUE(has(drawn("5", 1), "class=\"plot\""));
  EXPECT_TRUE(has(drawn("\"<i>why\"", 1), "&lt;i&gt;why"));
  EXPECT_TRUE(has(drawn("\"\"", 0), "plot.values"));
}

TEST(Report, QuotesCommandsAsAShellReadsThem) {
  const TemporaryFolder folder;
  const std::string model = make(folder / "it's mine");
  const Json facts = facts_of({"report", model, "--json", "--device", "cpu"});
  EXPECT_TRUE(has(facts["inspect"]["command"].string(), "/it'\\''s mine'"));
}

TEST(Report, ReplacesAFileOnlyWhenForced) {
  const TemporaryFolder folder;
  const std::string model = make(folder / "m"), page = folder / "r.html";
  write_text(page, "mine");
  const Outcome refused = run({"report", model, "-o", page});
  EXPECT_EQ(refused.status, 2);
  EXPECT_TRUE(has(refused.err, "file.exists"));
  EXPECT_EQ(read_text(page), "mine");
  EXPECT_EQ(run({"report", model, "-o", page, "--force"}).status, 0);
  EXPECT_TRUE(has(read_text(page), "<!DOCTYPE html>"));
  EXPECT_EQ(run({"report", model, "-o", folder.path(), "--force"}).status, 2);
}

TEST(Report, RefusesInASentenceAndWritesNothing) {
  const TemporaryFolder folder;
  const std::string model = make(folder / "m"), page = folder / "r.html";
  EXPECT_TRUE(has(run({"report", model}).err, "report.out"));
  EXPECT_TRUE(has(run({"report", folder / "none", "-o", page}).err, "file.open"));
  EXPECT_TRUE(has(run({"report", model, "-o", page, "--device", "h1000"}).err, "h100"));
  std::filesystem::create_directory(folder / "empty");
  EXPECT_NE(run({"report", folder / "empty", "-o", page}).status, 0);
  EXPECT_FALSE(std::filesystem::exists(page));
}

}  // namespace
}  // namespace fp4moe::cli::report_test
