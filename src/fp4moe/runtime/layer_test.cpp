// A layer's life: order of steps, reload, ranks, adapters, copies of experts, padding.
#include "fp4moe/runtime/layer.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/moe/exchange/threads.hpp"
#include "fp4moe/moe/reference/engine.hpp"
#include "fp4moe/runtime/run.hpp"
#include "support/converted_folder.hpp"
#include "support/engines.hpp"
#include "support/tiny_layer.hpp"

namespace fp4moe::runtime {
namespace layer_test {

using convert::testing::kTinyShape;
using convert::testing::make_checkpoint;
using convert::testing::tiny_checkpoint;
using formats::WeightFormat;
using moe::NumericsKind;
using moe::WeightsHome;
using moe::testing::distance;
using moe::testing::TestLayer;
using moe::testing::TestTokens;
using tensor::DType;
using tensor::testing::TemporaryFolder;
using testing::usable_engines;

constexpr std::uint64_t kExperts = kTinyShape.experts, kHidden = kTinyShape.hidden,
                        kIntermediate = kTinyShape.intermediate;

// How far sums over ranks may be from the whole: splitting a matrix also splits the chunks of
// columns that are rounded together, or changes a last bit ahead of a rounding to bf16.
double split_error(std::string_view engine) {
  return engine == "reference" ? 1e-12 : engine == "cuda" ? 5e-3 : 2e-4;
}

Result<MoeLayer> ready(const checkpoint::Checkpoint& source, LayerOptions options) {
  options.threads = 1;
  Result<MoeLayer> layer = MoeLayer::create(source, 0, std::move(options));
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

TEST(MoeLayer, TakesItsStepsInOrder) {
  auto layer = MoeLayer::create(tiny_checkpoint(WeightFormat::mxfp4), 0, {.threads = 1});
  ASSERT_TRUE(layer) << text(layer.why());
  const TestTokens tokens(2, kHidden, 2, kExperts, 1);
  std::vector<double> out(2 * kHidden);
  const auto rows = moe::dense_rows(std::span(out), DType::f64, 2, kHidden);
  EXPECT_EQ(layer->process().why().id, "layer.order");
  EXPECT_EQ(layer->load_expert(0).why().id, "layer.order");
  EXPECT_EQ(layer->apply(tokens.routed(), rows).why().id, "layer.order");
  EXPECT_EQ(layer->run(tokens.routed(), rows).why().id, "layer.order");
  ASSERT_TRUE(layer->load());
  EXPECT_EQ(layer->apply(tokens.routed(), rows).why().id, "layer.order");
  ASSERT_TRUE(layer->process());
  EXPECT_TRUE(layer->apply(tokens.routed(), rows));
  EXPECT_EQ(layer->load_expert(99).why().id, "layer.position");
  EXPECT_EQ(MoeLayer::create(tiny_checkpoint(WeightFormat::mxfp4), 7).why().id, "layer.number");
}

TEST(MoeLayer, RefusesWordsItDoesNotKnow) {
  const auto refusal = [](LayerOptions options) {
    auto layer = MoeLayer::create(tiny_checkpoint(WeightFormat::mxfp4), 0, std::move(options));
    if (!layer) return layer.why().id;
    if (const auto done = layer->load(); !done) return done.why().id;
    const auto done = layer->process();
    return done ? std::string("ok") : done.why().id;
  };
  EXPECT_EQ(refusal({.backend_request = {.backend = "MARLYN"}}), "choice.backend");
  EXPECT_EQ(refusal({.backend_request = {.policy = "yesterday"}}), "policy.unknown");
  EXPECT_EQ(refusal({.physical_experts = {0, 1, 2}}), "eplb.table");
}

TEST(MoeLayer, ReloadingPutsTheSameBytesAtTheSameAddresses) {
  for (const char* backend : {"MARLIN", "TRITON", "CPU"}) {
    auto layer =
        ready(tiny_checkpoint(WeightFormat::mxfp4), {.backend_request = {.backend = backend}});
    ASSERT_TRUE(layer) << text(layer.why());
    const TestTokens tokens(4, kHidden, 2, kExperts, 2);
    const std::vector<double> first = apply(*layer, tokens);
    std::vector<const std::byte*> addresses;
    std::vector<std::vector<std::byte>> bytes;
    for (const auto& tensor : layer->weights().tensors()) {
      addresses.push_back(tensor.data());
      bytes.emplace_back(tensor.begin(), tensor.end());
    }
    for (const auto& memory : layer->weights().memory())
      std::fill(memory.begin(), memory.end(), std::byte{0xA5});
    ASSERT_TRUE(layer->load());
    ASSERT_TRUE(layer->load_expert(3));
    ASSERT_TRUE(layer->process());
    for (std::size_t t = 0; t < bytes.size(); ++t) {
      EXPECT_EQ(layer->weights().tensors()[t].data(), addresses[t]);
      EXPECT_TRUE(std::ranges::equal(layer->weights().tensors()[t], bytes[t])) << backend << t;
    }
    EXPECT_EQ(apply(*layer, tokens), first) << backend;
  }
}

TEST(MoeLayer, BackendsDifferByTheirNumericsOnly) {
  const TestTokens tokens(5, kHidden, 2, kExperts, 3);
  for (const EngineRow& engine : usable_engines())
    for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
      auto own =
          ready(tiny_checkpoint(format), {.engine = engine.kind, .numerics = NumericsKind::exact});
      ASSERT_TRUE(own) << text(own.why());
      EXPECT_EQ(own->experts()->engine(), engine.name);
      const std::vector<double> exact = apply(*own, tokens);
      for (const char* backend : {"MARLIN", "EMULATION", "CPU"}) {
        auto layer = ready(tiny_checkpoint(format), {.backend_request = {.backend = backend},
                                                     .engine = engine.kind,
                                                     .numerics = NumericsKind::exact});
        ASSERT_TRUE(layer) << text(layer.why());
        EXPECT_EQ(apply(*layer, tokens), exact) << backend << " " << engine.name;
      }
    }
}

// Every rank computes with its slice; the sum is the whole.
TEST(MoeLayer, RanksTogetherGiveTheWhole) {
  const TestTokens tokens(5, kHidden, 3, kExperts, 4);
  for (const EngineRow& engine : usable_engines())
    for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
      const std::string name(engine.name);
      auto whole =
          ready(tiny_checkpoint(format), {.engine = engine.kind, .numerics = NumericsKind::exact});
      ASSERT_TRUE(whole) << text(whole.why());
      const std::vector<double> expected = apply(*whole, tokens);
      for (const bool experts : {false, true})
        for (const std::uint64_t size : {2u, 3u}) {
          std::vector<double> sum(expected.size(), 0.0);
          for (std::uint64_t rank = 0; rank < size; ++rank) {
            checkpoint::Slice slice{.placement = checkpoint::Placement::round_robin};
            (experts ? slice.expert_parallel : slice.tensor_parallel) = {rank, size};
            auto layer =
                ready(tiny_checkpoint(format),
                      {.engine = engine.kind, .slice = slice, .numerics = NumericsKind::exact});
            ASSERT_TRUE(layer) << text(layer.why());
            const std::vector<double> part = apply(*layer, tokens);
            for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
          }
          EXPECT_LT(distance(expected, sum), split_error(name)) << experts << size << name;
        }
    }
}

TEST(MoeLayer, RanksSumByThemselvesWhereTheyAreTold) {
  const TestTokens tokens(5, kHidden, 3, kExperts, 5);
  auto whole = ready(tiny_checkpoint(WeightFormat::mxfp4), {.numerics = NumericsKind::exact});
  ASSERT_TRUE(whole);
  const std::vector<double> expected = apply(*whole, tokens);
  auto groups = moe::exchange::make_threads(2);
  std::vector<std::vector<double>> found(2);
  std::vector<std::thread> threads;
  for (std::uint64_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      auto layer =
          ready(tiny_checkpoint(WeightFormat::mxfp4), {.slice = {.tensor_parallel = {rank, 2}},
                                                       .ranks = groups[rank].get(),
                                                       .numerics = NumericsKind::exact});
      ASSERT_TRUE(layer) << text(layer.why());
      found[rank] = apply(*layer, tokens);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(distance(expected, found[0]), split_error("cpu"));
  EXPECT_EQ(found[0], found[1]);
}

TEST(MoeLayer, CopiesOfExpertsShareTheirTokens) {
  const TestTokens tokens(9, kHidden, 2, kExperts, 6);
  auto plain = ready(tiny_checkpoint(WeightFormat::mxfp4), {.numerics = NumericsKind::exact});
  ASSERT_TRUE(plain);
  const std::vector<double> expected = apply(*plain, tokens);
  const std::vector<std::int32_t> physical{0, 1, 2, 3, 4, 5, 0, 3};
  std::vector<double> sum(expected.size(), 0.0);
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    auto layer =
        ready(tiny_checkpoint(WeightFormat::mxfp4), {.slice = {.expert_parallel = {rank, 2}},
                                                     .numerics = NumericsKind::exact,
                                                     .physical_experts = physical});
    ASSERT_TRUE(layer) << text(layer.why());
    EXPECT_EQ(layer->local_experts().size(), 4u);
    const std::vector<double> part = apply(*layer, tokens);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  EXPECT_LT(distance(expected, sum), split_error("cpu"));
}

// The checkpoint's own rows, packed rows and rows of another layout: the same bits.
TEST(MoeLayer, WeightsMayStayInTheCheckpoint) {
  const TestTokens tokens(7, kHidden, 2, kExperts, 12);
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4})
    for (const std::uint64_t size : {1u, 2u}) {
      const checkpoint::Slice slice{.tensor_parallel = {size - 1, size}};
      auto packed = ready(tiny_checkpoint(format), {.slice = slice});
      auto mapped =
          ready(tiny_checkpoint(format), {.weights = WeightsHome::mapped, .slice = slice});
      ASSERT_TRUE(packed) << text(packed.why());
      ASSERT_TRUE(mapped) << text(mapped.why());
      EXPECT_EQ(apply(*packed, tokens), apply(*mapped, tokens)) << size;
      EXPECT_TRUE(mapped->weights().memory().empty());
      EXPECT_NE(mapped->experts()->kernel().find("mapped"), std::string::npos);
      ASSERT_TRUE(mapped->load_expert(0));
      ASSERT_TRUE(mapped->load());
      ASSERT_TRUE(mapped->process());
      EXPECT_EQ(apply(*packed, tokens), apply(*mapped, tokens)) << size;
    }
}

TEST(MoeLayer, SaysWhichWeightsCannotStay) {
  const auto refusal = [](LayerOptions options) {
    return MoeLayer::create(tiny_checkpoint(WeightFormat::mxfp4), 0, std::move(options)).why().id;
  };
  EXPECT_EQ(refusal({.backend_request = {.backend = "MARLIN"}, .weights = WeightsHome::mapped}),
            "layer.weights");
  const TemporaryFolder folder;
  make_checkpoint(folder.path() + "/model.gguf", WeightFormat::mxfp4,
                  {.experts = 2, .hidden = 64, .intermediate = 64}, checkpoint::Dialect::gguf);
  const auto gguf = checkpoint::Checkpoint::open(folder.path() + "/model.gguf");
  ASSERT_TRUE(gguf) << text(gguf.why());
  EXPECT_EQ(ready(*gguf, {.weights = WeightsHome::mapped}).why().id, "weights.rows");
}

// NVFP4 emulation rounds weights: only the reference engine does that, and says so.
TEST(MoeLayer, SaysWhoComputes) {
  auto own = ready(tiny_checkpoint(WeightFormat::nvfp4), {});
  auto fast = ready(tiny_checkpoint(WeightFormat::nvfp4), {.numerics = NumericsKind::fast});
  auto emulation =
      ready(tiny_checkpoint(WeightFormat::nvfp4), {.numerics = NumericsKind::nvfp4_emulation});
  ASSERT_TRUE(own && fast && emulation);
  EXPECT_TRUE(own->experts()->kernel().ends_with("/exact")) << own->experts()->kernel();
  EXPECT_TRUE(fast->experts()->kernel().ends_with("/fast")) << fast->experts()->kernel();
  EXPECT_EQ(emulation->experts()->kernel(), "reference/nvfp4_emulation");
}

TEST(MoeLayer, SharedExpertsAreAddedOnce) {
  const TestTokens tokens(3, kHidden, 2, kExperts, 7);
  SplitMix64 random(8);
  std::vector<float> logits(3 * kExperts);
  for (float& logit : logits) logit = random.unit();
  const Tokens given{
      .x = tokens.rows(),
      .logits = moe::dense_rows(std::span(std::as_const(logits)), DType::f32, 3, kExperts)};
  const auto run = [&](SharedExperts shared) {
    auto layer = ready(tiny_checkpoint(WeightFormat::mxfp4),
                       {.numerics = NumericsKind::exact, .shared = std::move(shared)});
    EXPECT_TRUE(layer) << text(layer.why());
    std::vector<double> out(3 * kHidden);
    const auto done = layer->run(given, moe::dense_rows(std::span(out), DType::f64, 3, kHidden));
    EXPECT_TRUE(done) << text(done.why());
    return out;
  };
  const std::vector<double> routed = run({});
  const std::vector<double> both =
      run([](const moe::ConstRows& x, const moe::MutableRows& out) -> Result<Done> {
        std::vector<float> row(x.columns);
        for (std::uint64_t t = 0; t < x.rows; ++t) {
          read_row(x, t, std::span(row));
          write_row(std::span<const float>(row), out, t);
        }
        return Done{};
      });
  for (std::size_t i = 0; i < routed.size(); ++i)
    EXPECT_NEAR(both[i] - routed[i], double{formats::Bf16::decode(tokens.x[i])},
                1e-6 * std::fabs(routed[i]) + 1e-6);
  auto failing =
      ready(tiny_checkpoint(WeightFormat::mxfp4),
            {.shared = [](const moe::ConstRows&, const moe::MutableRows&) -> Result<Done> {
              return usage("test.shared", "no");
            }});
  ASSERT_TRUE(failing);
  std::vector<double> out(3 * kHidden);
  EXPECT_EQ(failing->run(given, moe::dense_rows(std::span(out), DType::f64, 3, kHidden)).why().id,
            "test.shared");
}

TEST(MoeLayer, MonolithicOnlyWhereTheBackendIs) {
  SplitMix64 random(9);
  std::vector<float> logits(4 * kExperts);
  for (float& logit : logits) logit = random.unit();
  const TestTokens tokens(4, kHidden, 2, kExperts, 10);
  const Tokens given{
      .x = tokens.rows(),
      .logits = moe::dense_rows(std::span(std::as_const(logits)), DType::f32, 4, kExperts)};
  std::vector<double> out(4 * kHidden), by_run(4 * kHidden);
  const auto rows = moe::dense_rows(std::span(out), DType::f64, 4, kHidden);
  auto marlin =
      ready(tiny_checkpoint(WeightFormat::mxfp4), {.backend_request = {.backend = "MARLIN"}});
  ASSERT_TRUE(marlin);
  EXPECT_FALSE(marlin->is_monolithic());
  EXPECT_EQ(marlin->apply_monolithic(given, rows).why().id, "layer.monolithic");
  EXPECT_TRUE(marlin->run(given, rows));
  auto own = ready(tiny_checkpoint(WeightFormat::mxfp4), {});
  ASSERT_TRUE(own);
  EXPECT_TRUE(own->is_monolithic());
  ASSERT_TRUE(own->apply_monolithic(given, rows));
  ASSERT_TRUE(own->run(given, moe::dense_rows(std::span(by_run), DType::f64, 4, kHidden)));
  EXPECT_EQ(out, by_run);
}

TEST(MoeLayer, AdaptersNeedABackendThatAddsThem) {
  auto layer = ready(
      tiny_checkpoint(WeightFormat::mxfp4),
      {.backend_request = {.policy = "2026-08-22", .backend = "FLASHINFER_TRTLLM_MXFP4_BF16"}});
  ASSERT_TRUE(layer) << text(layer.why());
  const std::vector<moe::LoraExpert> pairs(kExperts);
  const TestTokens tokens(1, kHidden, 2, kExperts, 11);
  std::vector<double> out(kHidden);
  EXPECT_EQ(layer
                ->apply(tokens.routed(), moe::dense_rows(std::span(out), DType::f64, 1, kHidden),
                        {pairs, kExperts})
                .why()
                .id,
            "layer.lora");
}

// Whatever lies in padding, no result shows it: bytes that two complementary sources leave alike
// are padding, and are overwritten with ones (NaN, -6).
TEST(PackedWeights, PoisonedPaddingNeverShows) {
  std::size_t poisoned = 0;
  for (const layout::Layout& layout : backends::layouts()) {
    const bool is_mxfp4 = layout.format == WeightFormat::mxfp4;
    const checkpoint::MoeShape shape{.format = layout.format,
                                     .experts = 2,
                                     .hidden = 96,
                                     .intermediate = 64,
                                     .order = checkpoint::RowOrder::halves};
    convert::Problem problem{.experts = 2,
                             .real = {96, 64},
                             .padded = {256, 256},
                             .order = checkpoint::RowOrder::halves};
    TestLayer real(shape, moe::Activation::silu, 41);
    for (auto* all : {&real.gate, &real.up, &real.down})
      for (auto& matrix : *all) matrix.global = is_mxfp4 ? 1.0f : 0.125f;
    TestLayer zeros = real, ones = real;
    for (auto* layer : {&zeros, &ones})
      for (auto* all : {&layer->gate, &layer->up, &layer->down})
        for (auto& matrix : *all) {
          std::ranges::fill(matrix.codes, layer == &zeros ? std::byte{0x11} : std::byte{0xEE});
          std::ranges::fill(matrix.scales, layer == &zeros ? std::byte{0x70} : std::byte{0x7A});
        }
    const auto with_inputs = [](const TestLayer& layer) {
      moe::ExpertSource source = layer.source();
      source.visit = [visit = source.visit](std::size_t e, const moe::UseExpert& use) {
        return visit(e, [&](const checkpoint::ExpertView& given) {
          checkpoint::ExpertView view = given;
          view.gate.input_scale = view.up.input_scale = view.down.input_scale = 0.5f;
          return use(view);
        });
      };
      return source;
    };
    auto first = PackedWeights::create(layout, problem),
         second = PackedWeights::create(layout, problem);
    auto packed = PackedWeights::create(layout, problem);
    const std::string what = std::string(layout.id) + " " + std::string(layout.generation);
    ASSERT_TRUE(packed) << what << ": " << text(packed.why());
    ASSERT_TRUE(first->load(with_inputs(zeros))) << what;
    ASSERT_TRUE(second->load(with_inputs(ones))) << what;
    const auto loaded = packed->load(with_inputs(real));
    ASSERT_TRUE(loaded) << what << ": " << text(loaded.why());
    const moe::ExpertsProblem asked{.shape = shape,
                                    .activation = moe::Activation::silu,
                                    .params = moe::row(moe::Activation::silu).params,
                                    .numerics = **moe::require_numerics("exact")};
    const moe::reference::ReferenceEngine engine(std::make_shared<ThreadPool>(1));
    const TestTokens tokens(3, 96, 2, 2, 42);
    const auto compute = [&] {
      auto experts = engine.make(asked, packed->source());
      EXPECT_TRUE(experts) << what << ": " << text(experts.why());
      std::vector<double> out(3 * 96);
      const moe::Prepared in = tokens.prepared();
      EXPECT_TRUE((*experts)->compute({.in = in}, moe::OutputForm::summed,
                                      moe::dense_rows(std::span(out), DType::f64, 3, 96)));
      return out;
    };
    const std::vector<double> clean = compute();
    for (std::size_t t = 0; t < packed->memory().size(); ++t) {
      if (packed->packer().tensors()[t].expert_bytes == 0) continue;
      for (std::size_t i = 0; i < packed->memory()[t].size(); ++i)
        if (first->memory()[t][i] == second->memory()[t][i]) {
          packed->memory()[t][i] = std::byte{0xFF};
          ++poisoned;
        }
    }
    EXPECT_EQ(compute(), clean) << what;
    const moe::ExpertSource lies = packed->source();
    EXPECT_EQ(lies.layout, layout.id);
    EXPECT_EQ(lies.generation, layout.generation);
    ASSERT_EQ(lies.packed.size(), packed->tensors().size());
    EXPECT_EQ(lies.packed[0].name, "w13");
    EXPECT_EQ(lies.packed[0].bytes.data(), packed->tensors()[0].data()) << "without a copy";
    EXPECT_LT(distance(tokens.expected(real), clean), 1e-6) << what;
  }
  EXPECT_GT(poisoned, 100'000u);
}

}  // namespace layer_test
}  // namespace fp4moe::runtime
