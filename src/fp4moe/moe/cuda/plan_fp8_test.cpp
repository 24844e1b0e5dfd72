// Which calls run on FP8 tensor cores.
#include <gtest/gtest.h>

#include "fp4moe/moe/cuda/plan.hpp"

namespace fp4moe::moe::cuda {
namespace plan_fp8_test {

constexpr std::uint8_t kRowScale = 254;  // not read

// A layer as it is once its weights are on the device.
sm90::LayerParams layer_of(ActivationKey key, std::string_view numerics = "native",
                           Activation activation = Activation::silu) {
  ExpertsProblem problem{.shape = {.experts = 8, .hidden = 2880, .intermediate = 2880},
                         .activation = activation,
                         .numerics = **require_numerics(numerics)};
  problem.quantizes = key;
  if (key == ActivationKey::fp8_static_tensor)
    problem.input_scales = problem.hidden_scales = {0.5f};
  Result<sm90::LayerParams> result = describe(problem);
  EXPECT_TRUE(result) << text(result.why());
  if (!result) return {};
  result->w13.row_scales = result->w2.row_scales = &kRowScale;
  return *result;
}

bool is_fp8(const sm90::LayerParams& layer, const CallSize& size, bool allow_fp8 = true) {
  return plan_call(layer, size, Family::sm90, {.allow_fp8 = allow_fp8}).is_fp8;
}

TEST(PlanFp8, TakesCallsOfManyTokensOfAnExpert) {
  const std::pair<ActivationKey, std::uint64_t> first_of[] = {{ActivationKey::fp8_token, 96},
                                                              {ActivationKey::fp8_block128, 384}};
  for (const auto& [key, first] : first_of) {
    const sm90::LayerParams layer = layer_of(key);
    EXPECT_TRUE(computes_in_fp8(layer));
    EXPECT_FALSE(is_fp8(layer, {.tokens = first - 1, .top_k = 2}));
    const CallPlan plan = plan_call(layer, {.tokens = first, .top_k = 2});
    EXPECT_TRUE(plan.is_fp8);
    EXPECT_EQ(plan.tile_tokens, key == ActivationKey::fp8_token ? 64u : 160u);
    EXPECT_EQ(plan.prescale, 1.0f);
    EXPECT_FALSE(plan.is_block_sorted);
    EXPECT_EQ(plan_call(layer, {.tokens = 4000, .top_k = 2}).tile_tokens, 160u);
  }
}

TEST(PlanFp8, LeavesToBf16WhatItDoesNotHave) {
  const CallSize many{.tokens = 1000, .top_k = 2};
  const sm90::LayerParams layer = layer_of(ActivationKey::fp8_token);
  EXPECT_TRUE(is_fp8(layer, many));
  EXPECT_FALSE(is_fp8(layer, many, false));
  EXPECT_FALSE(plan_call(layer, many, Family::sm80).is_fp8);
  CallSize other = many;
  other.has_adapters = true;
  EXPECT_FALSE(is_fp8(layer, other));
  other = many;
  other.is_quantized = true;
  EXPECT_FALSE(is_fp8(layer, other));
  sm90::LayerParams wide = layer;  // a row that does not fit into E4M3
  wide.w2.row_scales = nullptr;
  EXPECT_FALSE(is_fp8(wide, many));
  EXPECT_FALSE(is_fp8(layer_of(ActivationKey::fp8_static_tensor), many));
  EXPECT_FALSE(is_fp8(layer_of(ActivationKey::none), many));
  EXPECT_FALSE(is_fp8(layer_of(ActivationKey::mxfp8), many));
  EXPECT_FALSE(is_fp8(layer_of(ActivationKey::fp8_token, "grouped"), many));
  EXPECT_FALSE(is_fp8(layer_of(ActivationKey::fp8_token, "marlin"), many));
  EXPECT_FALSE(is_fp8(layer_of(ActivationKey::fp8_token, "native", Activation::gelu), many));
}

TEST(PlanFp8, WorkspacesHoldTokensAndTheirScales) {
  const auto plan = [](const sm90::LayerParams& layer) {
    const auto result = plan_workspace(layer, {.tokens = 1000, .top_k = 2}, {.blocks = 132});
    EXPECT_TRUE(result) << text(result.why());
    return result ? *result : WorkspacePlan{};
  };
  const auto bytes = [](const WorkspacePlan& from, Region region) {
    return from.bytes[static_cast<std::size_t>(region)];
  };
  const sm90::LayerParams layer = layer_of(ActivationKey::fp8_block128);
  const WorkspacePlan with = plan(layer);
  const std::uint64_t rows = max_rows(2000, 8);
  EXPECT_EQ(bytes(with, Region::h_fp8), rows * 23 * 132);
  EXPECT_EQ(bytes(with, Region::token_scales), rows * 8);
  EXPECT_GE(bytes(with, Region::x), rows * 23 * 132);
  const WorkspacePlan without = plan(layer_of(ActivationKey::none));
  EXPECT_EQ(bytes(without, Region::h_fp8), 0u);
  EXPECT_EQ(bytes(without, Region::token_scales), 0u);
  EXPECT_NE(workspace_key(layer), workspace_key(layer_of(ActivationKey::none)));
}

// One of two layers of the same sizes may have rows that do not fit into E4M3.
TEST(PlanFp8, WorkspacesDoNotDependOnTheWeights) {
  for (const ActivationKey key : {ActivationKey::fp8_token, ActivationKey::fp8_block128}) {
    const sm90::LayerParams layer = layer_of(key);
    sm90::LayerParams wide = layer;
    wide.w2.row_scales = nullptr;
    EXPECT_TRUE(has_fp8_kernels(wide));
    EXPECT_FALSE(computes_in_fp8(wide));
    EXPECT_EQ(workspace_key(layer), workspace_key(wide));
    const WorkspaceLimits limits{.tokens = 1000, .top_k = 2};
    const auto plan = plan_workspace(layer, limits, {.blocks = 132});
    const auto of_wide = plan_workspace(wide, limits, {.blocks = 132});
    ASSERT_TRUE(plan && of_wide);
    EXPECT_EQ(plan->at, of_wide->at);
    EXPECT_EQ(plan->total, of_wide->total);
  }
  sm90::LayerParams nvfp4 = layer_of(ActivationKey::fp8_token);
  nvfp4.is_nvfp4 = 1;
  EXPECT_FALSE(has_fp8_kernels(nvfp4));
}

}  // namespace plan_fp8_test
}  // namespace fp4moe::moe::cuda
