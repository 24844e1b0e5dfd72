// The host's side of a layer, on any machine.
#include "fp4moe/moe/cuda/device_layer.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/sm90_scale.hpp"
#include "fp4moe/kernels/cuda/sm90/route/params.hpp"
#include "fp4moe/kernels/cuda/sm90/row_scales/params.hpp"
#include "fp4moe/moe/cuda/plan.hpp"
#include "support/fake_device.hpp"

namespace fp4moe::moe::cuda {
namespace device_layer_test {

using checkpoint::WeightFormat;
using kernels::cuda::FakeDriver;
using kernels::cuda::Memory;
using moe::testing::TestLayer;

using DeviceLayers = testing::FakeDevice;

TEST_F(DeviceLayers, FewTokensAreOneLaunchAndManyASequence) {
  const TestLayer layer = weights();
  const auto result = make(layer);
  ASSERT_TRUE(result) << text(result.why());
  // Two matrices of each expert; then both of all experts. row_scales has no pdl_wait.
  std::vector<std::string> loading(8, "pack");
  loading.insert(loading.end(), 2, "row_scales");
  for (const auto& launch : fake_->launches)
    EXPECT_EQ(launch.has_pdl, launch.kernel.ends_with("pack")) << launch.kernel;
  EXPECT_EQ(launched(), loading);
  const auto space = result->reserve({.tokens = 400, .top_k = 2, .capacity = 10});
  ASSERT_TRUE(space) << text(space.why());
  ASSERT_TRUE(result->apply(call(16), *space, nullptr));
  ASSERT_EQ(fake_->launches.size(), 1u);
  EXPECT_TRUE(fake_->launches[0].is_cooperative);
  EXPECT_TRUE(fake_->launches[0].has_pdl);
  EXPECT_EQ(fake_->launches[0].blocks, static_cast<unsigned>(device_->facts().multiprocessors));
  EXPECT_EQ(launched(), (std::vector<std::string>{"decode_generic_mxfp4"}));
  using Names = std::vector<std::string>;
  const std::pair<std::uint64_t, Names> ways[] = {
      {17, {"prepare", "grouped_gemm_n32_mxfp4", "combine_f32"}},
      {60, {"prepare", "grouped_gemm_n64_mxfp4", "combine_f32"}},
      {130, {"prepare", "grouped_gemm_n88_mxfp4", "combine_f32"}},
      {150, {"prepare", "gather", "grouped_gemm_n128_mxfp4", "combine_f32"}},
      {400, {"prepare", "gather", "grouped_gemm_n192_mxfp4", "combine_f32"}}};
  for (const auto& [tokens, names] : ways) {
    ASSERT_TRUE(result->apply(call(tokens), *space, nullptr));
    EXPECT_EQ(launched(), names);
  }
  DeviceCall assignments = call(8);
  assignments.form = OutputForm::assignments;
  assignments.out.rows = 16;
  ASSERT_TRUE(result->apply(assignments, *space, nullptr));
  EXPECT_EQ(launched(), (Names{"prepare", "grouped_gemm_n32_mxfp4", "combine_f32"}));
  DeviceCall batches = call(40, 96, 1);
  batches.in = {{.x = batches.in.x}, TokenFormat::batched};
  batches.in.counts = {static_cast<const std::int32_t*>(known(16)), 4};
  batches.in.capacity = 10;
  batches.form = OutputForm::batches;
  ASSERT_TRUE(result->apply(batches, *space, nullptr));
  EXPECT_EQ(launched(), (Names{"gather", "grouped_gemm_n32_mxfp4", "combine_f32"}));
}

TEST_F(DeviceLayers, Fp8ActivationsOfManyTokensAreASequenceOfTheirOwn) {
  const TestLayer layer = weights();
  ExpertsProblem given = problem(layer, "native");
  using Names = std::vector<std::string>;
  struct Way {
    ActivationKey key;
    std::uint64_t tokens;
    std::string gemm;
  };
  const Way ways[] = {{ActivationKey::fp8_token, 60, "grouped_gemm_fp8_token_n64"},
                      {ActivationKey::fp8_token, 200, "grouped_gemm_fp8_token_n160"},
                      {ActivationKey::fp8_block128, 200, "grouped_gemm_fp8_block_n160"}};
  for (const Way& way : ways) {
    given.quantizes = way.key;
    const auto result = DeviceLayer::make(device_, given, layer.source());
    ASSERT_TRUE(result) << text(result.why());
    EXPECT_EQ(result->wide_rows(), 0u);
    const auto space = result->reserve({.tokens = 200, .top_k = 2});
    ASSERT_TRUE(space) << text(space.why());
    launched();
    EXPECT_EQ(result->kernel({.tokens = way.tokens, .top_k = 2}), "sm90/fp8");
    ASSERT_TRUE(result->apply(call(way.tokens), *space, nullptr));
    EXPECT_EQ(launched(), (Names{"prepare", "gather_fp8", way.gemm, "quantize_hidden", way.gemm,
                                 "combine_f32"}));
    EXPECT_EQ(result->kernel({.tokens = 40, .top_k = 2}), "sm90/rows");
  }
}

TEST_F(DeviceLayers, TheKernelsNameNumericsAndFp8TensorCores) {
  const TestLayer layer = weights();
  const auto kernel = [&](std::string_view numerics, ActivationKey key,
                          DeviceLayerOptions options = {}) {
    ExpertsProblem given = problem(layer, numerics);
    given.quantizes = key;
    const auto result = DeviceLayer::make(device_, given, layer.source(), options);
    EXPECT_TRUE(result) << text(result.why());
    return result ? result->kernel() : std::string();
  };
  EXPECT_EQ(kernel("exact", ActivationKey::none), "sm90/exact");
  EXPECT_EQ(kernel("native", ActivationKey::mxfp8), "sm90/exact");
  EXPECT_EQ(kernel("marlin", ActivationKey::none), "sm90/match:marlin");
  EXPECT_EQ(kernel("exact", ActivationKey::fp8_token), "sm90/exact+fp8_token");
  EXPECT_EQ(kernel("native", ActivationKey::fp8_block128), "sm90/exact+fp8_block");
  EXPECT_EQ(kernel("exact", ActivationKey::fp8_token, {.allow_fp8 = false}), "sm90/exact");
}

TEST_F(DeviceLayers, OneWideRowSendsFp8ActivationsToTheKernelsForBf16) {
  const TestLayer layer = weights();
  fake_->run = [](const kernels::cuda::FakeLaunch& launch, const void* params) {
    if (launch.kernel == "fp4moe_sm90_row_scales")
      *static_cast<const sm90::RowScalesParams*>(params)->wide_rows = 1;
  };
  ExpertsProblem given = problem(layer, "native");
  given.quantizes = ActivationKey::fp8_token;
  const auto result = DeviceLayer::make(device_, given, layer.source());
  ASSERT_TRUE(result) << text(result.why());
  EXPECT_EQ(result->wide_rows(), 1u);
  EXPECT_FALSE(result->has_fp8_gemms());
  EXPECT_EQ(result->kernel(), "sm90/exact");
  EXPECT_EQ(result->kernel({.tokens = 200, .top_k = 2}), "sm90/rows");
}

TEST_F(DeviceLayers, TokensThatAreFineAsTheyAreAreNotRounded) {
  const TestLayer layer({.format = WeightFormat::nvfp4,
                         .experts = 4,
                         .hidden = 128,
                         .intermediate = 64,
                         .order = checkpoint::RowOrder::halves},
                        Activation::silu, 3);
  const auto result = make(layer);
  ASSERT_TRUE(result) << text(result.why());
  const auto space = result->reserve({.tokens = 20, .top_k = 2});
  ASSERT_TRUE(space) << text(space.why());
  launched();
  using Names = std::vector<std::string>;
  // Blocks of prepare: one ranks 40 assignments, others round tokens, four warps a block.
  const auto expect_launched = [&](const auto& change, unsigned prepare_blocks,
                                   const Names& names) {
    DeviceCall changed = call(20, 128);
    change(changed);
    const auto done = result->apply(changed, *space, nullptr);
    EXPECT_TRUE(done) << text(done.why());
    ASSERT_FALSE(fake_->launches.empty());
    EXPECT_EQ(fake_->launches[0].blocks, prepare_blocks);
    EXPECT_EQ(launched(), names);
  };
  const Names names{"prepare", "grouped_gemm_n32_nvfp4", "combine_f32"};
  expect_launched([](DeviceCall&) {}, 1, names);
  expect_launched([](DeviceCall& c) { c.in.x.dtype = DType::f16; }, 6, names);
  expect_launched([](DeviceCall& c) { c.out.dtype = DType::bf16; }, 1,
                  {"prepare", "grouped_gemm_n32_nvfp4", "combine_bf16"});
}

TEST_F(DeviceLayers, DecodeHasKernelsForWhatMostCallsAre) {
  const TestLayer layer = weights();
  const auto result = make(layer, "native");
  ASSERT_TRUE(result) << text(result.why());
  const auto kernel = [&](const DeviceLayer& by, const DeviceCall& given) {
    const auto space = by.reserve({.tokens = 16, .top_k = 2});
    EXPECT_TRUE(space) << text(space.why());
    launched();
    const auto done = by.apply(given, *space, nullptr);
    EXPECT_TRUE(done) << text(done.why());
    return launched();
  };
  using Names = std::vector<std::string>;
  DeviceCall plain = call(4);
  EXPECT_EQ(kernel(*result, plain), Names{"decode_generic_mxfp4"});  // float32 output
  plain.out.dtype = DType::bf16;
  EXPECT_EQ(kernel(*result, plain), Names{"decode_bf16_mxfp4"});
  ExpertsProblem quantized = problem(layer, "native");
  quantized.quantizes = ActivationKey::mxfp8;
  const auto alike = result->with_numerics(quantized);
  ASSERT_TRUE(alike) << text(alike.why());
  EXPECT_EQ(kernel(*alike, plain), Names{"decode_quantized_mxfp4"});
  const auto rounded = result->with_numerics(problem(layer, "marlin"));
  ASSERT_TRUE(rounded) << text(rounded.why());
  EXPECT_EQ(kernel(*rounded, plain), Names{"decode_generic_mxfp4"});
}

// Kernels are loaded once, with the first layer.
TEST_F(DeviceLayers, ALayerWithoutDecodeKernelsNeverDecodes) {
  const TestLayer layer = weights();
  const ExpertsProblem given = problem(layer);
  const auto without = DeviceLayer::make(device_, given, layer.source(), {.allow_decode = false});
  ASSERT_TRUE(without) << text(without.why());
  const auto alike = without->with_numerics(given, {.allow_decode = true});
  ASSERT_TRUE(alike) << text(alike.why());
  EXPECT_EQ(alike->kernel({.tokens = 4, .top_k = 2}), "sm90/rows");
  const auto with = make(layer);
  ASSERT_TRUE(with) << text(with.why());
  const auto narrowed = with->with_numerics(given, {.allow_decode = false});
  ASSERT_TRUE(narrowed) << text(narrowed.why());
  EXPECT_EQ(narrowed->kernel({.tokens = 4, .top_k = 2}), "sm90/rows");
  EXPECT_EQ(with->with_numerics(given)->kernel({.tokens = 4, .top_k = 2}), "sm90/decode");
}

// The map that the kernel prepare was given.
const std::int32_t*& given_map() {
  static const std::int32_t* map = nullptr;
  return map;
}

TEST_F(DeviceLayers, AnEmptyExpertMapWithAnAddressIsNone) {
  const TestLayer layer = weights();
  const auto result = make(layer);
  ASSERT_TRUE(result) << text(result.why());
  const auto space = result->reserve({.tokens = 20, .top_k = 2});
  ASSERT_TRUE(space) << text(space.why());
  fake_->run = [](const kernels::cuda::FakeLaunch& launch, const void* params) {
    if (launch.kernel.ends_with("prepare"))
      given_map() = static_cast<const sm90::PrepareParams*>(params)->call.expert_map;
  };
  DeviceCall given = call(20);
  const auto* const map = static_cast<const std::int32_t*>(known(16));
  given.expert_map = {map, 4};
  ASSERT_TRUE(result->apply(given, *space, nullptr));
  EXPECT_EQ(given_map(), map);
  static constexpr std::int32_t kNotOnDevice = 0;
  for (const std::int32_t* const at : {map, &kNotOnDevice}) {
    given.expert_map = {at, 0};
    const auto done = result->apply(given, *space, nullptr);
    ASSERT_TRUE(done) << text(done.why());
    EXPECT_EQ(given_map(), nullptr);
  }
}

TEST_F(DeviceLayers, PrepareHasAThreadForEachAssignment) {
  const TestLayer layer = weights();
  const auto result = make(layer, "unfused");
  ASSERT_TRUE(result) << text(result.why());
  const auto space = result->reserve({.tokens = 3000, .top_k = 2});
  ASSERT_TRUE(space) << text(space.why());
  const auto blocks = [&](const DeviceCall& given) {
    launched();
    const auto done = result->apply(given, *space, nullptr);
    EXPECT_TRUE(done) << text(done.why());
    return fake_->launches.empty() ? 0 : fake_->launches[0].blocks;
  };
  DeviceCall few = call(3);
  few.form = OutputForm::assignments;
  few.out.rows = 6;
  EXPECT_EQ(blocks(few), 1u);
  EXPECT_EQ(blocks(call(64)), 1u);
  EXPECT_EQ(blocks(call(65)), 2u);
  EXPECT_EQ(blocks(call(3000)), 47u);
}

TEST_F(DeviceLayers, WhatIsRoundedTakesAKernelOfItsOwnAndRoutingNone) {
  const TestLayer layer = weights(WeightFormat::nvfp4);
  const auto result = make(layer, "unfused");
  ASSERT_TRUE(result) << text(result.why());
  const auto space = result->reserve({.tokens = 20, .top_k = 2});
  ASSERT_TRUE(space);
  const auto router = DeviceRouter::make(
      device_, {.method = routing::Method::renormalize, .experts = 4, .top_k = 2});
  ASSERT_TRUE(router) << text(router.why());
  DeviceCall routed = call(20);
  routed.in = {{.x = routed.in.x}};
  routed.router = &*router;
  routed.in.logits = {static_cast<const std::byte*>(known(20 * 16)), DType::f32, 20, 4, 16};
  launched();
  ASSERT_TRUE(result->apply(routed, *space, nullptr));
  EXPECT_EQ(launched(),
            (std::vector<std::string>{"prepare", "gather", "grouped_gemm_n32_nvfp4", "activate",
                                      "grouped_gemm_n32_nvfp4", "combine_f32"}));
}

TEST_F(DeviceLayers, NothingIsLaunchedForNoTokens) {
  const TestLayer layer = weights();
  const auto result = make(layer);
  ASSERT_TRUE(result);
  const auto space = result->reserve({.tokens = 4, .top_k = 2});
  ASSERT_TRUE(space);
  launched();
  ASSERT_TRUE(result->apply(call(0), *space, nullptr));
  EXPECT_TRUE(launched().empty());
}

// Tensors of the layout with bytes of any kind.
struct Packed {
  std::vector<std::byte> w13, w2;
  std::vector<float> factor13, factor2;
  ExpertSource source{};

  explicit Packed(WeightFormat format, std::uint64_t groups13 = 2) {
    SplitMix64 random(4);
    const std::uint64_t record = sm90::weight_tile_bytes(format == WeightFormat::nvfp4);
    w13.resize(3 * groups13 * 2 * record);
    w2.resize(3 * 2 * 1 * record);
    for (auto* bytes : {&w13, &w2})
      for (std::byte& byte : *bytes) byte = static_cast<std::byte>(random.next() % 0x80);
    for (int i = 0; i < 6; ++i) factor13.push_back(static_cast<float>(1 << i));
    factor2 = {1.0f, 4.0f, 16.0f};
    const auto bytes = [](const auto& values) { return std::as_bytes(std::span(values)); };
    source = {.shape = {.format = format,
                        .experts = 3,
                        .hidden = 128,
                        .intermediate = 64,
                        .order = checkpoint::RowOrder::halves},
              .visit = [](std::size_t, const UseExpert&) -> Result<Done> {
                return usage("test.visit", "the packed tensors are there to be read");
              },
              .layout = format == WeightFormat::nvfp4 ? "native_sm90.nvfp4" : "native_sm90.mxfp4",
              .generation = std::string(formats::kSm90Generation),
              .packed = {{"w13", bytes(w13), {3, groups13, 2, record}},
                         {"w2", bytes(w2), {3, 2, 1, record}},
                         {"w13_factor", bytes(factor13), {3, 2}},
                         {"w2_factor", bytes(factor2), {3}}}};
  }
  ExpertsProblem problem() const {
    return {.shape = source.shape,
            .activation = Activation::silu,
            .numerics = **require_numerics("exact")};
  }
};

// Weights that are not packed are only scanned, for the GEMM on FP8 tensor cores.
std::vector<std::string> scanned(WeightFormat format) {
  return std::vector<std::string>(format == WeightFormat::mxfp4 ? 2 : 0, "row_scales");
}

TEST_F(DeviceLayers, TensorsOfTheLayoutAreCopiedAsTheyAre) {
  for (const auto& [format, layout] : {std::pair{WeightFormat::mxfp4, "native_sm90.mxfp4"},
                                       std::pair{WeightFormat::mxfp4, "native_sm80.mxfp4"},
                                       std::pair{WeightFormat::nvfp4, "native_sm90.nvfp4"},
                                       std::pair{WeightFormat::nvfp4, "native_sm80.nvfp4"}}) {
    Packed packed(format);
    packed.source.layout = layout;
    const auto result = DeviceLayer::make(device_, packed.problem(), packed.source);
    ASSERT_TRUE(result) << text(result.why());
    const sm90::LayerParams& layer = result->layer();
    const auto* w13 = reinterpret_cast<const std::byte*>(layer.w13.tiles);
    const auto* w2 = reinterpret_cast<const std::byte*>(layer.w2.tiles);
    EXPECT_TRUE(std::equal(packed.w13.begin(), packed.w13.end(), w13));
    EXPECT_TRUE(std::equal(packed.w2.begin(), packed.w2.end(), w2));
    EXPECT_TRUE(std::equal(packed.factor13.begin(), packed.factor13.end(), layer.w13.factor));
    EXPECT_EQ(layer.down_global[1], format == WeightFormat::nvfp4 ? 0x1p-18f : 1.0f);
    EXPECT_EQ(layer.w13.bias, nullptr);
    EXPECT_GE(result->weight_bytes(), packed.w13.size() + packed.w2.size());
    EXPECT_EQ(launched(), scanned(format));
  }
}

TEST_F(DeviceLayers, MissingMBlocksOfATensorBecomeZero) {
  const Packed packed(WeightFormat::mxfp4, 1);  // 64 rows of 128
  const auto result = DeviceLayer::make(device_, packed.problem(), packed.source);
  ASSERT_TRUE(result) << text(result.why());
  const std::size_t given = packed.w13.size() / 3, each = result->layer().w13.expert_bytes;
  ASSERT_EQ(each, 2 * given);
  const auto* records = reinterpret_cast<const std::byte*>(result->layer().w13.tiles);
  for (std::size_t e = 0; e < 3; ++e) {
    const auto* from = packed.w13.data() + e * given;
    EXPECT_TRUE(std::equal(from, from + given, records + e * each));
    EXPECT_TRUE(std::all_of(records + e * each + given, records + (e + 1) * each,
                            [](std::byte byte) { return byte == std::byte{0}; }));
  }
}

TEST_F(DeviceLayers, ARankWithAnEmptyShareHoldsZerosAndItsBias) {
  for (const bool is_gated : {false, true})
    for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
      const TestLayer layer(
          {.format = format,
           .experts = 3,
           .hidden = 96,
           .intermediate = 0,
           .order = is_gated ? checkpoint::RowOrder::halves : checkpoint::RowOrder::single,
           .has_bias = true},
          is_gated ? Activation::silu : Activation::relu2_no_mul, 3);
      const auto result = make(layer);
      ASSERT_TRUE(result) << text(result.why());
      EXPECT_EQ(launched(), is_gated ? scanned(format) : std::vector<std::string>{});
      for (const sm90::WeightMatrix& matrix : {result->layer().w13, result->layer().w2})
        EXPECT_TRUE(std::all_of(matrix.tiles, matrix.tiles + 3 * matrix.expert_bytes,
                                [](std::uint8_t byte) { return byte == 0; }));
      const std::vector<float>& bias = layer.down[2].bias;
      const float* placed =
          result->layer().w2.bias + std::size_t{2} * result->layer().w2.m_blocks * 64;
      EXPECT_TRUE(std::equal(bias.begin(), bias.end(), placed));
      const auto space = result->reserve({.tokens = 4, .top_k = 2});
      ASSERT_TRUE(space) << text(space.why());
      ASSERT_TRUE(result->apply(call(4), *space, nullptr));
      EXPECT_EQ(launched().back(), "combine_f32");
    }
}

TEST_F(DeviceLayers, ScalesInTensorsThatWereNotNumbersAreRefused) {
  Packed nvfp4(WeightFormat::nvfp4);
  nvfp4.w2[2048 + 7] = std::byte{0x8F};
  const auto result = DeviceLayer::make(device_, nvfp4.problem(), nvfp4.source);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.why().id, "experts.scales");
  EXPECT_EQ(result.why().tensor, "w2, record 0");
  Packed mxfp4(WeightFormat::mxfp4);
  mxfp4.factor2[2] = 0x1p127f;
  EXPECT_EQ(DeviceLayer::make(device_, mxfp4.problem(), mxfp4.source).why().id, "experts.scales");
  Packed missing(WeightFormat::mxfp4);
  missing.source.packed.pop_back();
  EXPECT_EQ(DeviceLayer::make(device_, missing.problem(), missing.source).why().id,
            "experts.layout");
}

TEST_F(DeviceLayers, LayersAlikeShareTheirWeights) {
  const TestLayer layer = weights(WeightFormat::nvfp4);
  const auto result = make(layer);
  ASSERT_TRUE(result);
  ExpertsProblem other = problem(layer, "grouped");
  other.quantizes = ActivationKey::nvfp4;
  other.input_scales = {2.0f};
  other.hidden_scales = {3.0f};
  const auto alike = result->with_numerics(other);
  ASSERT_TRUE(alike) << text(alike.why());
  EXPECT_EQ(alike->layer().w13.tiles, result->layer().w13.tiles);
  EXPECT_EQ(alike->layer().quantization, sm90::Quantization::nvfp4);
  EXPECT_EQ(alike->layer().input_scales[0], 2.0f);
  EXPECT_EQ(alike->layer().hidden_scales[0], 3.0f);
  other.shape.hidden = 64;
  EXPECT_EQ(result->with_numerics(other).why().id, "experts.layout");
}

TEST_F(DeviceLayers, AWorkspaceServesLayersOfTheSameSizesAndNoOthers) {
  const TestLayer layer = weights(WeightFormat::nvfp4);
  const auto result = make(layer), again = make(layer);
  ASSERT_TRUE(result && again);
  const auto space = result->reserve({.tokens = 10, .top_k = 2});
  ASSERT_TRUE(space);
  const DeviceCall given = call(10);
  EXPECT_TRUE(again->apply(given, *space, nullptr));
  ExpertsProblem quantized = problem(layer, "grouped");  // keeps GEMM1's sums
  quantized.quantizes = ActivationKey::nvfp4;
  quantized.input_scales = {2.0f};
  quantized.hidden_scales = {3.0f};
  const auto alike = result->with_numerics(quantized);
  ASSERT_TRUE(alike);
  EXPECT_EQ(alike->apply(given, *space, nullptr).why().id, "cuda.workspace");
  // Rows of so few tokens are kept in float32 by every layer: the regions are the same.
  const auto weighted = result->with_numerics(problem(layer, "fused"));
  ASSERT_TRUE(weighted);
  ASSERT_NE(workspace_key(result->layer()), workspace_key(weighted->layer()));
  EXPECT_TRUE(weighted->apply(given, *space, nullptr));
}

TEST_F(DeviceLayers, CallsThatCannotBeLaunchNothing) {
  const TestLayer layer = weights();
  const auto result = make(layer);
  ASSERT_TRUE(result);
  const auto space = result->reserve({.tokens = 10, .top_k = 2});
  ASSERT_TRUE(space);
  const DeviceCall given = call(10);
  launched();
  const auto refused = [&](const auto& change) {
    DeviceCall changed = given;
    change(changed);
    const auto done = result->apply(changed, *space, nullptr);
    EXPECT_EQ(launched().empty(), !done);
    return done ? std::string("accepted") : done.why().id;
  };
  EXPECT_EQ(refused([](DeviceCall& c) { c.in.x.data = nullptr; }), "cuda.pointer");
  EXPECT_EQ(refused([](DeviceCall& c) { c.out.data += 4; }), "cuda.pointer");
  EXPECT_EQ(refused([](DeviceCall& c) {
              c.in.ids = {c.in.ids.data() + 1, 20};
            }),
            "cuda.pointer");  // the driver's word
  EXPECT_EQ(refused([](DeviceCall& c) { c.in.x.dtype = DType::f64; }), "cuda.type");
  EXPECT_EQ(refused([](DeviceCall& c) { c.in.x.stride = 200; }), "cuda.size");
  EXPECT_EQ(refused([](DeviceCall& c) { c.out.columns = 64; }), "cuda.size");
  EXPECT_EQ(refused([](DeviceCall& c) { c.in.x.rows = c.out.rows = 11; }), "cuda.workspace");
  EXPECT_EQ(refused([](DeviceCall& c) { c.in.top_k = 40; }), "cuda.limits");
  EXPECT_EQ(refused([](DeviceCall& c) { c.in.ids = c.in.ids.first(19); }), "cuda.size");
  EXPECT_EQ(refused([](DeviceCall& c) {
              c.in.weights = {reinterpret_cast<const float*>(c.in.ids.data()), 21};
            }),
            "cuda.size");
  EXPECT_EQ(refused([](DeviceCall& c) { c.in.counts = c.in.ids; }), "cuda.call");
  EXPECT_EQ(refused([](DeviceCall& c) { c.in = {{.x = c.in.x}}; }), "cuda.call");
  EXPECT_EQ(refused([](DeviceCall&) {}), "accepted");
}

TEST_F(DeviceLayers, WhateverFailsNothingIsKept) {
  const TestLayer layer = weights();
  const int allocations = fake_->allocations;
  for (const char* function :
       {"cuMemAlloc", "cuMemHostAlloc", "cuStreamCreate", "cuLaunchKernelEx", "cuMemcpyHtoDAsync",
        "cuStreamSynchronize", "cuModuleGetFunction", "cuFuncSetAttribute"}) {
    fake_->failing[function] = 719;
    const auto result = make(layer);
    fake_->failing.clear();
    ASSERT_FALSE(result) << function;
    EXPECT_TRUE(result.why().id.starts_with("cuda.")) << function << ": " << result.why().id;
    EXPECT_EQ(fake_->allocations, allocations) << function;
    EXPECT_EQ(fake_->pinned, 0) << function;
    EXPECT_EQ(fake_->streams, 0) << function;
  }
  fake_->memory_bytes = 30000;  // weights of three experts
  const auto result = make(layer);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.why().id, "cuda.memory");
  EXPECT_EQ(result.why().code, ErrorCode::exhausted);
  EXPECT_EQ(fake_->allocations, allocations);
}

TEST_F(DeviceLayers, AStreamInErrorIsReportedInTheDriversWords) {
  const TestLayer layer = weights();
  const auto result = make(layer);
  ASSERT_TRUE(result);
  const auto space = result->reserve({.tokens = 10, .top_k = 2});
  ASSERT_TRUE(space);
  const DeviceCall given = call(10);
  fake_->failing["cuLaunchKernelEx"] = 719;
  const auto done = result->apply(given, *space, nullptr);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.why().id, "cuda.failed");
  EXPECT_NE(text(done.why()).find("as the test wants it"), std::string::npos);
}

}  // namespace device_layer_test
}  // namespace fp4moe::moe::cuda
