// The commands that write checkpoints, called as the shell calls them.
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "support/command_line.hpp"
#include "support/files.hpp"

namespace fp4moe::cli {
namespace {

using tensor::testing::TemporaryFolder;

struct Called : testing::Outcome {
  Json json() const {
    const Result<Json> document = parse_json(out);
    return document ? *document : Json();
  }
};

Called call(const std::vector<std::string>& words) { return {testing::run(words)}; }

std::vector<std::string> small(const std::string& out, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"synth",          "--experts", "3",  "--hidden", "64",
                                     "--intermediate", "96",        "-o", out};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(SynthCommand, SaysWhatItMadeInWordsAndInJson) {
  const TemporaryFolder folder;

  const Called words = call(small(folder / "a", {"--layers", "2"}));
  const Called json = call(small(folder / "b", {"--seed", "9", "--json"}));

  EXPECT_EQ(words.status, 0) << words.err;
  EXPECT_NE(words.out.find("2 MoE layers of 3 experts"), std::string::npos) << words.out;
  EXPECT_EQ(json.status, 0);
  EXPECT_EQ(json.json()["schema_version"], 1);
  EXPECT_EQ(json.json()["dialect"], "gpt-oss");
  EXPECT_EQ(json.json()["seed"], 9);
  EXPECT_EQ(json.json()["experts"], 3);
}

TEST(SynthCommand, RefusesUnknownNamesWithStatus2) {
  const TemporaryFolder folder;

  EXPECT_EQ(call(small(folder / "a", {"--dialect", "latin"})).status, 2);
  EXPECT_EQ(call(small(folder / "a", {"--model", "gpt-7"})).status, 2);
  EXPECT_EQ(call(small(folder / "a", {"--format", "int4"})).status, 2);
  EXPECT_EQ(call({"synth"}).status, 2);
  EXPECT_TRUE(folder.names().empty());
}

TEST(TranscodeCommand, WritesReportsAndComesBack) {
  const TemporaryFolder folder;
  ASSERT_EQ(call(small(folder / "a")).status, 0);

  const Called there =
      call({"transcode", folder / "a", "--to", "gguf", "-o", folder / "b.gguf", "--json"});
  const Called back = call({"transcode", folder / "b.gguf", "--to", "gpt-oss", "-o", folder / "c"});

  EXPECT_EQ(there.status, 0) << there.err;
  EXPECT_EQ(there.json()["from"], "gpt-oss");
  EXPECT_EQ(there.json()["experts"], 3);
  EXPECT_FALSE(there.json()["notes"].empty());
  EXPECT_EQ(back.status, 0) << back.err;
  EXPECT_NE(back.out.find("gguf -> gpt-oss (mxfp4)"), std::string::npos) << back.out;
}

TEST(TranscodeCommand, ADryRunWritesNothing) {
  const TemporaryFolder folder;
  ASSERT_EQ(call(small(folder / "a")).status, 0);

  const Called outcome = call({"transcode", folder / "a", "--to", "quark", "--dry-run"});

  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("nothing was written"), std::string::npos);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a"});
}

TEST(TranscodeCommand, TellsUsageFromBadInputByItsStatus) {
  const TemporaryFolder folder;
  ASSERT_EQ(call(small(folder / "a")).status, 0);
  ASSERT_EQ(call(small(folder / "bad", {"--defect", "nan-scale"})).status, 0);

  const auto to = [&](const char* from, const char* dialect) {
    return call({"transcode", folder / from, "--to", dialect, "-o", folder / "x", "--json"});
  };

  EXPECT_EQ(to("a", "latin").status, 2);
  EXPECT_EQ(to("a", "deepseek-v4").json()["error"]["id"], "transcode.pair");
  EXPECT_EQ(to("bad", "quark").status, 3);
  EXPECT_EQ(to("bad", "quark").json()["error"]["id"], "scale.nan");
  EXPECT_NE(to("absent", "quark").status, 0);
  EXPECT_EQ(call({"transcode", folder / "a", "--to", "quark"}).status, 2);
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
}

// DeepSeek-V4's dialect is written from itself alone, in other shards.
TEST(TranscodeCommand, OffersTheDialectsThatOthersBecome) {
  const TemporaryFolder folder;
  ASSERT_EQ(call({"synth", "--model", "deepseek-v4-flash", "--experts", "2", "--hidden", "64",
                  "--intermediate", "64", "-o", folder / "v4"})
                .status,
            0);
  EXPECT_EQ(
      call({"transcode", folder / "v4", "--to", "deepseek-v4", "-o", folder / "again"}).status, 0);
  const Json help = call({"help", "transcode", "--json"}).json();
  std::string offered;
  for (const Json& option : help["commands"][0]["options"])
    if (option["name"] == "to") offered = option["help"].string();
  EXPECT_NE(offered.find("quark, gguf (deepseek-v4: from deepseek-v4 alone)"), std::string::npos)
      << offered;
}

TEST(QuantizeCommand, TakesRulesAndInputScalesByName) {
  const TemporaryFolder folder;
  ASSERT_EQ(call(small(folder / "a", {"--dialect", "bf16"})).status, 0);
  tensor::testing::write_text(folder / "scales.json", R"({"*.down_proj": 0.5, "*": 0.25})");
  const auto run = [&](const char* out, std::vector<std::string> more) {
    std::vector<std::string> arguments{"quantize", folder / "a", "-o", folder / out, "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return call(arguments);
  };

  const Called mxfp4 = run("b", {"--rule", "ceil6.rne"});
  const Called nvfp4 = run("c", {"--format", "nvfp4", "--input-scale", folder / "scales.json"});

  EXPECT_EQ(mxfp4.status, 0) << mxfp4.err;
  EXPECT_EQ(mxfp4.json()["rule"], "mxfp4.ceil6.rne");
  EXPECT_EQ(mxfp4.json()["to"], "gpt-oss");
  EXPECT_GT(mxfp4.json()["errors"]["gate"]["rms_relative"].get<double>(), 0.05);
  EXPECT_EQ(nvfp4.status, 0) << nvfp4.err;
  EXPECT_EQ(nvfp4.json()["to"], "modelopt");
  EXPECT_EQ(run("x", {"--rule", "guess"}).json()["error"]["id"], "quantize.rule");
  EXPECT_EQ(run("x", {"--to", "latin"}).json()["error"]["id"], "quantize.dialect");
  for (const char* scale : {"-1", "0", "nan", "inf"})
    EXPECT_EQ(run("x", {"--format", "nvfp4", std::string("--input-scale=") + scale})
                  .json()["error"]["id"],
              "quantize.input_scale")
        << scale;
  tensor::testing::write_text(folder / "scales.json", R"({"*": "much"})");
  EXPECT_EQ(run("x", {"--format", "nvfp4", "--input-scale", folder / "scales.json"})
                .json()["error"]["id"],
            "quantize.input_scale");
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
}

}  // namespace
}  // namespace fp4moe::cli
