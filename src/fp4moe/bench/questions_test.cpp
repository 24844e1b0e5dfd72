// The benchmarks on tiny data: they must run, cover every operation and report sane ratios.
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "fp4moe/bench/ceilings.hpp"
#include "fp4moe/bench/files.hpp"
#include "fp4moe/bench/formats.hpp"
#include "fp4moe/bench/route.hpp"

namespace fp4moe::bench {
namespace questions_test {

TEST(BenchCeilings, FindsABestLoopForEveryName) {
  const auto ceilings = bench_ceilings(
      {.threads = 2, .megabytes = 1, .seconds = 0.01, .features = platform::detect_cpu_features()});

  ASSERT_TRUE(ceilings);
  EXPECT_GT(ceilings->read_gb_per_s, 0);
  EXPECT_GT(ceilings->copy_gb_per_s, 0);
  EXPECT_GT(ceilings->int8_gop_per_s, 0);
  EXPECT_GT(ceilings->bf16_gflop_per_s, 0);
  for (const CeilingResult& result : ceilings->results) {
    if (result.name == "int8") {
      EXPECT_LE(result.timing.rate(), ceilings->int8_gop_per_s);
    }
  }
}

TEST(BenchFormats, MeasuresEveryOperationWithTheBestAndThePortableKernel) {
  const auto features = platform::detect_cpu_features();
  const auto results = bench_formats({.megabytes = 1, .seconds = 0.01, .features = features});

  ASSERT_TRUE(results);
  std::set<std::string> operations, kernels;
  for (const FormatResult& result : *results) {
    operations.insert(result.operation + " " + result.format);
    kernels.insert(result.kernel);
    EXPECT_GT(result.share_of_memcpy(), 0) << result.operation;
    EXPECT_EQ(to_json(result, 1)["kernel"], result.kernel);
  }
  EXPECT_EQ(operations.size(), 11u);
  EXPECT_TRUE(kernels.contains("portable/block_codec"));
  EXPECT_EQ(kernels.size(), features.empty() ? 1u : 2u);
}

TEST(BenchFormats, UsesOnlyThePortableKernelWhenThatIsForced) {
  const auto results = bench_formats({.megabytes = 1, .seconds = 0.01, .features = {}});

  ASSERT_TRUE(results);
  for (const FormatResult& result : *results) EXPECT_EQ(result.kernel, "portable/block_codec");
}

TEST(BenchFiles, MeasuresReadingAndEveryConversionBetweenDialects) {
  const auto results = bench_files(
      {.threads = 2, .megabytes = 4, .seconds = 0.01, .features = platform::detect_cpu_features()});

  ASSERT_TRUE(results) << text(results.why());
  std::set<std::string> seen;
  for (const FileResult& result : *results) {
    seen.insert(result.operation + " " + result.format + " " + result.from + " " + result.to);
    EXPECT_GT(result.share_of_copy(), 0);
    EXPECT_EQ(to_json(result, 1)["format"], result.format);
  }
  const std::map<std::string, std::vector<std::string>> dialects{
      {"mxfp4", {"gpt-oss", "openai", "compressed-tensors", "quark", "gguf"}},
      {"nvfp4", {"modelopt", "compressed-tensors", "gguf"}}};
  for (const auto& [format, names] : dialects) {
    for (const std::string& from : names) {
      EXPECT_TRUE(seen.contains("mmap_read " + format + " " + from + " ")) << from;
      for (const std::string& to : names) {
        if (from == "gguf" && to == "gguf") continue;  // nothing would change
        EXPECT_TRUE(seen.contains("to_memory " + format + " " + from + " " + to)) << from << to;
        EXPECT_TRUE(seen.contains("to_file " + format + " " + from + " " + to)) << from << to;
      }
    }
  }
}

TEST(BenchFiles, SaysWhyACheckpointCannotBeOpened) {
  const auto results = bench_files({.path = "/nonexistent/checkpoint"});

  ASSERT_FALSE(results);
  EXPECT_FALSE(results.why().id.empty());
}

TEST(BenchFiles, SaysWhyItCannotWrite) {
  const auto results = bench_files({.scratch = "/nonexistent/folder"});

  ASSERT_FALSE(results);
  EXPECT_EQ(results.why().id, "bench.scratch");
}

TEST(BenchRoute, MeasuresEveryModelWithBothTypesOfLogits) {
  const auto results = bench_route({.threads = 2, .seconds = 0.01, .tokens = {3, 70}});

  ASSERT_TRUE(results) << text(results.why());
  EXPECT_EQ(results->size(), 20u);
  for (const RouteResult& result : *results) {
    EXPECT_GT(result.ns_per_token(), 0) << result.model;
    EXPECT_GT(result.growth(), 0) << result.model;
    EXPECT_EQ(to_json(result, 2)["tokens"], result.tokens);
  }
}

TEST(BenchRoute, RefusesNoTokensAndTooMany) {
  EXPECT_EQ(bench_route({.tokens = {0}}).why().id, "bench.tokens");
  EXPECT_EQ(bench_route({.tokens = {8, 1 << 21}}).why().id, "bench.tokens");
}

}  // namespace questions_test
}  // namespace fp4moe::bench
