// Routing on the device against the exact row of moe/routing, which every method's golden data
// have passed.
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "fp4moe/moe/routing/rows.hpp"
#include "kernels.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace kernels_route_test {

namespace routing = moe::routing;
using routing::RowPlan;
using tensor::DType;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

DType dtype_of(ElementType type) {
  return type == ElementType::bf16  ? DType::bf16
         : type == ElementType::f16 ? DType::f16
                                    : DType::f32;
}

struct Logits {
  ElementType type = ElementType::f32;
  std::uint32_t tokens = 0, columns = 0;
  std::uint32_t stride = 0;
  std::vector<float> values{};  // [tokens, stride]
};

// Few different values, so that there are ties; or all so near each other that only their last bits
// tell them apart; now and then one that is not finite.
Logits random_logits(ElementType type, std::uint32_t tokens, std::uint32_t columns,
                     std::uint64_t seed) {
  Logits result{.type = type, .tokens = tokens, .columns = columns, .stride = columns + 3};
  SplitMix64 random(seed);
  for (std::uint32_t t = 0; t < tokens; ++t) {
    const float step = t % 3 == 0 ? 0.5f : 0x1p-20f;
    const bool is_near = t % 7 == 2;
    const float size = is_near ? 0x1p-14f : t % 5 == 0 ? 60.0f : 4.0f;
    const std::uint64_t wild = t % 4 == 0 ? 8 : ~std::uint64_t{0};
    for (std::uint32_t c = 0; c < result.stride; ++c) {
      float value = std::round((2 * random.unit() - 1) * size / step) * step;
      if (is_near) value += 1.0f;
      const std::uint64_t kind = random.next() % wild;
      if (kind == 0) value = t % 8 == 0 ? kNan : -kInfinity;
      if (kind == 1) value = t % 16 == 4 ? kInfinity : -0.0f;
      result.values.push_back(as_stored(type, value));
    }
  }
  return result;
}

class Route : public OnDevice {
 protected:
  void expect_routed(const RowPlan& plan, const Logits& logits, bool in_bf16 = false) {
    const std::size_t assignments = std::size_t{logits.tokens} * plan.top_k;
    const Memory on_device = upload(stored(logits.type, logits.values));
    const std::vector<float> bias(plan.bias.begin(), plan.bias.end());
    const Memory bias_on_device = upload(bias);
    const Memory weights = buffer<float>(assignments);
    const RouteParams params{
        .logits = {on_device.data(), logits.type, logits.tokens, logits.stride},
        .tokens = logits.tokens,
        .columns = logits.columns,
        .top_k = static_cast<std::uint32_t>(plan.top_k),
        .key = plan.key,
        .weight = plan.weight,
        .normal = plan.normalization,
        .groups = static_cast<std::uint32_t>(plan.groups),
        .chosen_groups = static_cast<std::uint32_t>(plan.chosen_groups),
        .adds_two_per_group = plan.adds_two_per_group ? 1u : 0u,
        .scores_in_logits_type = plan.scores_in_logits_dtype ? 1u : 0u,
        .weights_in_bf16 = in_bf16 ? 1u : 0u,
        .bias = bias.empty() ? nullptr : bias_on_device.as<float>(),
        .scale = static_cast<float>(plan.scale),
        .weights = weights.as<float>()};
    const auto made_ids = routed_ids(params);
    const auto made_weights = download<float>(weights, assignments);
    const auto bytes = stored(logits.type, logits.values);
    std::vector<std::int32_t> row_ids(plan.top_k);
    std::vector<float> row_weights(plan.top_k);
    for (std::uint32_t t = 0; t < logits.tokens; ++t) {
      const std::size_t width = logits.type == ElementType::f32 ? 4 : 2;
      routing::route_row_exact(plan, {.logits = bytes.data() + t * logits.stride * width,
                                      .dtype = dtype_of(logits.type),
                                      .ids = row_ids,
                                      .weights = row_weights});
      for (std::size_t j = 0; j < plan.top_k; ++j) {
        const std::size_t assignment = t * plan.top_k + j;
        ASSERT_EQ(made_ids[assignment], row_ids[j]) << "token " << t << ", choice " << j;
        const float wanted =
            in_bf16 ? as_stored(ElementType::bf16, row_weights[j]) : row_weights[j];
        const float within = in_bf16 ? 0.004f : 1e-6f;
        ASSERT_NEAR(made_weights[assignment], wanted, within * std::abs(wanted) + 1e-37f)
            << "token " << t << ", choice " << j;
      }
    }
  }

  // By prepare, whose own work is looked at elsewhere.
  std::vector<std::int32_t> routed_ids(const RouteParams& params) {
    const std::size_t assignments = std::size_t{params.tokens} * params.top_k;
    const Memory ranks = buffer<std::int32_t>(assignments + 3);
    const Memory expert_counts =
        upload(std::vector<std::uint32_t>(params.columns * kCounterStride));
    PrepareParams prepare{.route = params, .rank_blocks = prepare_rank_blocks(params, assignments)};
    prepare.call.tokens = params.tokens;
    prepare.call.top_k = params.top_k;
    prepare.layer.experts = params.columns;
    prepare.tables.rank_of_assignment = ranks.as<std::int32_t>();
    prepare.tables.expert_counts = expert_counts.as<std::uint32_t>();
    run("fp4moe_sm90_prepare", prepare,
        {prepare.rank_blocks, kPrepareThreads, prepare_shared_bytes(params.columns)});
    auto result = download<std::int32_t>(ranks, assignments);
    for (std::int32_t& both : result) both = static_cast<std::int32_t>(packed_expert(both));
    return result;
  }

  // All types, at sizes that do and do not fill a warp.
  void expect_all(RowPlan plan, const std::vector<std::uint32_t>& columns) {
    std::uint64_t seed = 0;
    for (const ElementType type : {ElementType::bf16, ElementType::f16, ElementType::f32})
      for (const std::uint32_t width : columns)
        for (const std::uint32_t top_k : {1u, 4u, 8u}) {
          SCOPED_TRACE(
              fmt::format("type {}, {} columns, {} choices", static_cast<int>(type), width, top_k));
          plan.columns = width;
          plan.top_k = std::min(top_k, width);
          const std::vector<float> bias = random_values(width, 77, 0.1f);
          if (!plan.bias.empty()) plan.bias = bias;
          expect_routed(plan, random_logits(type, 100, width, ++seed));
        }
  }
};

const std::vector<std::uint32_t> kAllColumns{3, 32, 60, 128, 129, 512, 1024};
const std::vector<float> kSomeBias{1.0f};  // stands for one of the right size

TEST_F(Route, TakesTheLargestLogits) {
  expect_all({.normalization = Normalization::softmax}, kAllColumns);
  expect_all({}, kAllColumns);
}

TEST_F(Route, WeighsLogitsByTheirSigmoid) { expect_all({.weight = Score::sigmoid}, kAllColumns); }

TEST_F(Route, ComparesSoftmaxAsTheHostRoundsIt) {
  expect_all({.key = Score::softmax, .weight = Score::softmax}, kAllColumns);
  expect_all(
      {.key = Score::softmax, .weight = Score::softmax, .normalization = Normalization::over_sum},
      kAllColumns);
}

TEST_F(Route, ComparesSigmoidAsTheHostRoundsIt) {
  expect_all(
      {.key = Score::sigmoid, .weight = Score::sigmoid, .normalization = Normalization::over_sum},
      kAllColumns);
}

TEST_F(Route, AddsTheCorrectionBiasToTheKeysAlone) {
  expect_all({.key = Score::sigmoid,
              .weight = Score::sigmoid,
              .normalization = Normalization::over_sum_eps,
              .bias = kSomeBias,
              .scale = 2.5},
             kAllColumns);
  expect_all({.key = Score::sqrt_softplus,
              .weight = Score::sqrt_softplus,
              .normalization = Normalization::over_sum,
              .bias = kSomeBias,
              .scale = 1.5},
             kAllColumns);
}

TEST_F(Route, ChoosesGroupsFirst) {
  for (const bool rounds : {false, true})
    for (const bool adds_two : {false, true})
      for (const bool is_softmax : {false, true}) {
        const auto score = is_softmax ? Score::softmax : Score::sigmoid;
        RowPlan plan{.key = score,
                     .weight = score,
                     .normalization = Normalization::over_sum_eps,
                     .groups = 8,
                     .chosen_groups = 4,
                     .adds_two_per_group = adds_two,
                     .scale = 2.5,
                     .scores_in_logits_dtype = rounds};
        if (adds_two) plan.bias = kSomeBias;
        expect_all(plan, {64, 256, 1024});
        plan.groups = 64;
        plan.chosen_groups = 33;
        expect_all(plan, {256});
      }
}

TEST_F(Route, RoundsWeightsWhereAsked) {
  expect_routed({.normalization = Normalization::softmax, .columns = 128, .top_k = 4},
                random_logits(ElementType::bf16, 100, 128, 5), true);
}

TEST_F(Route, TakesMoreChoicesThanUsual) {
  for (const std::uint32_t columns : {32u, 100u, 512u})
    expect_routed({.normalization = Normalization::softmax, .columns = columns, .top_k = 32},
                  random_logits(ElementType::f32, 17, columns, 5));
}

}  // namespace kernels_route_test
}  // namespace fp4moe::kernels::cuda::sm90
