#include <cmath>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "fp4moe/moe/cuda/device_layer.hpp"
#include "fp4moe/moe/cuda/plan.hpp"
#include "support/clear_tokens.hpp"
#include "support/device.hpp"

namespace fp4moe::moe::cuda {
namespace device_layer_gpu_test {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of this test alone

class DeviceLayers : public OnDevice {};

// Tokens in rows of another type, `stride` bytes each.
std::vector<std::byte> rows_in(const TestTokens& tokens, DType dtype, std::uint64_t stride) {
  std::vector<std::byte> result(tokens.tokens * stride);
  std::vector<float> row(tokens.hidden);
  for (std::uint64_t t = 0; t < tokens.tokens; ++t) {
    read_row(tokens.rows(), t, std::span(row));
    write_row(std::span<const float>(row),
              {result.data(), dtype, tokens.tokens, tokens.hidden, stride}, t);
  }
  return result;
}

TEST_F(DeviceLayers, AgreeWithTheReferenceForAnyNumberOfTokens) {
  const std::pair<WeightFormat, Sizes> shapes[] = {
      {WeightFormat::mxfp4, {5, 96, 160}}, {WeightFormat::mxfp4, {8, 192, 128}},
      {WeightFormat::mxfp4, {3, 32, 32}},  {WeightFormat::nvfp4, {5, 112, 80}},
      {WeightFormat::nvfp4, {4, 16, 48}},  {WeightFormat::nvfp4, {6, 256, 208}}};
  for (const auto& [format, sizes] : shapes) {
    for (const Activation activation : {Activation::silu, Activation::swigluoai}) {
      const TestLayer weights = layer_of(format, sizes, activation);
      const ExpertsProblem problem = problem_of(weights);
      const DeviceLayer layer = make_layer(device, problem, weights.source());
      for (const std::uint64_t count :
           some_tokens({0, 1, 2, 3, 8, 9, 16, 17, 64, 100, 256, 1000})) {
        const TestTokens tokens(count, sizes.hidden, 2, sizes.experts, 40 + count);
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
          EXPECT_LE(error_of(reference(problem, weights, tokens),
                             run(layer, tokens, OutputForm::summed, dtype)),
                    kMaxError)
              << formats::name(format) << " " << sizes.hidden << " x " << sizes.intermediate << ", "
              << count << " tokens";
      }
    }
  }
}

TEST_F(DeviceLayers, AgreeWithTheReferenceOnLayersOfRealSize) {
  if (is_small()) GTEST_SKIP() << "small shapes only";
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const Sizes sizes{8, 2880, 2880};
    const TestLayer weights = layer_of(format, sizes, Activation::swigluoai);
    const ExpertsProblem problem = problem_of(weights);
    const DeviceLayer layer = make_layer(device, problem, weights.source());
    for (const std::uint64_t count : {1u, 7u, 16u, 17u, 40u}) {
      const TestTokens tokens(count, sizes.hidden, 4, sizes.experts, count);
      EXPECT_LE(error_of(reference(problem, weights, tokens),
                         run(layer, tokens, OutputForm::summed, DType::bf16)),
                kMaxError)
          << formats::name(format) << ", " << count << " tokens";
    }
  }
}

TEST_F(DeviceLayers, AgreeWithTheReferenceForManyTokens) {
  if (is_small()) GTEST_SKIP() << "few tokens only";
  const Sizes sizes{16, 256, 192};
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const TestLayer weights = layer_of(format, sizes);
    const ExpertsProblem problem = problem_of(weights);
    const DeviceLayer layer = make_layer(device, problem, weights.source());
    for (const std::uint64_t count : {2048u, 8192u}) {
      const TestTokens tokens(count, sizes.hidden, 4, sizes.experts, count);
      EXPECT_LE(error_of(reference(problem, weights, tokens), run(layer, tokens)), kMaxError)
          << formats::name(format) << ", " << count;
    }
  }
}

// Later tiles of bf16 tokens are written by the grouped GEMM, those of float32 tokens by gather.
void expect_same_bits(const DeviceLayer& layer, const TestTokens& tokens, Upload& given,
                      const WorkspaceLimits& limits) {
  const std::uint64_t stride = tokens.hidden * sizeof(float);
  const Memory floats = upload(layer.device(), rows_in(tokens, DType::f32, stride));
  run(layer, given, limits);
  const std::vector<std::byte> moved = given.bytes();
  given.call.in.x = {floats.data(), DType::f32, tokens.tokens, tokens.hidden, stride};
  run(layer, given, limits);
  EXPECT_TRUE(moved == given.bytes());
}

TEST_F(DeviceLayers, TheDeferredGatherFillsTheSameTilesAsGather) {
  if (!is_hopper(*device)) GTEST_SKIP() << "the kernels have no deferred gather";
  if (kIsEmulated) GTEST_SKIP() << "too many tokens: see GroupedGemm.FillsLaterTilesItself";
  const std::uint64_t count = 6000;
  const std::pair<std::uint64_t, std::uint64_t> shapes[] = {{200, 64}, {12, 64}, {12, 704}};
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4})
    for (const Activation activation : {Activation::silu, Activation::relu2_no_mul})
      for (const auto& [experts, hidden] : shapes) {
        if (is_small() && (experts != 12 || hidden != 64)) continue;
        const Sizes sizes{experts, hidden, 896};
        const TestLayer weights = layer_of(format, sizes, activation);
        const ExpertsProblem problem = problem_of(weights);
        const DeviceLayer layer = make_layer(device, problem, weights.source());
        SCOPED_TRACE(fmt::format("{} {}, {} experts, hidden {}", formats::name(format),
                                 row(activation).name, experts, hidden));
        const std::uint64_t assignments = count * 3, capacity = assignments / experts;
        const std::uint32_t tile = tile_tokens(*describe(problem), assignments);
        ASSERT_GT(tile, sm90::kMaxGatheredTokens);
        ASSERT_LT(initial_tiles(*describe(problem), tile,
                                static_cast<std::uint32_t>(device->facts().multiprocessors)),
                  std::max(assignments / tile, experts));
        const TestTokens tokens(count, hidden, 3, sizes.experts, hidden);
        Upload given(*device, tokens);
        expect_same_bits(layer, tokens, given, {.tokens = count, .top_k = 3});

        TestTokens rows(experts * capacity, hidden, 1, sizes.experts, hidden);
        std::vector<std::int32_t> counts(experts, static_cast<std::int32_t>(capacity));
        counts[3] = 0;
        counts[5] = 17;
        const Memory on_device = upload(*device, counts);
        Upload batches(*device, rows);
        batches.make_batches(on_device, capacity);
        expect_same_bits(layer, rows, batches, {.capacity = capacity});
      }
}

// Calls whose grouped GEMM sorts in its blocks, up to its limits, and other calls between them:
// counters are 0 between calls.
TEST_F(DeviceLayers, CallsOfAnySizeFollowEachOtherInOneWorkspace) {
  if (is_small()) GTEST_SKIP() << "few tokens only";
  for (const std::uint64_t experts : {96u, 640u, 641u})
    for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
      const Sizes sizes{experts, 64, 64};
      const TestLayer weights = layer_of(format, sizes);
      const ExpertsProblem problem = problem_of(weights);
      const DeviceLayer layer = make_layer(device, problem, weights.source());
      const Workspace space = reserve(layer, {.tokens = 1300, .top_k = 4});
      for (const std::uint64_t count : {1200u, 1300u, 17u, 1201u, 383u, 384u, 1300u, 40u}) {
        const TestTokens tokens(count, sizes.hidden, 4, sizes.experts, count);
        const Upload given(layer.device(), tokens);
        given.poison();
        const auto done = layer.apply(given.call, space, nullptr);
        ASSERT_TRUE(done) << text(done.why());
        const auto waited = layer.device().wait(nullptr);
        ASSERT_TRUE(waited) << text(waited.why());
        EXPECT_LE(error_of(reference(problem, weights, tokens), given.values()), kMaxError)
            << experts << " experts, " << formats::name(format) << ", " << count << " tokens";
      }
    }
}

TEST_F(DeviceLayers, ExpertsMayHaveNoTokensOrAll) {
  const Sizes sizes{is_small() ? 7u : 512u, 64, 64};
  const TestLayer weights = layer_of(WeightFormat::mxfp4, sizes);
  const ExpertsProblem problem = problem_of(weights);
  const DeviceLayer layer = make_layer(device, problem, weights.source());
  for (const std::uint64_t count : some_tokens({1, 16, 20, 300, 2000})) {
    TestTokens tokens(count, sizes.hidden, 3, sizes.experts, count);
    EXPECT_LE(error_of(reference(problem, weights, tokens), run(layer, tokens)), kMaxError);
    // All choices of all tokens are one expert: one assignment counts as often as it is named.
    for (std::int32_t& id : tokens.ids) id = static_cast<std::int32_t>(sizes.experts - 1);
    EXPECT_LE(error_of(reference(problem, weights, tokens), run(layer, tokens)), kMaxError);
    std::ranges::fill(tokens.ids, -1);
    EXPECT_EQ(run(layer, tokens), std::vector<double>(count * sizes.hidden, 0.0)) << count;
  }
}

TEST_F(DeviceLayers, ARankWithAnEmptyShareAddsItsBiasAlone) {
  const Sizes sizes{4, 96, 0};
  for (const Activation activation :
       {Activation::silu, Activation::relu2_no_mul, Activation::swigluoai})
    for (const std::string_view numerics : {"exact", "marlin"})
      for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
        const TestLayer weights = layer_of(format, sizes, activation);
        const ExpertsProblem problem = problem_of(weights, numerics);
        const DeviceLayer layer = make_layer(device, problem, weights.source());
        for (const std::uint64_t count : some_tokens({1, 16, 50})) {
          const TestTokens tokens(count, sizes.hidden, 2, sizes.experts, count);
          for (const OutputForm form : {OutputForm::summed, OutputForm::assignments})
            EXPECT_LE(error_of(reference(problem, weights, tokens, form), run(layer, tokens, form)),
                      kMaxError)
                << row(activation).name << " " << numerics << " " << formats::name(format) << ", "
                << count;
        }
      }
}

TEST_F(DeviceLayers, IdsOutsideAndMinusOneAreUnassigned) {
  const Sizes sizes{5, 96, 64};
  const TestLayer weights = layer_of(WeightFormat::nvfp4, sizes);
  const ExpertsProblem problem = problem_of(weights);
  const DeviceLayer layer = make_layer(device, problem, weights.source());
  for (const std::uint64_t count : some_tokens({4, 16, 50})) {
    TestTokens tokens(count, sizes.hidden, 4, sizes.experts, count);
    for (std::size_t i = 0; i < tokens.ids.size(); i += 3)
      tokens.ids[i] = i % 2 == 0 ? -1 : static_cast<std::int32_t>(sizes.experts + i);
    for (const OutputForm form : {OutputForm::summed, OutputForm::assignments})
      EXPECT_LE(error_of(reference(problem, weights, tokens, form), run(layer, tokens, form)),
                kMaxError)
          << count;
  }
}

TEST_F(DeviceLayers, GlobalIdsBecomePositionsByAMapOrAFirstExpert) {
  const Sizes sizes{4, 64, 96};
  const TestLayer weights = layer_of(WeightFormat::mxfp4, sizes);
  const ExpertsProblem problem = problem_of(weights);
  const DeviceLayer layer = make_layer(device, problem, weights.source());
  const std::vector<std::int32_t> map{-1, 2, -1, 0, 3, -1, 1};
  const Memory on_device = upload(*device, map);
  for (const std::uint64_t count : some_tokens({3, 16, 40})) {
    TestTokens global(count, sizes.hidden, 3, map.size(), count), mapped = global, moved = global;
    for (std::int32_t& id : mapped.ids) id = map[static_cast<std::size_t>(id)];
    for (std::int32_t& id : moved.ids) id = id >= 2 ? id - 2 : -1;
    Upload by_map(*device, global), by_first(*device, global);
    by_map.call.expert_map = {on_device.as<const std::int32_t>(), map.size()};
    by_first.call.first_expert = 2;
    const WorkspaceLimits limits{.tokens = count, .top_k = 3};
    EXPECT_LE(error_of(reference(problem, weights, mapped), run(layer, by_map, limits)), kMaxError);
    EXPECT_LE(error_of(reference(problem, weights, moved), run(layer, by_first, limits)),
              kMaxError);
  }
}

TEST_F(DeviceLayers, EveryActivationIsComputed) {
  const Sizes sizes{4, 96, 96};
  for (const ActivationRow& activation : kActivations) {
    TestLayer weights = layer_of(WeightFormat::mxfp4, sizes, activation.activation);
    weights.params.limit = std::min(weights.params.limit, 3.0);
    weights.params.situ_beta = 1.5;
    weights.params.situ_linear_beta = 2.5;
    if (activation.activation == Activation::swigluoai_uninterleave) {
      weights.params.alpha = 1.5;
      weights.params.beta = 0.75;
    }
    const ExpertsProblem problem = problem_of(weights);
    const DeviceLayer layer = make_layer(device, problem, weights.source());
    for (const std::uint64_t count : some_tokens({5, 16, 33})) {
      const TestTokens tokens(count, sizes.hidden, 2, sizes.experts, count);
      EXPECT_LE(error_of(reference(problem, weights, tokens), run(layer, tokens)), kMaxError)
          << activation.name << ", " << count;
    }
  }
}

TEST_F(DeviceLayers, EveryBackendsNumericsAreComputed) {
  const Sizes sizes{4, 96, 160};
  for (const Numerics& row : kNumerics)
    for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
      if (row.weights_in_bf16 && format == WeightFormat::nvfp4) continue;  // refused, see Plan
      for (const Activation activation : {Activation::silu, Activation::swigluoai}) {
        const TestLayer weights = layer_of(format, sizes, activation);
        const ExpertsProblem problem = problem_of(weights, row.id);
        const DeviceLayer layer = make_layer(device, problem, weights.source());
        for (const std::uint64_t count : some_tokens({7, 16, 40})) {
          const TestTokens tokens(count, sizes.hidden, 3, sizes.experts, count);
          EXPECT_LE(error_of(reference(problem, weights, tokens), run(layer, tokens)), kMaxError)
              << row.id << " " << formats::name(format) << ", " << count;
        }
      }
    }
}

TEST_F(DeviceLayers, EveryActivationSchemeIsComputed) {
  const Sizes sizes{4, 256, 128};
  const TestLayer weights = layer_of(WeightFormat::nvfp4, sizes);
  for (const ActivationKey key :
       {ActivationKey::mxfp8, ActivationKey::mxfp4, ActivationKey::nvfp4,
        ActivationKey::fp8_static_tensor, ActivationKey::fp8_block128, ActivationKey::fp8_token})
    for (const std::string_view numerics : {"native", "grouped", "trtllm"})
      for (const bool each : {false, true}) {
        ExpertsProblem problem = problem_of(weights, numerics);
        problem.quantizes = key;
        if (key == ActivationKey::nvfp4 || key == ActivationKey::fp8_static_tensor) {
          const float first = key == ActivationKey::nvfp4 ? 400.0f : 0.01f;
          for (std::size_t e = 0; e < (each ? sizes.experts : 1); ++e) {
            problem.input_scales.push_back(first * (1.0f + 0.25f * static_cast<float>(e)));
            problem.hidden_scales.push_back(first * (1.5f - 0.125f * static_cast<float>(e)));
          }
        } else if (each) {
          continue;
        }
        const ExpertsProblem expected = as_on_devices(problem);
        const DeviceLayer layer = make_layer(device, problem, weights.source());
        for (const std::uint64_t count : some_tokens({1, 6, 16, 40})) {
          const TestTokens tokens = ClearTokens(expected, weights).make(count, 2, count);
          ASSERT_EQ(tokens.tokens, count);
          EXPECT_LE(error_of(reference(expected, weights, tokens), run(layer, tokens)), kMaxError)
              << static_cast<int>(key) << " " << numerics << (each ? " each" : "") << ", " << count;
        }
      }
}

TEST_F(DeviceLayers, TokensOfAnyTypeAndStride) {
  const Sizes sizes{4, 96, 64};
  const TestLayer weights = layer_of(WeightFormat::mxfp4, sizes);
  const ExpertsProblem problem = problem_of(weights);
  const DeviceLayer layer = make_layer(device, problem, weights.source());
  for (const std::uint64_t count : some_tokens({5, 16, 30})) {
    const TestTokens tokens(count, sizes.hidden, 2, sizes.experts, count);
    const std::vector<double> expected = reference(problem, weights, tokens);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const std::uint64_t size = element_bytes(dtype), stride = (sizes.hidden + 24) * size;
      const Memory x = upload(*device, rows_in(tokens, dtype, stride));
      Upload given(*device, tokens);
      given.call.in.x = {x.data(), dtype, count, sizes.hidden, stride};
      // f16 loses nothing of these bf16 values but the smallest.
      EXPECT_LE(error_of(expected, run(layer, given, {.tokens = count, .top_k = 2})), kMaxError)
          << tensor::name(dtype) << ", " << count;
    }
  }
}

// Few tokens are rounded in their tile, those of float32 on their way there.
TEST_F(DeviceLayers, TokensOfAnyTypeAreQuantizedAlike) {
  if (kIsEmulated) GTEST_SKIP() << "too many tokens and experts";
  const Sizes sizes{24, is_small() ? 384u : 1152u, 128};
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const TestLayer weights = layer_of(format, sizes);
    for (const ActivationKey key : {ActivationKey::mxfp8, ActivationKey::mxfp4,
                                    ActivationKey::nvfp4, ActivationKey::fp8_block128}) {
      ExpertsProblem problem = problem_of(weights);
      problem.quantizes = key;
      if (key == ActivationKey::nvfp4) problem.input_scales = problem.hidden_scales = {400.0f};
      const DeviceLayer layer = make_layer(device, problem, weights.source());
      for (const std::uint64_t count : some_tokens({1, 2, 3, 5, 11, 16, 40})) {
        TestTokens tokens(count, sizes.hidden, 3, sizes.experts, count);
        for (std::uint16_t& x : tokens.x)  // all that f16 would not hold
          if (std::abs(formats::Bf16::decode(x)) < 0x1p-14f) x = 0;
        const std::vector<double> expected = run(layer, tokens);
        for (const DType dtype : {DType::f32, DType::f16}) {
          const std::uint64_t stride = sizes.hidden * element_bytes(dtype);
          const Memory x = upload(*device, rows_in(tokens, dtype, stride));
          Upload given(*device, tokens);
          given.call.in.x = {x.data(), dtype, count, sizes.hidden, stride};
          EXPECT_EQ(run(layer, given, {.tokens = count, .top_k = 3}), expected)
              << formats::name(format) << " " << static_cast<int>(key) << " " << tensor::name(dtype)
              << ", " << count;
        }
      }
    }
  }
}

TEST_F(DeviceLayers, BatchesAreComputedRowByRow) {
  const Sizes sizes{5, 64, 96};
  const TestLayer weights = layer_of(WeightFormat::nvfp4, sizes);
  const ExpertsProblem problem = problem_of(weights);
  const DeviceLayer layer = make_layer(device, problem, weights.source());
  const std::uint64_t capacity = is_small() ? 4 : 70;
  const std::vector<std::int32_t> counts{3, 0, static_cast<std::int32_t>(capacity), 1, 2};
  // The same rows in standard form: each goes to the expert whose batch it is in.
  TestTokens tokens(sizes.experts * capacity, sizes.hidden, 1, sizes.experts, 8);
  std::ranges::fill(tokens.weights, 1.0f);
  for (std::uint64_t i = 0; i < tokens.tokens; ++i) {
    const auto expert = static_cast<std::int32_t>(i / capacity);
    const bool is_used = static_cast<std::int32_t>(i % capacity) < counts[i / capacity];
    tokens.ids[i] = is_used ? expert : -1;
  }
  const std::vector<double> expected = reference(problem, weights, tokens);
  Upload given(*device, tokens);
  const Memory on_device = upload(*device, counts);
  given.make_batches(on_device, capacity);
  std::vector<double> found = run(layer, given, {.capacity = capacity});
  for (std::uint64_t i = 0; i < tokens.tokens; ++i)  // the others may hold anything
    if (tokens.ids[i] < 0)
      std::fill_n(found.begin() + static_cast<std::ptrdiff_t>(i * sizes.hidden), sizes.hidden, 0.0);
  EXPECT_LE(error_of(expected, found), kMaxError);
}

TEST_F(DeviceLayers, WithoutWeightsEveryChoiceCountsOnce) {
  const Sizes sizes{4, 64, 64};
  const TestLayer weights = layer_of(WeightFormat::mxfp4, sizes);
  const ExpertsProblem problem = problem_of(weights);
  const DeviceLayer layer = make_layer(device, problem, weights.source());
  for (const std::uint64_t count : some_tokens({9, 33})) {
    TestTokens tokens(count, sizes.hidden, 2, sizes.experts, 5);
    std::ranges::fill(tokens.weights, 1.0f);
    Upload given(*device, tokens);
    given.call.in.weights = {};
    EXPECT_LE(error_of(reference(problem, weights, tokens),
                       run(layer, given, {.tokens = count, .top_k = 2})),
              kMaxError);
  }
}

TEST_F(DeviceLayers, FewTokensGiveTheSameByEitherPath) {
  if (std::getenv("FP4MOE_CUDA_TEST_ROWS") != nullptr || !is_hopper(*device))
    GTEST_SKIP() << "one path only";
  const Sizes sizes{6, 160, 96};
  const TestLayer weights = layer_of(WeightFormat::mxfp4, sizes);
  const ExpertsProblem problem = problem_of(weights);
  const DeviceLayer layer = make_layer(device, problem, weights.source());
  const DeviceLayer rows = make_layer(device, problem, weights.source(), {.allow_decode = false});
  for (const std::uint64_t count : {1u, 8u, 13u, 16u}) {
    const TestTokens tokens(count, sizes.hidden, 3, sizes.experts, count);
    ASSERT_EQ(layer.kernel({.tokens = count, .top_k = 3}), "sm90/decode");
    const std::vector<double> summed = run(layer, tokens);
    EXPECT_LE(error_of(run(rows, tokens), summed), 1e-3) << count;
    const std::vector<double> assignments = run(layer, tokens, OutputForm::assignments);
    std::vector<double> expected(summed.size(), 0.0);
    for (std::uint64_t assignment = 0; assignment < tokens.ids.size(); ++assignment)
      for (std::uint64_t i = 0; i < sizes.hidden; ++i)
        expected[assignment / 3 * sizes.hidden + i] +=
            double{tokens.weights[assignment]} * assignments[assignment * sizes.hidden + i];
    EXPECT_LE(error_of(expected, summed), 1e-3) << count;
  }
}

// More of an expert's assignments than are multiplied at once, anywhere among the others.
TEST_F(DeviceLayers, FewTokensMayChooseAnExpertAgainAndAgain) {
  const Sizes sizes{40, 96, 64};
  const TestLayer weights = layer_of(WeightFormat::nvfp4, sizes);
  const ExpertsProblem problem = problem_of(weights);
  const DeviceLayer layer = make_layer(device, problem, weights.source());
  SplitMix64 random(11);
  for (const std::uint64_t experts : {1u, 3u, 40u})
    for (const std::uint64_t top_k : {5u, 9u, 32u}) {
      TestTokens tokens(16, sizes.hidden, top_k, sizes.experts, experts + top_k);
      for (std::int32_t& id : tokens.ids) {
        const std::uint64_t number = random.next();
        id = number % 7 == 0 ? -1 : static_cast<std::int32_t>(number / 7 % experts);
      }
      EXPECT_LE(error_of(reference(problem, weights, tokens), run(layer, tokens)), kMaxError)
          << experts << " experts, " << top_k << " choices";
    }
}

// Logits of distinct numbers, so that no two experts are equally good.
std::vector<float> logits_for(std::uint64_t tokens, std::uint64_t columns, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<float> result(tokens * columns);
  for (float& value : result) value = 6.0f * random.unit() - 3.0f;
  return result;
}

TEST_F(DeviceLayers, RoutingOnTheDeviceIsTheRoutersRouting) {
  const Sizes sizes{16, 64, 64};
  const TestLayer weights = layer_of(WeightFormat::mxfp4, sizes);
  const ExpertsProblem problem = problem_of(weights);
  const DeviceLayer layer = make_layer(device, problem, weights.source());
  using routing::Method;
  for (const Method method :
       {Method::softmax_topk, Method::renormalize_naive, Method::renormalize, Method::topk,
        Method::topk_sigmoid, Method::sigmoid, Method::sigmoid_renorm, Method::minimax2,
        Method::deepseek_v3, Method::softmax_bias, Method::grouped_softmax, Method::deepseek_v4}) {
    routing::RouterOptions options{.method = method, .experts = sizes.experts, .top_k = 3};
    if (routing::row(method).takes_groups) {
      options.groups = 4;
      options.chosen_groups = 2;
    }
    if (routing::row(method).takes_bias)
      for (std::size_t e = 0; e < sizes.experts; ++e)
        options.bias.push_back(0.03125f * static_cast<float>(e % 5));
    if (routing::row(method).takes_scale) options.scale = 2.5;
    const auto router = routing::Router::make(options);
    ASSERT_TRUE(router) << text(router.why());
    const auto on_device = DeviceRouter::make(device, options);
    ASSERT_TRUE(on_device) << text(on_device.why());
    for (const std::uint64_t count : some_tokens({1, 11, 16, 45, 200})) {
      TestTokens tokens(count, sizes.hidden, 3, sizes.experts, count);
      const std::vector<float> logits = logits_for(count, sizes.experts, 90 + count);
      ThreadPool pool(1);
      ASSERT_TRUE(router->route({.logits = {logits.data(), DType::f32, count, sizes.experts, 0}},
                                {.ids = tokens.ids, .weights = tokens.weights}, pool));
      Upload given(*device, tokens);
      const Memory uploaded = upload(*device, logits);
      given.call.in = {{.x = given.call.in.x}};
      given.call.router = &*on_device;
      given.call.in.logits = {uploaded.data(), DType::f32, count, sizes.experts,
                              sizes.experts * sizeof(float)};
      const std::vector<double> found = run(layer, given, {.tokens = count, .top_k = 3});
      EXPECT_LE(error_of(reference(problem, weights, tokens), found), kMaxError)
          << routing::name(method) << ", " << count;
      EXPECT_LE(error_of(run(layer, tokens), found), 1e-5)
          << routing::name(method) << ", " << count;
    }
  }
}

TEST_F(DeviceLayers, RefuseRoutingThatTheDeviceLacks) {
  routing::RouterOptions simulated{.method = routing::Method::simulated, .experts = 8, .top_k = 2};
  EXPECT_EQ(DeviceRouter::make(device, simulated).why().id, "cuda.routing");
  routing::RouterOptions zeros{
      .method = routing::Method::renormalize, .experts = 8, .top_k = 2, .zero_experts = 1};
  EXPECT_EQ(DeviceRouter::make(device, zeros).why().id, "cuda.routing");
  routing::RouterOptions many{.method = routing::Method::renormalize, .experts = 2000, .top_k = 2};
  EXPECT_EQ(DeviceRouter::make(device, many).why().id, "cuda.limits");
  EXPECT_EQ(DeviceRouter::make(device, {.experts = 8, .top_k = 9}).why().id, "routing.top_k");
}

TEST_F(DeviceLayers, AWorkspaceServesLayersOfTheSameSizes) {
  const Sizes sizes{4, 64, 64};
  const TestLayer weights = layer_of(WeightFormat::mxfp4, sizes);
  const TestLayer others = layer_of(WeightFormat::mxfp4, sizes, Activation::silu, 99);
  const TestLayer larger = layer_of(WeightFormat::mxfp4, {4, 128, 64});
  const DeviceLayer first = make_layer(device, problem_of(weights), weights.source());
  const DeviceLayer second = make_layer(device, problem_of(others), others.source());
  const DeviceLayer third = make_layer(device, problem_of(larger), larger.source());
  const TestTokens tokens(10, 64, 2, 4, 1), wide(10, 128, 2, 4, 1);
  const Upload given(*device, tokens), given_wide(*device, wide);
  const Workspace space = reserve(first, {.tokens = 10, .top_k = 2});
  ASSERT_TRUE(second.apply(given.call, space, nullptr));
  ASSERT_TRUE(device->wait(nullptr));
  EXPECT_LE(error_of(reference(problem_of(others), others, tokens), given.values()), kMaxError);
  EXPECT_EQ(third.apply(given_wide.call, space, nullptr).why().id, "cuda.workspace");
}

TEST_F(DeviceLayers, CallsThatCannotBeAreRefusedBeforeAnythingRuns) {
  const Sizes sizes{4, 64, 64};
  const TestLayer weights = layer_of(WeightFormat::mxfp4, sizes);
  const DeviceLayer layer = make_layer(device, problem_of(weights), weights.source());
  const TestTokens tokens(10, sizes.hidden, 2, sizes.experts, 1);
  const Upload given(*device, tokens);
  const Workspace space = reserve(layer, {.tokens = 10, .top_k = 2});
  const auto refused = [&](const auto& change) {
    DeviceCall call = given.call;
    change(call);
    const auto done = layer.apply(call, space, nullptr);
    return done ? std::string("accepted") : done.why().id;
  };
  given.poison();
  std::vector<std::int32_t> on_host(20, 0);
  EXPECT_EQ(refused([](DeviceCall& call) { call.in.x.data = nullptr; }), "cuda.pointer");
  EXPECT_EQ(refused([](DeviceCall& call) { call.out.data = nullptr; }), "cuda.pointer");
  EXPECT_EQ(refused([](DeviceCall& call) { call.in.ids = {}; }), "cuda.pointer");
  EXPECT_EQ(refused([](DeviceCall& call) { call.in.x.data += 2; }), "cuda.pointer");
  EXPECT_EQ(refused([](DeviceCall& call) { call.out.data += 8; }), "cuda.pointer");
  EXPECT_EQ(refused([&](DeviceCall& call) { call.in.ids = on_host; }), "cuda.pointer");
  EXPECT_EQ(refused([](DeviceCall& call) { call.in.x.stride = 100; }), "cuda.size");
  EXPECT_EQ(refused([](DeviceCall& call) { call.in.x.stride = 130; }), "cuda.size");
  EXPECT_EQ(refused([](DeviceCall& call) { call.in.x.columns = 32; }), "cuda.size");
  EXPECT_EQ(refused([](DeviceCall& call) { call.out.rows = 9; }), "cuda.size");
  EXPECT_EQ(refused([](DeviceCall& call) { call.in.x.dtype = DType::f64; }), "cuda.type");
  EXPECT_EQ(refused([](DeviceCall& call) { call.in.x.rows = 11; }), "cuda.workspace");
  EXPECT_EQ(refused([](DeviceCall& call) { call.in.top_k = 3; }), "cuda.workspace");
  EXPECT_EQ(refused([](DeviceCall& call) { call.in.top_k = 33; }), "cuda.limits");
  EXPECT_EQ(refused([](DeviceCall& call) { call.form = OutputForm::batches; }), "cuda.call");
  EXPECT_EQ(refused([](DeviceCall& call) { call.in.counts = call.in.ids; }), "cuda.call");
  EXPECT_EQ(refused([](DeviceCall& call) { call.in.ids = call.in.ids.first(19); }), "cuda.size");
  ASSERT_TRUE(device->wait(nullptr));
  for (const double value : given.values()) EXPECT_TRUE(std::isnan(value));
}

TEST_F(DeviceLayers, DevicesAndMemoryThatAreNotThereAreSaidInWords) {
#ifndef FP4MOE_EMULATED_DEVICE
  EXPECT_EQ(Device::open(1000).why().id, "cuda.ordinal");
  EXPECT_EQ(Device::open(-1).why().id, "cuda.ordinal");
#endif
  const TestLayer weights = layer_of(WeightFormat::mxfp4, {4, 1024, 64});
  const DeviceLayer layer = make_layer(device, problem_of(weights), weights.source());
  const auto space = layer.reserve({.tokens = 8 << 20, .top_k = 32});  // half a terabyte
  ASSERT_FALSE(space);
  EXPECT_TRUE(space.why().id == "cuda.memory" || space.why().id == "cuda.limits");
  EXPECT_EQ(layer.reserve({.tokens = std::uint64_t{1} << 40, .top_k = 2}).why().id, "cuda.limits");
}

TEST_F(DeviceLayers, ScalesThatAreNotNumbersAreRefused) {
  TestLayer weights = layer_of(WeightFormat::mxfp4, {2, 64, 64});
  weights.up[1].scales[5] = std::byte{255};
  const auto result = DeviceLayer::make(device, problem_of(weights), weights.source());
  ASSERT_FALSE(result);
  EXPECT_EQ(result.why().id, "experts.scales");
  EXPECT_EQ(result.why().tensor, "expert 1, up row 2, block 1");
  TestLayer negative = layer_of(WeightFormat::nvfp4, {2, 64, 64});
  negative.down[0].scales[3] = std::byte{0xB8};
  EXPECT_EQ(DeviceLayer::make(device, problem_of(negative), negative.source()).why().id,
            "scale.negative");
  TestLayer spread = layer_of(WeightFormat::mxfp4, {2, 64, 64});
  spread.gate[0].scales[0] = std::byte{0};
  spread.gate[0].scales[1] = std::byte{254};
  EXPECT_EQ(DeviceLayer::make(device, problem_of(spread), spread.source()).why().id, "scale.range");
}

}  // namespace device_layer_gpu_test
}  // namespace fp4moe::moe::cuda
