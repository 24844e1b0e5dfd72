// Layers from weights in memory, without a checkpoint: the bits of the checkpoint's layers, on every
// engine, for every backend, for ranks; reload; what a description may and may not say.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/convert/pack/pack_layer.hpp"
#include "fp4moe/runtime/layer.hpp"
#include "support/converted_folder.hpp"
#include "support/engines.hpp"
#include "support/stacked_weights.hpp"
#include "support/tiny_layer.hpp"

namespace fp4moe::runtime {
namespace memory_layer_test {

using checkpoint::LayerWeightsView;
using checkpoint::testing::Arrangement;
using checkpoint::testing::kArrangements;
using checkpoint::testing::StackedWeights;
using convert::testing::kTinyShape;
using convert::testing::tiny_checkpoint;
using formats::WeightFormat;
using moe::routing::Method;
using moe::testing::TestTokens;
using tensor::DType;
using tensor::testing::TemporaryFolder;

constexpr std::uint64_t kExperts = kTinyShape.experts, kHidden = kTinyShape.hidden,
                        kIntermediate = kTinyShape.intermediate;

// What the checkpoints' config.json says.
LayerDescription description(WeightFormat format) {
  const bool mxfp4 = format == WeightFormat::mxfp4;
  return {.activation = mxfp4 ? oracle::Activation::swigluoai : oracle::Activation::silu,
          .top_k = mxfp4 ? 4u : 6u,
          .router = moe::routing::RouterOptions{.method = Method::renormalize},
          .split = mxfp4 ? checkpoint::SplitRule::ceil_blocks : checkpoint::SplitRule::equal};
}

Arrangement natural(WeightFormat format) {
  return format == WeightFormat::mxfp4 ? Arrangement::interleaved : Arrangement::apart;
}

Result<MoeLayer> ready(Result<MoeLayer> layer) {
  if (!layer) return layer;
  if (const auto done = layer->load(); !done) return done.why();
  if (const auto done = layer->process(); !done) return done.why();
  return layer;
}

std::vector<double> apply(MoeLayer& layer, const TestTokens& tokens) {
  std::vector<double> out(tokens.tokens * kHidden, std::nan(""));
  const auto done = layer.apply(
      tokens.routed(), moe::dense_rows(std::span(out), DType::f64, tokens.tokens, kHidden));
  EXPECT_TRUE(done) << text(done.why());
  return out;
}

std::vector<double> run(MoeLayer& layer, const TestTokens& tokens, std::span<const float> logits) {
  std::vector<double> out(tokens.tokens * kHidden, std::nan(""));
  const auto done = layer.run(
      {.x = tokens.rows(),
       .logits = moe::dense_rows(logits, DType::f32, tokens.tokens, logits.size() / tokens.tokens)},
      moe::dense_rows(std::span(out), DType::f64, tokens.tokens, kHidden));
  EXPECT_TRUE(done) << text(done.why());
  return out;
}

void expect_equal_weights(const MoeLayer& a, const MoeLayer& b) {
  ASSERT_EQ(a.weights().tensors().size(), b.weights().tensors().size());
  for (std::size_t t = 0; t < a.weights().tensors().size(); ++t)
    EXPECT_TRUE(std::ranges::equal(a.weights().tensors()[t], b.weights().tensors()[t])) << t;
}

constexpr WeightFormat kFormats[] = {WeightFormat::mxfp4, WeightFormat::nvfp4};

TEST(MemoryLayer, HasTheBitsOfTheCheckpointsForEveryBackendOfEveryPolicy) {
  const TestTokens tokens(3, kHidden, 2, kExperts, 5);
  std::size_t same = 0;
  for (const WeightFormat format : kFormats) {
    const StackedWeights memory(tiny_checkpoint(format), natural(format));
    for (const oracle::Policy& policy : backends::policies()) {
      if (policy.format != format) continue;
      for (const oracle::Backend* backend : policy.backends) {
        LayerOptions options{.backend_request = {.policy = std::string(policy.name),
                                                 .backend = std::string(backend->name)},
                             .threads = 1};
        SCOPED_TRACE(options.backend_request.policy + " " + options.backend_request.backend);
        auto expected = ready(MoeLayer::create(tiny_checkpoint(format), 0, options));
        auto layer = ready(MoeLayer::create(description(format), memory.view(), options));
        ASSERT_EQ(bool(layer), bool(expected));
        if (!layer) {
          EXPECT_EQ(layer.why().id, expected.why().id);
          continue;
        }
        ++same;
        EXPECT_EQ(layer->choice().layout, expected->choice().layout);
        expect_equal_weights(*layer, *expected);
        EXPECT_EQ(apply(*layer, tokens), apply(*expected, tokens));
      }
    }
  }
  EXPECT_GT(same, 40u);
}

TEST(MemoryLayer, ComputesTheSameOnEveryEngineAndRoutesItself) {
  const TestTokens tokens(5, kHidden, 2, kExperts, 7);
  std::vector<float> logits(tokens.tokens * kExperts);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7 % 13);
  for (const EngineRow& engine : testing::usable_engines())
    for (const WeightFormat format : kFormats)
      for (const Arrangement arrangement : kArrangements) {
        const StackedWeights memory(tiny_checkpoint(format), arrangement, 3);
        const LayerOptions options{.engine = engine.kind, .threads = 1};
        auto expected = ready(MoeLayer::create(tiny_checkpoint(format), 0, options));
        auto layer = ready(MoeLayer::create(description(format), memory.view(), options));
        ASSERT_TRUE(expected) << text(expected.why());
        ASSERT_TRUE(layer) << text(layer.why());
        EXPECT_EQ(apply(*layer, tokens), apply(*expected, tokens)) << engine.name;
        EXPECT_EQ(run(*layer, tokens, logits), run(*expected, tokens, logits)) << engine.name;
      }
}

TEST(MemoryLayer, IsCutForRanksOrWasCutAlready) {
  const checkpoint::Slice slices[] = {
      {.tensor_parallel = {1, 2}},
      {.tensor_parallel = {2, 3}},
      {.expert_parallel = {1, 4}},
      {.tensor_parallel = {0, 3}, .expert_parallel = {1, 2}},
      {.expert_parallel = {1, 3}, .placement = checkpoint::Placement::round_robin}};
  const TestTokens tokens(4, kHidden, 2, kExperts, 8);
  for (const WeightFormat format : kFormats)
    for (const checkpoint::Slice& slice : slices) {
      for (const char* backend : {"CPU", "MARLIN"}) {
        const LayerOptions options{
            .backend_request = {.backend = backend}, .threads = 1, .slice = slice};
        const StackedWeights whole(tiny_checkpoint(format), natural(format));
        const StackedWeights part(tiny_checkpoint(format), natural(format), 0, slice);
        LayerDescription cut = description(format);
        cut.experts = kExperts;
        cut.intermediate = kIntermediate;
        auto expected = ready(MoeLayer::create(tiny_checkpoint(format), 0, options));
        ASSERT_TRUE(expected) << text(expected.why());
        for (auto& layer :
             {std::pair(description(format), whole.view()), std::pair(cut, part.view())}) {
          auto mine = ready(MoeLayer::create(layer.first, layer.second, options));
          ASSERT_TRUE(mine) << text(mine.why());
          EXPECT_EQ(mine->facts().model.shape.experts, kExperts);
          expect_equal_weights(*mine, *expected);
          EXPECT_EQ(apply(*mine, tokens), apply(*expected, tokens)) << backend;
        }
      }
      LayerDescription wrong = description(format);
      wrong.experts = kExperts + 1;
      const StackedWeights whole(tiny_checkpoint(format), natural(format));
      EXPECT_EQ(MoeLayer::create(wrong, whole.view(), {.threads = 1, .slice = slice}).why().id,
                "weights.slice");
    }
}

TEST(MemoryLayer, IsLoadedAgainFromTheSameAndFromOtherMemory) {
  const TestTokens tokens(4, kHidden, 2, kExperts, 9);
  for (const WeightFormat format : kFormats)
    for (const char* backend : {"CPU", "MARLIN"}) {
      auto first = std::make_unique<StackedWeights>(tiny_checkpoint(format), Arrangement::halves);
      StackedWeights second(tiny_checkpoint(format), Arrangement::halves, 9);
      for (std::byte& byte : second.w2.codes) byte ^= std::byte{0x31};
      const LayerOptions options{.backend_request = {.backend = backend}, .threads = 1};
      auto layer = ready(MoeLayer::create(description(format), first->view(), options));
      auto other = ready(MoeLayer::create(description(format), second.view(), options));
      ASSERT_TRUE(layer && other);
      const std::vector<double> before = apply(*layer, tokens), after = apply(*other, tokens);
      EXPECT_NE(before, after);
      const std::byte* address = layer->weights().tensors()[0].data();
      first.reset();
      EXPECT_EQ(apply(*layer, tokens), before) << "it needs no other memory";
      ASSERT_TRUE(layer->load(second.view()));
      ASSERT_TRUE(layer->process());
      EXPECT_EQ(layer->weights().tensors()[0].data(), address);
      EXPECT_EQ(apply(*layer, tokens), after);
      for (std::byte& byte : second.w2.codes) byte ^= std::byte{0x31};
      ASSERT_TRUE(layer->load_expert(0));
      for (std::size_t e = 1; e < kExperts; ++e) ASSERT_TRUE(layer->load_expert(e));
      ASSERT_TRUE(layer->process());
      EXPECT_EQ(apply(*layer, tokens), before);
    }
}

TEST(MemoryLayer, RefusesOtherWeightsThanItWasMadeFor) {
  const StackedWeights mxfp4(tiny_checkpoint(WeightFormat::mxfp4), Arrangement::halves);
  const StackedWeights turned(tiny_checkpoint(WeightFormat::mxfp4), Arrangement::interleaved);
  const StackedWeights nvfp4(tiny_checkpoint(WeightFormat::nvfp4), Arrangement::halves);
  auto layer =
      ready(MoeLayer::create(description(WeightFormat::mxfp4), mxfp4.view(), {.threads = 1}));
  ASSERT_TRUE(layer);
  EXPECT_EQ(layer->load(nvfp4.view()).why().id, "weights.other");
  EXPECT_EQ(layer->load(turned.view()).why().id, "weights.other");
  auto bare = mxfp4.given();
  bare.w13.bias = bare.w2.bias = {};
  EXPECT_EQ(layer->load(*LayerWeightsView::make(bare)).why().id, "weights.other");
  const StackedWeights part(tiny_checkpoint(WeightFormat::mxfp4), Arrangement::halves, 0,
                            {.expert_parallel = {0, 2}});
  EXPECT_EQ(layer->load(part.view()).why().id, "weights.slice");
  EXPECT_TRUE(layer->load(mxfp4.view()));
}

TEST(MemoryLayer, IsUsedWhereItLies) {
  const TestTokens tokens(3, kHidden, 2, kExperts, 10);
  for (const WeightFormat format : kFormats)
    for (const Arrangement arrangement : kArrangements) {
      const StackedWeights memory(tiny_checkpoint(format), arrangement, 7);
      auto mapped = ready(MoeLayer::create(description(format), memory.view(),
                                           {.weights = moe::WeightsHome::mapped, .threads = 1}));
      auto packed = ready(MoeLayer::create(description(format), memory.view(),
                                           {.backend_request = {.backend = "CPU"}, .threads = 1}));
      ASSERT_TRUE(mapped && packed);
      EXPECT_TRUE(mapped->weights().tensors().empty()) << "it has memory of its own";
      EXPECT_EQ(apply(*mapped, tokens), apply(*packed, tokens));
    }
}

TEST(MemoryLayer, TakesIdsAloneWhereNoRouterIsDescribed) {
  const TestTokens tokens(3, kHidden, 2, kExperts, 11);
  for (const WeightFormat format : kFormats) {
    const StackedWeights memory(tiny_checkpoint(format), natural(format));
    LayerDescription bare = description(format);
    bare.router.reset();
    auto with = ready(MoeLayer::create(description(format), memory.view(), {.threads = 1}));
    auto without = ready(MoeLayer::create(bare, memory.view(), {.threads = 1}));
    ASSERT_TRUE(with && without);
    EXPECT_TRUE(with->has_router());
    EXPECT_FALSE(without->has_router());
    EXPECT_EQ(apply(*with, tokens), apply(*without, tokens));
    const std::vector<float> logits(3 * kExperts);
    std::vector<double> out(3 * kHidden);
    const auto scores = moe::dense_rows(std::span(logits), DType::f32, 3, kExperts);
    const auto to = moe::dense_rows(std::span(out), DType::f64, 3, kHidden);
    EXPECT_EQ(without->run({.x = tokens.rows(), .logits = scores}, to).why().id, "layer.routing");
    EXPECT_EQ(without->apply_monolithic({.x = tokens.rows(), .logits = scores}, to).why().id,
              "layer.monolithic");
  }
}

// g sigmoid(alpha g) (u + beta), by plain loops that know nothing of backends.
TEST(MemoryLayer, ComputesWithTheConstantsThatAreDescribed) {
  using moe::testing::TestLayer;
  struct Case {
    oracle::Activation activation;
    moe::Activation plain;
    std::optional<double> alpha, beta, limit;
  };
  const Case cases[] = {{oracle::Activation::swigluoai, moe::Activation::swigluoai, 1.25, 0.5, 3.0},
                        {oracle::Activation::swigluoai, moe::Activation::swigluoai, {}, {}, {}},
                        {oracle::Activation::swigluoai_uninterleave,
                         moe::Activation::swigluoai_uninterleave, 2.0, 0.25, 1.5},
                        {oracle::Activation::silu, moe::Activation::silu, {}, {}, 0.75}};
  for (const Case& each : cases) {
    TestLayer plain({.experts = 3,
                     .hidden = kHidden,
                     .intermediate = 64,
                     .order = checkpoint::RowOrder::halves,
                     .has_bias = true},
                    each.plain, 3);
    if (each.alpha) plain.params.alpha = *each.alpha;
    if (each.beta) plain.params.beta = *each.beta;
    if (each.limit) plain.params.limit = *each.limit;
    checkpoint::testing::StackedMatrix gate, up, w2;
    for (std::size_t e = 0; e < 3; ++e)
      ASSERT_TRUE(plain.source().visit(e, [&](const checkpoint::ExpertView& view) -> Result<Done> {
        for (std::uint64_t row = 0; row < 64; ++row) {
          gate.add_rows(view.gate, row);
          up.add_rows(view.up, row);
        }
        for (std::uint64_t row = 0; row < kHidden; ++row) w2.add_rows(view.down, row);
        return Done{};
      }));
    checkpoint::LayerWeights given{.shape = plain.shape};
    given.gate = gate.given(64, kHidden, 32);
    given.up = up.given(64, kHidden, 32);
    given.w2 = w2.given(kHidden, 64, 32);
    const auto view = LayerWeightsView::make(given);
    ASSERT_TRUE(view) << text(view.why());
    const LayerDescription described{.activation = each.activation,
                                     .alpha = each.alpha,
                                     .beta = each.beta,
                                     .limit = each.limit,
                                     .top_k = 2};
    auto layer = ready(MoeLayer::create(
        described, *view,
        {.engine = EngineKind::reference, .threads = 1, .numerics = moe::NumericsKind::exact}));
    ASSERT_TRUE(layer) << text(layer.why());
    const TestTokens tokens(3, kHidden, 2, 3, 12);
    EXPECT_LT(moe::testing::distance(tokens.expected(plain), apply(*layer, tokens)), 1e-9)
        << moe::name(each.plain);
  }
}

TEST(MemoryLayer, RefusesDescriptionsThatDescribeNoLayer) {
  const StackedWeights memory(tiny_checkpoint(WeightFormat::mxfp4), Arrangement::halves);
  const auto id_of = [&](const LayerDescription& given) {
    const auto layer = MoeLayer::create(given, memory.view(), {.threads = 1});
    return layer ? std::string("ok") : layer.why().id;
  };
  const LayerDescription fine = description(WeightFormat::mxfp4);
  EXPECT_EQ(id_of(fine), "ok");
  LayerDescription given = fine;
  given.activation.reset();
  EXPECT_EQ(id_of(given), "description.activation");
  given = fine;
  given.activation = oracle::Activation::relu2_no_mul;
  EXPECT_EQ(id_of(given), "description.activation") << "the weights have a gate";
  given = fine;
  given.limit = 0;
  EXPECT_EQ(id_of(given), "description.constant");
  given = fine;
  given.alpha = std::nan("");
  EXPECT_EQ(id_of(given), "description.constant");
  for (const std::uint64_t top_k : {std::uint64_t{0}, kExperts + 1}) {
    given = fine;
    given.top_k = top_k;
    EXPECT_EQ(id_of(given), "description.top_k");
  }
  given = fine;
  given.router->top_k = 3;
  EXPECT_EQ(id_of(given), "description.top_k");
  given.top_k = 0;
  EXPECT_EQ(id_of(given), "ok") << "the router's";
  given = fine;
  given.router->experts = kExperts + 1;
  EXPECT_EQ(id_of(given), "description.experts");
  for (const std::uint64_t experts : {kExperts - 1, std::uint64_t{1} << 62}) {
    given = fine;
    given.experts = experts;
    EXPECT_EQ(id_of(given), "description.whole");
  }
  given = fine;
  given.intermediate = ~std::uint64_t{31};
  EXPECT_EQ(id_of(given), "description.whole");
  given = fine;
  given.router->method = Method::custom;
  EXPECT_EQ(id_of(given), "routing.method");
}

TEST(MemoryLayer, BrokenWeightsAreToldWithTheirExpert) {
  StackedWeights memory(tiny_checkpoint(WeightFormat::nvfp4), Arrangement::apart);
  memory.up.globals[4] = 0.0f;
  auto layer = MoeLayer::create(description(WeightFormat::nvfp4), memory.view(), {.threads = 1});
  ASSERT_TRUE(layer) << text(layer.why());
  const auto done = layer->load();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.why().id, "scale.global");
  EXPECT_NE(done.why().found.find("expert 4"), std::string::npos) << done.why().found;
  EXPECT_EQ(layer->process().why().id, "layer.order") << "nothing was loaded";
}

}  // namespace memory_layer_test
}  // namespace fp4moe::runtime
