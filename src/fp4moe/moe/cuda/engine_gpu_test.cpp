#include <cstring>

#include "fp4moe/moe/cuda/engine.hpp"
#include "support/device.hpp"

namespace fp4moe::moe::cuda {
namespace engine_gpu_test {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of this test alone

class CudaEngines : public OnDevice {
 protected:
  static std::unique_ptr<Experts> make(const ExpertsProblem& problem, const TestLayer& layer,
                                       CudaOptions options = {}) {
    auto result =
        CudaEngine(std::make_shared<ThreadPool>(2), options).make(problem, layer.source());
    EXPECT_TRUE(result) << text(result.why());
    return result ? std::move(*result) : nullptr;
  }
  // By this engine or by the reference, in float64 rows.
  static std::vector<double> compute(Experts& experts, const ExpertsCall& call, OutputForm form) {
    const std::uint64_t hidden = experts.problem().shape.hidden;
    const std::uint64_t rows =
        form == OutputForm::assignments ? call.in.x.rows * call.in.top_k : call.in.x.rows;
    std::vector<double> out(rows * hidden, std::nan(""));
    const auto done =
        experts.compute(call, form, dense_rows(std::span(out), DType::f64, rows, hidden));
    EXPECT_TRUE(done) << text(done.why());
    return out;
  }
  static std::unique_ptr<Experts> exact(const ExpertsProblem& problem, const TestLayer& layer) {
    auto result =
        reference::ReferenceEngine(std::make_shared<ThreadPool>(8)).make(problem, layer.source());
    EXPECT_TRUE(result) << text(result.why());
    return std::move(*result);
  }
};

TEST_F(CudaEngines, RowsOfTheHostComeBackComputed) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const Sizes sizes{5, 96, 160};
    const TestLayer weights = layer_of(format, sizes, Activation::swigluoai);
    const auto experts = make(problem_of(weights), weights);
    const auto truth = exact(problem_of(weights), weights);
    EXPECT_EQ(experts->engine(), "cuda");
    EXPECT_TRUE(experts->kernel().ends_with("/exact")) << experts->kernel();
    for (const std::uint64_t count : some_tokens({0, 1, 3, 16, 17, 100, 5, 400})) {
      const TestTokens tokens(count, sizes.hidden, 2, sizes.experts, count);
      const Prepared in = tokens.prepared();
      for (const OutputForm form : {OutputForm::summed, OutputForm::assignments})
        EXPECT_LE(error_of(compute(*truth, {.in = in}, form), compute(*experts, {.in = in}, form)),
                  kMaxError)
            << formats::name(format) << ", " << count;
    }
  }
}

TEST_F(CudaEngines, LargeCallsGoInPassesWithoutADifference) {
  const Sizes sizes{4, 96, 64};
  const TestLayer weights = layer_of(WeightFormat::mxfp4, sizes);
  const auto whole = make(problem_of(weights), weights);
  const auto parts = make(problem_of(weights), weights, {.workspace_bytes = 2 << 20});
  const TestTokens tokens(is_small() ? 20 : 3000, sizes.hidden, 2, sizes.experts, 4);
  const Prepared in = tokens.prepared();
  EXPECT_LE(error_of(compute(*whole, {.in = in}, OutputForm::summed),
                     compute(*parts, {.in = in}, OutputForm::summed)),
            1e-5);
}

TEST_F(CudaEngines, InputInFloat32IsRoundedToBf16) {
  const Sizes sizes{4, 64, 64};
  const TestLayer weights = layer_of(WeightFormat::mxfp4, sizes);
  const auto experts = make(problem_of(weights), weights);
  const TestTokens tokens(18, sizes.hidden, 2, sizes.experts, 4);
  std::vector<float> x(tokens.x.size());
  std::vector<double> wide(tokens.x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = formats::Bf16::decode(tokens.x[i]) * 1.0001f;  // rounds back
    wide[i] = double{x[i]};
  }
  Prepared in = tokens.prepared();
  const std::vector<double> expected = compute(*experts, {.in = in}, OutputForm::summed);
  in.x = dense_rows(std::span<const float>(x), DType::f32, 18, sizes.hidden);
  EXPECT_EQ(compute(*experts, {.in = in}, OutputForm::summed), expected);
  in.x = dense_rows(std::span<const double>(wide), DType::f64, 18, sizes.hidden);
  EXPECT_EQ(compute(*experts, {.in = in}, OutputForm::summed), expected);
}

TEST_F(CudaEngines, MapsWeightsOnTheInputAndQuantizedRowsAreTaken) {
  const Sizes sizes{4, 64, 96};
  const TestLayer weights = layer_of(WeightFormat::nvfp4, sizes);
  const auto experts = make(problem_of(weights), weights);
  const auto truth = exact(problem_of(weights), weights);
  const std::vector<std::int32_t> map{-1, 2, 0, -1, 1, 3};
  for (const std::uint64_t count : some_tokens({6, 40})) {
    const TestTokens tokens(count, sizes.hidden, 1, map.size(), count);
    Prepared in = tokens.prepared();
    ExpertsCall call{.in = in, .expert_map = map};
    EXPECT_LE(error_of(compute(*truth, call, OutputForm::summed),
                       compute(*experts, call, OutputForm::summed)),
              kMaxError);
    call.weight_on_input = true;
    EXPECT_LE(error_of(compute(*truth, call, OutputForm::summed),
                       compute(*experts, call, OutputForm::summed)),
              kMaxError);
    in.is_quantized = true;
    in.factor = 0.375f;
    EXPECT_LE(error_of(compute(*truth, call, OutputForm::summed),
                       compute(*experts, call, OutputForm::summed)),
              kMaxError);
  }
}

// Random adapters of all experts.
struct Adapters {
  std::vector<std::vector<float>> memory{};
  std::vector<LoraExpert> pairs{};
  LoraView view{};

  Adapters(const checkpoint::MoeShape& shape, std::uint64_t count, std::uint64_t rank) {
    SplitMix64 random(17);
    const auto matrix = [&](std::uint64_t rows, std::uint64_t columns) {
      std::vector<float>& values = memory.emplace_back(rows * columns);
      for (float& value : values) value = 0.25f * (random.unit() - 0.5f);
      return FloatMatrix{values.data(), rows, columns, columns};
    };
    const auto pair = [&](std::uint64_t inputs, std::uint64_t outputs) {
      return LowRank{matrix(rank, inputs), matrix(outputs, rank)};
    };
    for (std::uint64_t i = 0; i < count * shape.experts; ++i) {
      LoraExpert& result = pairs.emplace_back();
      result.gate = pair(shape.hidden, shape.intermediate);
      if (i % 3 != 1) result.up = pair(shape.hidden, shape.intermediate);
      if (i % 3 != 2) result.down = pair(shape.intermediate, shape.hidden);
    }
    view = {.pairs = pairs, .experts = shape.experts};
  }
};

TEST_F(CudaEngines, AdaptersAreAdded) {
  for (const std::string_view numerics : {"exact", "unfused", "marlin"})
    for (const auto& [format, intermediate] : {std::pair{WeightFormat::mxfp4, 64u},
                                               {WeightFormat::nvfp4, 64u},
                                               {WeightFormat::mxfp4, 0u}}) {
      const Sizes sizes{4, 96, intermediate};
      const TestLayer weights = layer_of(format, sizes);
      const auto experts = make(problem_of(weights, numerics), weights);
      const auto truth = exact(problem_of(weights, numerics), weights);
      const Adapters adapters(weights.shape, 3, 5);
      for (const std::uint64_t count : some_tokens({4, 16, 50})) {
        const TestTokens tokens(count, sizes.hidden, 2, sizes.experts, count);
        std::vector<std::int32_t> of_token;
        for (std::uint64_t t = 0; t < count; ++t)
          of_token.push_back(static_cast<std::int32_t>(t % 4) - 1);
        Prepared in = tokens.prepared();
        in.adapters = of_token;
        const ExpertsCall call{.in = in, .lora = adapters.view};
        for (const OutputForm form : {OutputForm::summed, OutputForm::assignments})
          EXPECT_LE(error_of(compute(*truth, call, form), compute(*experts, call, form)), kMaxError)
              << numerics << " " << formats::name(format) << " " << intermediate << ", " << count;
      }
    }
}

TEST_F(CudaEngines, BatchesComeBackWhereTheyWere) {
  const Sizes sizes{5, 64, 96};
  const TestLayer weights = layer_of(WeightFormat::mxfp4, sizes);
  for (const std::uint64_t limit : {std::uint64_t{2} << 30, std::uint64_t{1} << 20}) {
    const auto experts = make(problem_of(weights), weights, {.workspace_bytes = limit});
    const auto truth = exact(problem_of(weights), weights);
    const std::uint64_t capacity = is_small() ? 3 : 200;
    const std::vector<std::int32_t> counts{2, 0, static_cast<std::int32_t>(capacity), 1, 3};
    const TestTokens tokens(sizes.experts * capacity, sizes.hidden, 1, sizes.experts, 6);
    Prepared in{{.x = tokens.rows()}, TokenFormat::batched};
    in.counts = counts;
    in.capacity = capacity;
    std::vector<double> expected = compute(*truth, {.in = in}, OutputForm::batches);
    std::vector<double> found = compute(*experts, {.in = in}, OutputForm::batches);
    for (std::uint64_t i = 0; i < tokens.tokens; ++i) {
      if (static_cast<std::int32_t>(i % capacity) < counts[i / capacity]) continue;
      // Unassigned rows stay as they were.
      for (std::vector<double>* values : {&expected, &found})
        for (double& value : std::span(*values).subspan(i * sizes.hidden, sizes.hidden)) {
          EXPECT_TRUE(std::isnan(value)) << i;
          value = 0.0;
        }
    }
    EXPECT_LE(error_of(expected, found), kMaxError) << limit;
  }
}

TEST_F(CudaEngines, NumericsThatRoundWeightsAreTheReferenceEngines) {
  const TestLayer weights = layer_of(WeightFormat::nvfp4, {2, 64, 64});
  const auto experts = make(problem_of(weights, "nvfp4_emulation"), weights);
  EXPECT_EQ(experts->kernel(), "reference/nvfp4_emulation");
}

TEST_F(CudaEngines, ARankWithoutExpertsAddsNothing) {
  const TestLayer weights = layer_of(WeightFormat::mxfp4, {0, 64, 64});
  const auto experts = make(problem_of(weights), weights);
  TestTokens tokens(3, 64, 2, 4, 1);
  const Prepared in = tokens.prepared();
  EXPECT_EQ(compute(*experts, {.in = in}, OutputForm::summed), std::vector<double>(3 * 64, 0.0));
}

TEST_F(CudaEngines, CallsAreCheckedLikeThoseOfOtherEngines) {
  const TestLayer weights = layer_of(WeightFormat::mxfp4, {4, 64, 64});
  const auto experts = make(problem_of(weights), weights);
  const TestTokens tokens(3, 64, 2, 4, 1);
  Prepared in = tokens.prepared();
  in.ids = in.ids.first(5);
  std::vector<float> out(3 * 64);
  EXPECT_EQ(
      experts
          ->compute({.in = in}, OutputForm::summed, dense_rows(std::span(out), DType::f32, 3, 64))
          .why()
          .id,
      "experts.ids");
  EXPECT_EQ(CudaEngine(std::make_shared<ThreadPool>(1), {.ordinal = 99})
                .make(problem_of(weights), weights.source())
                .why()
                .id,
            "cuda.ordinal");
}

}  // namespace engine_gpu_test
}  // namespace fp4moe::moe::cuda
