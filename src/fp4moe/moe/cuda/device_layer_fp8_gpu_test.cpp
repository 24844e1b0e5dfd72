// Layers on FP8 tensor cores, against the reference.
#include <fmt/format.h>

#include "fp4moe/moe/cuda/device_layer.hpp"
#include "fp4moe/moe/cuda/plan.hpp"
#include "support/device.hpp"

namespace fp4moe::moe::cuda {
namespace device_layer_fp8_gpu_test {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of this test alone

// Sums of 14 bits move some values of h over a border between two codes, which are up to an eighth
// apart. The kernels' own errors are held to less in tests/cuda.
constexpr double kMaxFp8Error = 1.2e-2;

class DeviceLayersFp8 : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    if (!is_hopper(*device)) GTEST_SKIP() << "the kernels have no FP8 tensor cores";
  }
  static ExpertsProblem fp8_problem(const TestLayer& weights, ActivationKey key,
                                    std::string_view numerics = "native") {
    ExpertsProblem result = problem_of(weights, numerics);
    result.quantizes = key;
    return result;
  }
  // As the kernels compute it: h is rounded to bf16 before it is quantized.
  static ExpertsProblem expected_problem(ExpertsProblem problem) {
    problem.numerics.middle = MiddleRounding::result;
    return problem;
  }
};

constexpr ActivationKey kKeys[] = {ActivationKey::fp8_block128, ActivationKey::fp8_token};

TEST_F(DeviceLayersFp8, AgreeWithTheReferenceForAnyNumberOfTokens) {
  std::vector<Sizes> shapes{{3, 32, 32}, {5, 96, 160}, {8, 384, 320}};
  std::vector<std::uint64_t> counts{400, 600, 1000};
  if (is_small()) {
    shapes.resize(1);
    counts.resize(1);
  }
  for (const Sizes& sizes : shapes)
    for (const Activation activation : {Activation::silu, Activation::swigluoai})
      for (const ActivationKey key : kKeys) {
        const TestLayer weights = layer_of(WeightFormat::mxfp4, sizes, activation);
        const ExpertsProblem problem = fp8_problem(weights, key);
        const DeviceLayer layer =
            make_layer(device, problem, weights.source(), {.allow_decode = false});
        ASSERT_EQ(layer.wide_rows(), 0);
        for (const std::uint64_t count : counts) {
          ASSERT_EQ(layer.kernel({.tokens = count, .top_k = 2}), "sm90/fp8");
          const TestTokens tokens(count, sizes.hidden, 2, sizes.experts, 40 + count);
          for (const OutputForm form : {OutputForm::summed, OutputForm::assignments})
            EXPECT_LE(error_of(reference(expected_problem(problem), weights, tokens, form),
                               run(layer, tokens, form)),
                      kMaxFp8Error)
                << static_cast<int>(key) << ", " << sizes.hidden << " x " << sizes.intermediate
                << ", " << count << " tokens";
        }
      }
}

TEST_F(DeviceLayersFp8, AgreeWithTheReferenceOnLayersOfRealSize) {
  if (is_small()) GTEST_SKIP() << "small shapes only";
  const Sizes sizes{4, 2880, 2880};
  const TestLayer weights = layer_of(WeightFormat::mxfp4, sizes, Activation::swigluoai);
  for (const ActivationKey key : kKeys) {
    const ExpertsProblem problem = fp8_problem(weights, key);
    const DeviceLayer layer = make_layer(device, problem, weights.source());
    for (const std::uint64_t count : {200u, 300u}) {
      const TestTokens tokens(count, sizes.hidden, 2, sizes.experts, count);
      EXPECT_LE(error_of(reference(expected_problem(problem), weights, tokens),
                         run(layer, tokens, OutputForm::summed, DType::bf16)),
                kMaxFp8Error)
          << static_cast<int>(key) << ", " << count;
    }
  }
}

TEST_F(DeviceLayersFp8, BatchesAndEveryNumericsThatTheyHave) {
  const Sizes sizes{4, 128, 192};
  const TestLayer weights = layer_of(WeightFormat::mxfp4, sizes);
  for (const std::string_view numerics : {"native", "trtllm", "fused", "triton_fused"})
    for (const ActivationKey key : kKeys) {
      const ExpertsProblem problem = fp8_problem(weights, key, numerics);
      const DeviceLayer layer =
          make_layer(device, problem, weights.source(), {.allow_decode = false});
      const TestTokens tokens(130, sizes.hidden, 3, sizes.experts, 5);
      EXPECT_LE(error_of(reference(expected_problem(problem), weights, tokens), run(layer, tokens)),
                kMaxFp8Error)
          << numerics;
    }
}

// Other activations, adapters and weights that do not fit into E4M3 take the way of bf16.
TEST_F(DeviceLayersFp8, OnlyWhatTheKernelsHave) {
  const Sizes sizes{4, 96, 96};
  const auto kernel = [&](const TestLayer& weights, const ExpertsProblem& problem,
                          DeviceLayerOptions options = {}) {
    return std::string(
        make_layer(device, problem, weights.source(), options).kernel({.tokens = 100, .top_k = 2}));
  };
  const TestLayer silu = layer_of(WeightFormat::mxfp4, sizes);
  EXPECT_EQ(kernel(silu, fp8_problem(silu, ActivationKey::fp8_token)), "sm90/fp8");
  EXPECT_EQ(kernel(silu, fp8_problem(silu, ActivationKey::fp8_token), {.allow_fp8 = false}),
            "sm90/rows");
  EXPECT_EQ(kernel(silu, fp8_problem(silu, ActivationKey::none)), "sm90/rows");
  EXPECT_EQ(kernel(silu, fp8_problem(silu, ActivationKey::mxfp8)), "sm90/rows");
  EXPECT_EQ(kernel(silu, fp8_problem(silu, ActivationKey::fp8_token, "grouped")), "sm90/rows");
  const TestLayer gelu = layer_of(WeightFormat::mxfp4, sizes, Activation::gelu);
  EXPECT_EQ(kernel(gelu, fp8_problem(gelu, ActivationKey::fp8_token)), "sm90/rows");
  const TestLayer nvfp4 = layer_of(WeightFormat::nvfp4, sizes);
  EXPECT_EQ(kernel(nvfp4, fp8_problem(nvfp4, ActivationKey::fp8_token)), "sm90/rows");
}

TEST_F(DeviceLayersFp8, EveryRunGivesTheSameBitsInAnyTile) {
  const Sizes sizes{16, 192, 128};
  const TestLayer weights = layer_of(WeightFormat::mxfp4, sizes);
  for (const ActivationKey key : kKeys) {
    const ExpertsProblem problem = fp8_problem(weights, key);
    const DeviceLayer layer = make_layer(device, problem, weights.source());
    for (const std::uint64_t count : some_tokens({700, 3000})) {
      TestTokens tokens(count, sizes.hidden, 4, sizes.experts, count);
      for (std::uint64_t t = 0; t < count; ++t)
        tokens.ids[4 * t] = static_cast<std::int32_t>(t % 5 == 0 ? t % sizes.experts : 3);
      const std::vector<double> first = run(layer, tokens);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(run(layer, tokens), first) << count;
    }
  }
}

}  // namespace device_layer_fp8_gpu_test
}  // namespace fp4moe::moe::cuda
