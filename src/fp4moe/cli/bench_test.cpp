#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "support/command_line.hpp"
#include "support/files.hpp"
#include "support/sanitized.hpp"

namespace fp4moe::cli {
namespace {

using testing::Outcome;

Outcome bench(std::vector<std::string> words) {
  words.insert(words.begin(), "bench");
  return testing::run(words);
}

// Sets a variable for one test.
class SetVariable {
 public:
  SetVariable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~SetVariable() { unsetenv(name_); }
  SetVariable(const SetVariable&) = delete;
  SetVariable& operator=(const SetVariable&) = delete;

 private:
  const char* name_;
};

TEST(BenchCommand, PrintsTheMachineTheCeilingsAndTheResultsAsJson) {
  const Outcome outcome =
      bench({"ceilings", "--threads", "1", "--megabytes", "1", "--seconds", "0.01", "--json"});

  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto report = parse_json(outcome.out);
  ASSERT_TRUE(report);
  EXPECT_EQ((*report)["schema_version"], 1);
  for (const char* key : {"model", "architecture", "cores", "l3_bytes", "memory_bytes"})
    EXPECT_TRUE((*report)["machine"].contains(key)) << key;
  for (const char* key : {"read_gb_per_s", "copy_gb_per_s", "int8_gop_per_s", "bf16_gflop_per_s"})
    EXPECT_GT((*report)["ceilings"][key].get<double>(), 0) << key;
  EXPECT_EQ((*report)["results"][0]["threads"], 1);
}

TEST(BenchCommand, PrintsATableOfFormatsForPeople) {
  const Outcome outcome =
      bench({"formats", "--threads", "1", "--megabytes", "1", "--seconds", "0.01"});

  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("ceilings: read"), std::string::npos);
  EXPECT_NE(outcome.out.find("mxfp4.ceil6.rne"), std::string::npos);
  EXPECT_NE(outcome.out.find("portable/block_codec"), std::string::npos);
}

TEST(BenchCommand, TimesSelectionsUnderEveryPolicy) {
  const Outcome outcome = bench({"select", "--seconds", "0.01", "--json"});

  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto report = parse_json(outcome.out);
  ASSERT_TRUE(report);
  EXPECT_EQ((*report)["results"].size(), 14u);
  for (const Json& row : (*report)["results"]) {
    EXPECT_GT(row["select_us"].get<double>(), 0);
    EXPECT_GT(row["candidates"].get<int>(), 2);
  }
  if (is_sanitized()) return;  // the same again, as a table
  EXPECT_NE(bench({"select", "--seconds", "0.01"}).out.find("2026-01-seed"), std::string::npos);
}

TEST(BenchCommand, ObeysAForcedInstructionSet) {
  const SetVariable forced("FP4MOE_CPU_ISA", "portable");
  const Outcome outcome =
      bench({"formats", "--threads", "1", "--megabytes", "1", "--seconds", "0.01", "--json"});

  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto report = parse_json(outcome.out);
  ASSERT_TRUE(report);
  for (const Json& row : (*report)["results"]) EXPECT_EQ(row["kernel"], "portable/block_codec");
}

TEST(BenchCommand, RefusesAnInstructionSetThatCannotRunWithStatusSeven) {
#if defined(__aarch64__)
  const SetVariable forced("FP4MOE_CPU_ISA", "avx2");
#else
  const SetVariable forced("FP4MOE_CPU_ISA", "neon");
#endif
  const Outcome outcome = bench({"ceilings"});

  EXPECT_EQ(outcome.status, 7);
  EXPECT_NE(outcome.err.find("kernels.isa.build"), std::string::npos);
}

TEST(BenchCommand, RefusesBadSettingsAndBadCommandLinesWithStatusTwo) {
  EXPECT_EQ(bench({}).status, 2);
  EXPECT_EQ(bench({"everything"}).status, 2);
  EXPECT_EQ(bench({"ceilings", "--threads", "0"}).status, 2);
  EXPECT_EQ(bench({"ceilings", "--megabytes", "0"}).status, 2);
  const SetVariable threads("FP4MOE_THREADS", "many");
  EXPECT_EQ(bench({"ceilings"}).status, 2);
}

TEST(BenchCommand, SaysWhichCheckpointItCannotOpen) {
  const Outcome outcome = bench({"files", "/nonexistent/checkpoint", "--threads", "1"});

  EXPECT_NE(outcome.status, 0);
  EXPECT_NE(outcome.err.find("/nonexistent/checkpoint"), std::string::npos);
}

TEST(BenchCommand, RoutesAsManyTokensAsItIsTold) {
  const Outcome outcome = bench({"route", "--tokens", "4,9", "--seconds", "0.01", "--json"});

  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto report = parse_json(outcome.out);
  ASSERT_TRUE(report);
  EXPECT_EQ((*report)["results"][0]["tokens"], 4);
  EXPECT_EQ((*report)["results"][1]["tokens"], 9);
  EXPECT_GT((*report)["results"][0]["ns_per_token"].get<double>(), 0);
  for (const char* tokens : {"many", "0", "4k"})
    EXPECT_EQ(bench({"route", "--tokens", tokens}).status, 2) << tokens;
}

TEST(BenchCommand, MeasuresCeilingsForSeveralNumbersOfThreads) {
  const Outcome outcome =
      bench({"ceilings", "--threads", "1,2", "--megabytes", "1", "--seconds", "0.01", "--json"});

  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto report = parse_json(outcome.out);
  ASSERT_TRUE(report);
  EXPECT_EQ((*report)["results"].front()["threads"], 1);
  EXPECT_EQ((*report)["results"].back()["threads"], 2);
  ASSERT_EQ((*report)["ceilings_by_threads"].size(), 2u);
  EXPECT_EQ((*report)["ceilings_by_threads"][1]["read_gb_per_s"],
            (*report)["ceilings"]["read_gb_per_s"]);
  for (const char* threads : {"0", "1,x", "5000", "-1"})
    EXPECT_EQ(bench({"ceilings", "--threads", threads}).status, 2) << threads;
  EXPECT_NE(bench({"select", "--threads", "1,2"}).err.find("bench.threads"), std::string::npos);
}

// A checkpoint of a few experts, so that the reference engine is done at once.
class LayerBench : public ::testing::Test {
 protected:
  LayerBench() {
    EXPECT_TRUE(checkpoint::synth(
        {.model = "gpt-oss-20b", .layers = 2, .experts = 8, .hidden = 64, .intermediate = 64},
        model_));
  }
  tensor::testing::TemporaryFolder folder_{};
  std::string model_ = folder_.path() + "/model";
};

TEST_F(LayerBench, MeasuresLayersAndDrawsWhatItMeasured) {
  std::vector<std::string> words{"layer",     "--model",   model_, "--tokens",  "1,3", "--engine",
                                 "reference", "--threads", "2",    "--seconds", "0.01"};
  const Outcome shown = bench(words);
  ASSERT_EQ(shown.status, 0) << shown.err;
  EXPECT_NE(shown.out.find("floor us"), std::string::npos);
  words.emplace_back("--json");
  const Outcome outcome = bench(words);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto report = parse_json(outcome.out);
  ASSERT_TRUE(report);
  EXPECT_EQ((*report)["schema_version"], 1);
  EXPECT_TRUE((*report)["machine"].contains("model"));
  EXPECT_GT((*report)["ceilings"]["read_gb_per_s"].get<double>(), 0);
  ASSERT_EQ((*report)["results"].size(), 2u);
  EXPECT_EQ((*report)["results"][1]["tokens"], 3);
  EXPECT_EQ((*report)["results"][1]["engine"], "reference");

  const std::string path = folder_.path() + "/report.json", drawing = folder_.path() + "/a.svg";
  std::ofstream(path) << outcome.out;
  const Outcome drawn = bench({"plot", path, "--out", drawing});
  ASSERT_EQ(drawn.status, 0) << drawn.err;
  EXPECT_NE(drawn.out.find("1 series"), std::string::npos);
  std::string first;
  std::getline(std::ifstream(drawing), first);
  EXPECT_TRUE(first.starts_with("<svg ")) << first;
}

TEST_F(LayerBench, AReportOfADeviceSaysWhetherItIsSustained) {
  std::vector<std::string> words{
      "layer",         "--model",    model_,      "--tokens", "1",         "--engine", "cuda",
      "--activations", "none,mxfp8", "--warm-up", "0",        "--seconds", "0.01"};
  const Outcome shown = bench(words);
  if (shown.status != 0) {
    EXPECT_EQ(shown.status, 7) << shown.err;  // no device
    return;
  }
  EXPECT_NE(shown.out.find("burst: after 0 s of work"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find(" unquantized"), std::string::npos) << shown.out;
  words.emplace_back("--json");
  const auto report = parse_json(bench(words).out);
  ASSERT_TRUE(report);
  EXPECT_EQ((*report)["device"]["warm_up_s"], 0.0);
  EXPECT_EQ((*report)["device"]["is_sustained"], false);
  EXPECT_TRUE((*report)["device"].contains("seconds"));
  EXPECT_FALSE((*report)["results"][0].contains("rel_error_unquantized"));
  EXPECT_TRUE((*report)["results"][1].contains("rel_error_unquantized"));
}

TEST_F(LayerBench, SaysWhatCannotBeMeasuredOrDrawn) {
  EXPECT_EQ(bench({"layer", "--model", "no-such-model"}).status, 2);
  EXPECT_EQ(bench({"layer", "--tokens", "0"}).status, 2);
  EXPECT_EQ(bench({"layer", "--model", model_, "--format", "nvfp4"}).status, 2);
  EXPECT_EQ(bench({"layer", "--model", model_, "--engine", "steam"}).status, 2);
  const std::string other = folder_.path() + "/other.json", drawing = folder_.path() + "/a.svg";
  std::ofstream(other) << R"({"results": [{"ceiling": "read"}]})";
  const Outcome refused = bench({"plot", other, "--out", drawing});
  EXPECT_EQ(refused.status, 3);
  EXPECT_NE(refused.err.find("other.json"), std::string::npos) << refused.err;
  EXPECT_FALSE(std::filesystem::exists(drawing));
  EXPECT_EQ(bench({"plot", other}).status, 2);
}

}  // namespace
}  // namespace fp4moe::cli
