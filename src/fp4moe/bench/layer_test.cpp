// Whole layers on tiny models by the reference engine, and drawings of what was measured.
#include "fp4moe/bench/layer.hpp"

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fp4moe/bench/layer_exact.hpp"
#include "fp4moe/bench/layer_tokens.hpp"
#include "fp4moe/bench/plot.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "fp4moe/kernels/cpu/gemm_list.hpp"
#include "support/files.hpp"

namespace fp4moe::bench {
namespace layer_test {

LayerBenchOptions tiny(const std::string& model, const std::string& format = {}) {
  return {.model = {.model = model,
                    .format = format,
                    .layers = 2,
                    .threads = 2,
                    .experts = 16,
                    .hidden = 96,
                    .intermediate = 64},
          .tokens = {1, 5},
          .engines = {"reference"},
          .last_level_bytes = 1 << 20,
          .seconds = 0.01,
          .ceilings = Ceilings{.read_gb_per_s = 20, .int8_gop_per_s = 100}};
}

TEST(BenchLayer, MeasuresGatedAndOtherModelsInBothFormats) {
  const std::pair<const char*, const char*> kinds[] = {{"gpt-oss-20b", "mxfp4"},
                                                       {"qwen3-30b-a3b", "nvfp4"},
                                                       {"nemotron-3-nano", "nvfp4"},
                                                       {"deepseek-v3", ""},
                                                       {"llama-4-scout", ""}};
  for (const auto& [model, format] : kinds) {
    const auto report = bench_layer(tiny(model, format));

    ASSERT_TRUE(report) << model << text(report.why());
    ASSERT_EQ(report->results.size(), 2u) << model;
    for (const LayerResult& result : report->results) {
      EXPECT_EQ(result.engine, "reference");
      EXPECT_EQ(result.threads, 2u);
      EXPECT_EQ(result.layers, 2u);
      EXPECT_GE(result.active_experts, static_cast<double>(result.top_k)) << model;
      EXPECT_LE(result.active_experts, 16) << model;
      EXPECT_GT(result.timing.us_median, 0) << model;
      EXPECT_GT(result.floor_us, 0) << model;
      // Float64 sums, rounded to float32 at the end.
      EXPECT_LT(result.rel_error, 1e-6) << model;
      EXPECT_GT(result.rel_error, 0) << model;
    }
  }
}

TEST(BenchLayer, CountsBytesOperationsAndTheFloorAsTheFormatsHaveThem) {
  const auto report = bench_layer(tiny("gpt-oss-20b", "mxfp4"));

  ASSERT_TRUE(report) << text(report.why());
  const LayerResult& one = report->results[0];
  const double weights = 3.0 * 96 * 64, bytes = 4 * weights * 17 / 32;
  EXPECT_DOUBLE_EQ(one.active_experts, 4);
  EXPECT_DOUBLE_EQ(one.timing.work, bytes);
  EXPECT_DOUBLE_EQ(one.operations, 2 * 4 * weights);
  EXPECT_DOUBLE_EQ(one.floor_us,
                   std::max(bytes / report->ceilings.read_gb_per_s / 1e3,
                            2 * one.operations / report->ceilings.int8_gop_per_s / 1e3));
  const Json row = to_json(one);
  for (const char* key : {"model", "format", "tokens", "active_experts", "threads", "engine",
                          "kernel", "numerics", "us_median", "us_p10", "us_p90", "gb_per_s",
                          "gflop_per_s", "floor_us", "ratio_to_floor", "rel_error"})
    EXPECT_TRUE(row.contains(key)) << key;
  const auto other = bench_layer(tiny("nemotron-3-nano", "nvfp4"));
  ASSERT_TRUE(other) << text(other.why());
  EXPECT_DOUBLE_EQ(other->results[0].timing.work, 6 * 2.0 * 96 * 64 * 18 / 32);
  EXPECT_DOUBLE_EQ(other->results[0].operations, 2 * 6 * 2.0 * 96 * 64);
}

TEST(BenchLayer, TakesLayersOfACheckpoint) {
  const tensor::testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/model";
  ASSERT_TRUE(checkpoint::synth(
      {.model = "gpt-oss-20b", .layers = 2, .experts = 8, .hidden = 64, .intermediate = 64}, path));
  LayerBenchOptions options = tiny(path);
  options.model.layers = 3;  // one is a copy
  options.ceilings.reset();
  const auto report = bench_layer(options);

  ASSERT_TRUE(report) << text(report.why());
  EXPECT_GT(report->ceilings.read_gb_per_s, 0);
  EXPECT_GT(report->ceilings.int8_gop_per_s, 0);
  EXPECT_EQ(report->results[0].format, "mxfp4");
  EXPECT_EQ(report->results[0].layers, 3u);
  EXPECT_LT(report->results[1].rel_error, 1e-6);
  options.model.format = "nvfp4";
  EXPECT_EQ(bench_layer(options).why().id, "bench.format");
}

TEST(BenchLayer, TheCpuEngineIsWithinItsErrors) {
  for (const char* model : {"gpt-oss-20b", "nemotron-3-nano"}) {
    LayerBenchOptions options = tiny(model);
    options.engines = {"cpu", "reference"};
    options.numerics = {"exact", "fast"};
    const auto report = bench_layer(options);

    ASSERT_TRUE(report) << text(report.why());
    ASSERT_EQ(report->results.size(), 8u);
    for (std::size_t i = 0; i < 8; ++i) {
      const LayerResult& result = report->results[i];
      EXPECT_EQ(result.engine, i % 4 < 2 ? "cpu" : "reference");
      EXPECT_EQ(result.numerics, i % 2 == 0 ? "exact" : "fast");
      if (result.engine != "cpu") continue;
      EXPECT_LT(result.rel_error, result.numerics == "exact" ? 2e-4 : 5e-2) << result.kernel;
      EXPECT_GT(result.rel_error, result.numerics == "exact" ? 1e-6 : 1e-3) << result.kernel;
    }
  }
}

TEST(BenchLayer, RefusesWhatItCannotMeasure) {
  const auto id = [](auto change) {
    LayerBenchOptions options = tiny("gpt-oss-20b");
    change(options);
    const auto report = bench_layer(options);
    return report ? std::string("measured") : report.why().id;
  };
  EXPECT_EQ(id([](auto& o) { o.tokens = {0}; }), "bench.tokens");
  EXPECT_EQ(id([](auto& o) { o.tokens = {1, 1 << 20}; }), "bench.tokens");
  EXPECT_EQ(id([](auto& o) { o.model.model = "gpt-oss-21b"; }), "models.unknown");
  EXPECT_EQ(id([](auto& o) { o.model.format = "int4"; }), "bench.format");
  EXPECT_EQ(id([](auto& o) { o.numerics = {"exact", "guessed"}; }), "bench.numerics");
  EXPECT_EQ(id([](auto& o) { o.engines = {"steam"}; }), "engine.unknown");
  EXPECT_EQ(id([](auto& o) { o.routing = "lucky"; }), "bench.routing");
  EXPECT_EQ(id([](auto& o) { o.model.memory = 100; }), "bench.memory");
  EXPECT_EQ(id([](auto& o) { o.model.hidden = 72; }), "bench.shape");
}

TEST(BenchLayer, ADeviceIsMeasuredByItself) {
  LayerBenchOptions options = tiny("gpt-oss-20b");
  options.engines = {"cpu", "cuda"};
  EXPECT_EQ(bench_layer(options).why().id, "bench.engines");
  options.engines = {"cpu"};
  options.activations = {"mxfp8"};
  EXPECT_EQ(bench_layer(options).why().id, "bench.activations");
  options.engines = {"cuda"};
  const auto report = bench_layer(options);
  if (!report) {
    EXPECT_TRUE(report.why().id.starts_with("cuda.")) << text(report.why());
    EXPECT_EQ(report.why().code, ErrorCode::unavailable);
    return;
  }
  for (const LayerResult& result : report->results) {
    EXPECT_EQ(result.engine, "cuda");
    EXPECT_LT(result.rel_error, 2e-2);
    EXPECT_GT(result.rel_error_unquantized, result.rel_error);
    EXPECT_GT(result.floor_us, 0);
  }
}

TEST(BenchLayer, ADeviceIsSustainedAfterWorkAndALongMeasurement) {
  const auto is_sustained = [](double warm_up, double seconds) {
    const GpuFacts gpu{.warm_up = warm_up, .seconds = seconds};
    const Json json = to_json(gpu);
    EXPECT_EQ(json["warm_up_s"], warm_up);
    EXPECT_EQ(json["seconds"], seconds);
    EXPECT_EQ(json["is_sustained"], gpu.is_sustained());
    EXPECT_EQ(sustained_text(gpu).starts_with("sustained: "), gpu.is_sustained());
    EXPECT_EQ(sustained_text(gpu).starts_with("burst: "), !gpu.is_sustained());
    return gpu.is_sustained();
  };
  EXPECT_TRUE(is_sustained(kSustainedWarmUp, kSustainedSeconds));
  EXPECT_TRUE(is_sustained(60, 8.25));
  EXPECT_FALSE(is_sustained(8, 60));
  EXPECT_FALSE(is_sustained(10, 0.5));
  EXPECT_FALSE(is_sustained(0, 0.5));
  EXPECT_EQ(sustained_text({.warm_up = 10, .seconds = 4.125}),
            "sustained: after 10 s of work, 4.12 s measured");
  EXPECT_EQ(
      sustained_text({.warm_up = 10, .seconds = 0.5}),
      "burst: after 10 s of work, 0.5 s measured, clocks may be higher than in use (sustained: "
      "from 10 and 4 s)");
}

TEST(BenchLayer, TheErrorAgainstUnquantizedActivationsStandsBesideTheOther) {
  LayerResult result{.timing = {.us_median = 1}, .floor_us = 1, .rel_error = 3e-3};
  EXPECT_FALSE(to_json(result).contains("rel_error_unquantized"));
  result.rel_error_unquantized = 2.5e-2;
  EXPECT_EQ(to_json(result)["rel_error_unquantized"], 2.5e-2);
  EXPECT_EQ(to_json(result)["rel_error"], 3e-3);
}

TEST(BenchLayer, QuantizedActivationsHaveExactOutputsOfTheirOwn) {
  const auto model = LayerModel::open(tiny("gpt-oss-20b").model);
  ASSERT_TRUE(model) << text(model.why());
  const auto pool = std::make_shared<ThreadPool>(2);
  const auto tokens =
      make_tokens(model->router(), {.tokens = 2, .hidden = 96, .routings = 1}, *pool);
  ASSERT_TRUE(tokens) << text(tokens.why());
  moe::ExpertsProblem problem = model->problem(**moe::require_numerics("exact"));
  const auto exact = exact_outputs(*model, problem, *tokens, pool);
  ASSERT_TRUE(exact) << text(exact.why());
  problem.quantizes = moe::ActivationKey::fp8_token;
  const auto quantized = exact_outputs(*model, problem, *tokens, pool);
  ASSERT_TRUE(quantized) << text(quantized.why());
  const double error =
      relative_error(*exact, std::vector<float>(quantized->begin(), quantized->end()));
  EXPECT_GT(error, 1e-3);
  EXPECT_LT(error, 1e-1);
}

TEST(BenchLayer, KeepsAsManyLayersAsCachesNeedAndMemoryHolds) {
  LayerModelOptions options = tiny("gpt-oss-20b").model;
  options.layers = 0;
  const double layer = 16 * 3.0 * 96 * 64 * 17 / 32;
  options.keep = static_cast<std::uint64_t>(4.5 * layer);
  EXPECT_EQ(LayerModel::open(options)->layers(), 5u);
  options.keep = 0;
  EXPECT_EQ(LayerModel::open(options)->layers(), 2u);
  options.memory = static_cast<std::uint64_t>(1.5 * layer);
  EXPECT_EQ(LayerModel::open(options)->layers(), 1u);
}

TEST(BenchLayer, WeightsAreThoseOfNormalDataAndDifferFromExpertToExpert) {
  const checkpoint::MoeShape shape{.experts = 8, .hidden = 256, .intermediate = 128};
  const auto experts = RandomExperts::make(shape, 7);
  ASSERT_TRUE(experts);
  std::map<int, int> scales;
  std::set<const std::byte*> places;
  for (std::uint64_t layer = 0; layer < 2; ++layer)
    for (std::uint64_t e = 0; e < shape.experts; ++e) {
      const checkpoint::ExpertView view = experts->expert(layer, e);
      places.insert({view.gate.codes.data, view.up.codes.data, view.down.codes.data});
      for (std::uint64_t row = 0; row < view.up.scales.rows; ++row)
        for (const std::byte scale : view.up.scales.row(row)) ++scales[static_cast<int>(scale)];
    }
  EXPECT_GT(places.size(), 40u);
  // Deviation 1/16, largest of 32 about 2.2 of it: two neighboring scales hold nearly all blocks.
  int all = 0, most = 0, second = 0;
  for (const auto& [scale, count] : scales) {
    all += count;
    if (count > most)
      second = std::exchange(most, count);
    else
      second = std::max(second, count);
  }
  EXPECT_GT(most + second, all * 95 / 100);
}

TEST(BenchLayer, SkewedRoutingSendsHalfOfTheTokensToAnEighthOfTheExperts) {
  const moe::routing::RouterOptions router{
      .method = moe::routing::Method::renormalize, .experts = 64, .top_k = 4};
  ThreadPool pool(1);
  const auto set =
      make_tokens(router, {.tokens = 64, .hidden = 8, .routings = 2, .routing = "skewed"}, pool);
  ASSERT_TRUE(set);
  const auto routes = set->route(*moe::routing::Router::make(router), 0, pool);
  ASSERT_TRUE(routes);
  for (std::size_t assignment = 0; assignment < routes->ids.size(); ++assignment)
    EXPECT_TRUE(assignment / 4 % 2 == 1 || routes->ids[assignment] < 8) << assignment;
  const auto even = make_tokens(router, {.tokens = 64, .hidden = 8, .routings = 2}, pool);
  ASSERT_TRUE(even);
  EXPECT_GT(even->active_experts, 60);
  EXPECT_NE(even->logits[0], even->logits[1]);
}

// The rows of this architecture between the marks of docs/cpu.md are those of the build's table.
TEST(BenchLayer, ThePageListsTheKernelsOfTheBuild) {
  std::vector<std::string> expected, found;
  for (const kernels::cpu::GemmKernel& kernel : kernels::cpu::gemm_kernels())
    expected.push_back(fmt::format("| `{}` | {} | {} |", kernel.name, platform::text(kernel.needs),
                                   kernel.tiles->generation));
  const std::string tiles(kernels::cpu::gemm_kernels().front().tiles->generation);
  std::ifstream page(std::string(FP4MOE_TESTDATA) + "/../docs/cpu.md");
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line == "<!-- kernels -->") inside = !inside;
    if (inside && line.ends_with(fmt::format("| {} |", tiles))) found.push_back(line);
  }
  EXPECT_EQ(found, expected);
}

Json layer_row(double tokens, double us, const std::string& kernel) {
  return {{"model", "a < b"}, {"format", "mxfp4"}, {"kernel", kernel}, {"threads", 2},
          {"routing", "r&d"}, {"tokens", tokens},  {"us_median", us},  {"floor_us", us / 2}};
}

std::vector<double> numbers(const std::string& drawing, const std::string& attribute) {
  std::vector<double> found;
  const std::regex pattern(attribute + "=\"([0-9.]+)\"");
  for (std::sregex_iterator at(drawing.begin(), drawing.end(), pattern), end; at != end; ++at)
    found.push_back(std::stod((*at)[1]));
  return found;
}

// Tags close in the order they were opened.
bool is_well_formed(const std::string& drawing) {
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z]+)((?: [a-zA-Z0-9-]+=\"[^\"<>]*\")*)(/?)>");
  std::size_t tags = 0;
  for (std::sregex_iterator at(drawing.begin(), drawing.end(), tag), end; at != end; ++at, ++tags) {
    if ((*at)[4] == "/") continue;
    if ((*at)[1] != "/") {
      open.push_back((*at)[2]);
    } else {
      if (open.empty() || open.back() != (*at)[2]) return false;
      open.pop_back();
    }
  }
  // Every angle bracket belongs to a tag, every ampersand begins an entity.
  const auto brackets = static_cast<std::size_t>(std::ranges::count(drawing, '<'));
  const std::regex loose("&(?!(amp|lt|gt|quot);)");
  return open.empty() && tags == brackets && !std::regex_search(drawing, loose);
}

TEST(BenchPlot, PutsPointsWhereTheyBelongOnLogarithmicAxes) {
  const Json report{{"results",
                     {layer_row(16, 4000, "exact"), layer_row(1, 1000, "exact"),
                      layer_row(4, 2000, "exact"), layer_row(1, 500, "fast")}}};
  const auto plot = layer_plot(std::vector{report});
  ASSERT_TRUE(plot) << text(plot.why());
  ASSERT_EQ(plot->series.size(), 2u);
  EXPECT_EQ(plot->series[0].name, "exact");
  EXPECT_EQ(plot->series[1].name, "fast");
  EXPECT_EQ(plot->title, "a < b, mxfp4, 2 threads, r&d routing");
  const auto drawing = svg(*plot);

  ASSERT_TRUE(drawing);
  EXPECT_TRUE(is_well_formed(*drawing));
  const std::vector<double> x = numbers(*drawing, "cx"), y = numbers(*drawing, "cy");
  ASSERT_EQ(x.size(), 4u);
  // In the order of tokens, at equal distances for equal ratios; more time is higher up.
  EXPECT_LT(x[0], x[1]);
  EXPECT_NEAR(x[1] - x[0], x[2] - x[1], 0.2);
  EXPECT_NEAR(y[0] - y[1], y[1] - y[2], 0.2);
  EXPECT_GT(y[0], y[1]);
  EXPECT_DOUBLE_EQ(x[3], x[0]);
  EXPECT_NEAR(y[3] - y[0], y[0] - y[1], 0.2);
  const PlotArea area = plot_area(*plot);
  EXPECT_NEAR(x[2], area.x(16), 0.1);
  EXPECT_NEAR(y[2], area.y(4000), 0.1);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_GT(x[i], area.left);
    EXPECT_LT(x[i], area.left + area.width);
    EXPECT_GT(y[i], area.top);
    EXPECT_LT(y[i], area.top + area.height);
  }
  EXPECT_NE(drawing->find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_EQ(numbers(*drawing, "r").size(), 4u);
}

TEST(BenchPlot, ASinglePointHasAnExtent) {
  const auto plot = layer_plot(std::vector{Json{{"results", {layer_row(8, 100, "exact")}}}});
  ASSERT_TRUE(plot);
  const auto drawing = svg(*plot);
  ASSERT_TRUE(drawing);
  EXPECT_EQ(drawing->find("nan"), std::string::npos);
  EXPECT_EQ(drawing->find("inf"), std::string::npos);
}

TEST(BenchPlot, RefusesOtherDocumentsAndNumbersWithoutALogarithm) {
  const auto id = [](const Json& report) {
    const auto plot = layer_plot(std::vector{report});
    if (!plot) return plot.why().id;
    const auto drawing = svg(*plot);
    return drawing ? std::string("drawn") : drawing.why().id;
  };
  EXPECT_EQ(id(Json::array()), "plot.report");
  EXPECT_EQ(id({{"results", 1}}), "plot.report");
  EXPECT_EQ(id({{"results", {1}}}), "plot.report");
  EXPECT_EQ(id({{"results", Json::array()}}), "plot.empty");
  for (const char* key : {"model", "kernel", "threads", "tokens", "us_median", "floor_us"}) {
    Json row = layer_row(1, 1, "exact");
    row.erase(key);
    EXPECT_EQ(id({{"results", Json::array({row})}}), "plot.report") << key;
    row[key] = Json::array();
    EXPECT_EQ(id({{"results", Json::array({row})}}), "plot.report") << key;
  }
  EXPECT_EQ(id({{"results", Json::array({layer_row(0, 1, "exact")})}}), "plot.values");
  EXPECT_EQ(id({{"results", Json::array({layer_row(1, -1, "exact")})}}), "plot.values");
  EXPECT_EQ(id({{"results", Json::array({layer_row(1, 1e308, "exact")})}}), "plot.values");
  EXPECT_EQ(id({{"results", Json::array({layer_row(1e-308, 1, "exact")})}}), "plot.values");
  Json many = Json::array();
  for (int i = 0; i < 20; ++i) many.push_back(layer_row(1, 1, std::to_string(i)));
  EXPECT_EQ(id({{"results", many}}), "plot.series");
  Plot endless{.series = {{.name = "a", .points = {{1, std::numeric_limits<double>::infinity()}}}}};
  EXPECT_EQ(svg(endless).why().id, "plot.values");
}

}  // namespace layer_test
}  // namespace fp4moe::bench
