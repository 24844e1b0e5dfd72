// Kernels of exchanges and engines: every awkward case of a call, and what is refused
// when parts do not fit.
#include "fp4moe/moe/kernel.hpp"

#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/moe/exchange/all.hpp"
#include "fp4moe/moe/exchange/threads.hpp"
#include "fp4moe/runtime/engines.hpp"
#include "support/tiny_layer.hpp"

namespace fp4moe::moe {
namespace kernel_test {

using exchange::Communicator;
using formats::WeightFormat;
using oracle::Kind;
using oracle::TokenFormat;
using testing::distance;
using testing::TestLayer;
using testing::TestTokens;

constexpr std::uint64_t kExperts = 6, kHidden = 64, kIntermediate = 32;

const TestLayer& layer() {
  static const TestLayer kLayer({.format = WeightFormat::mxfp4,
                                 .experts = kExperts,
                                 .hidden = kHidden,
                                 .intermediate = kIntermediate,
                                 .order = checkpoint::RowOrder::halves,
                                 .has_bias = true},
                                Activation::silu, 31);
  return kLayer;
}

// The layer's experts [first, first + count).
std::shared_ptr<Experts> experts_of(std::string_view numerics = "exact", std::uint64_t first = 0,
                                    std::uint64_t count = kExperts,
                                    std::string_view engine = "reference") {
  ExpertSource source = layer().source();
  source.shape.experts = count;
  source.visit = [visit = source.visit, first](std::size_t position, const UseExpert& use) {
    return visit(position + first, use);
  };
  const ExpertsProblem problem{.shape = source.shape,
                               .activation = layer().activation,
                               .params = layer().params,
                               .numerics = **require_numerics(numerics)};
  const auto maker =
      runtime::make_engine(*runtime::engine_from_name(engine), std::make_shared<ThreadPool>(1));
  EXPECT_TRUE(maker) << text(maker.why());
  auto result = (*maker)->make(problem, source);
  EXPECT_TRUE(result) << text(result.why());
  return std::move(*result);
}

std::unique_ptr<moe::Exchange> exchange_of(std::string_view name, Communicator* ranks = nullptr) {
  auto result = exchange::make_exchange(*exchange::exchange_from_name(name),
                                        {.ranks = ranks, .experts = kExperts, .max_tokens = 64});
  EXPECT_TRUE(result) << text(result.why());
  return std::move(*result);
}

ExpertsRole role_of(TokenFormat format, std::uint64_t dispatchers = 1) {
  ExpertsRole role{.format = format};
  if (format == TokenFormat::batched) {
    role.leaves_weights = true;
    role.max_tokens = 64;
    role.dispatchers = dispatchers;
  }
  return role;
}

ModularKernel kernel_of(std::string_view exchange_name, std::string_view numerics = "exact",
                        const KernelOptions& options = {}, std::string_view engine = "reference") {
  const TokenFormat format =
      exchange_name == "batched" ? TokenFormat::batched : TokenFormat::standard;
  auto result =
      ModularKernel::make(exchange_of(exchange_name), experts_of(numerics, 0, kExperts, engine),
                          role_of(format), options);
  EXPECT_TRUE(result) << text(result.why());
  return std::move(*result);
}

std::vector<double> apply(ModularKernel& kernel, const TestTokens& tokens,
                          const CallOptions& call = {}) {
  std::vector<double> out(tokens.tokens * kHidden, std::nan(""));
  const auto done = kernel.apply(
      tokens.routed(), dense_rows(std::span(out), DType::f64, tokens.tokens, kHidden), call);
  EXPECT_TRUE(done) << text(done.why());
  return out;
}

// An exchange and an engine.
class EdgeCases : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  static ModularKernel kernel_here() {
    return kernel_of(std::get<0>(GetParam()), "exact", {}, std::get<1>(GetParam()));
  }
  static double allowed() {
    return std::get<1>(GetParam()) == std::string_view("reference") ? 1e-6 : 2e-4;
  }
};

TEST_P(EdgeCases, NoTokensGiveNoRows) {
  ModularKernel kernel = kernel_here();
  EXPECT_TRUE(apply(kernel, TestTokens(0, kHidden, 2, kExperts, 1)).empty());
}

TEST_P(EdgeCases, ExpertsWithoutTokensAndTokensWithoutExperts) {
  ModularKernel kernel = kernel_here();
  TestTokens tokens(5, kHidden, 2, 2, 2);  // experts 2 to 5 have no tokens
  tokens.ids[2] = -1;
  tokens.ids[6] = tokens.ids[7] = -1;  // all of token 3
  tokens.ids[8] = 99;                  // unassigned
  const std::vector<double> found = apply(kernel, tokens);
  EXPECT_LT(distance(tokens.expected(layer()), found), allowed());
  for (std::size_t i = 0; i < kHidden; ++i) EXPECT_EQ(found[3 * kHidden + i], 0.0);
}

TEST_P(EdgeCases, AnExpertTwiceCountsTwice) {
  ModularKernel kernel = kernel_here();
  TestTokens tokens(4, kHidden, 3, kExperts, 3);
  tokens.ids[0] = tokens.ids[1] = tokens.ids[2] = 4;
  EXPECT_LT(distance(tokens.expected(layer()), apply(kernel, tokens)), allowed());
}

TEST_P(EdgeCases, AllTokensToOneExpert) {
  ModularKernel kernel = kernel_here();
  TestTokens tokens(33, kHidden, 1, kExperts, 4);
  std::fill(tokens.ids.begin(), tokens.ids.end(), 5);
  EXPECT_LT(distance(tokens.expected(layer()), apply(kernel, tokens)), allowed());
}

TEST_P(EdgeCases, MoreChoicesThanExperts) {
  ModularKernel kernel = kernel_here();
  const TestTokens tokens(3, kHidden, 11, kExperts, 5);
  EXPECT_LT(distance(tokens.expected(layer()), apply(kernel, tokens)), allowed());
}

TEST_P(EdgeCases, TheNextCallForgetsTheLast) {
  ModularKernel kernel = kernel_here();
  const TestTokens many(40, kHidden, 2, kExperts, 6), few(2, kHidden, 2, kExperts, 7);
  const std::vector<double> first = apply(kernel, few);
  apply(kernel, many);
  EXPECT_EQ(apply(kernel, few), first);
}

INSTANTIATE_TEST_SUITE_P(All, EdgeCases,
                         ::testing::Combine(::testing::Values("local", "batched"),
                                            ::testing::Values("reference", "cpu")));

TEST(ModularKernel, ChunksChangeNoBit) {
  const TestTokens tokens(23, kHidden, 2, kExperts, 8);
  for (const char* engine : {"reference", "cpu"})
    for (const Numerics& row : kNumerics) {
      ModularKernel whole = kernel_of("local", row.id, {}, engine);
      const std::vector<double> expected = apply(whole, tokens);
      for (const std::uint64_t chunk : {1u, 7u, 22u, 23u, 1000u}) {
        ModularKernel parts = kernel_of("local", row.id, {.chunk = chunk}, engine);
        EXPECT_EQ(apply(parts, tokens), expected) << row.id << " " << chunk;
      }
    }
}

TEST(ModularKernel, TrtllmsGridLimitsAChunk) {
  EXPECT_EQ(trtllm_chunk(WeightFormat::mxfp4, 128, 4), 130'814u);  // (65535 - 128) * 8 / 4
  EXPECT_EQ(trtllm_chunk(WeightFormat::mxfp4, 32, 1), 300'000u);
  EXPECT_EQ(trtllm_chunk(WeightFormat::nvfp4, 256, 30), 278'536u);  // (256 + 65280 * 128 - 1) / 30
  EXPECT_EQ(trtllm_chunk(WeightFormat::mxfp4, 70'000, 8), 1u);
}

TEST(ModularKernel, AnExpertMapKeepsForeignExpertsOut) {
  auto kernel = ModularKernel::make(exchange_of("local"), experts_of("exact", 2, 3),
                                    role_of(TokenFormat::standard));
  ASSERT_TRUE(kernel) << text(kernel.why());
  const std::vector<std::int32_t> map{-1, -1, 0, 1, 2, -1};
  TestTokens tokens(9, kHidden, 4, kExperts, 9);
  const std::vector<double> found = apply(*kernel, tokens, {.expert_map = map});
  for (std::int32_t& id : tokens.ids)
    if (id < 2 || id > 4) id = -1;
  EXPECT_LT(distance(tokens.expected(layer()), found), 1e-6);
}

TEST(ModularKernel, TheWeightOnTheInputIsAppliedOnce) {
  ModularKernel kernel = kernel_of("local", "exact", {.weight_on_input = true});
  TestTokens tokens(6, kHidden, 1, kExperts, 10);
  const std::vector<double> found = apply(kernel, tokens);
  for (std::size_t i = 0; i < tokens.x.size(); ++i) {
    const float weight = TestLayer::exact_bf16(tokens.weights[i / kHidden]);
    tokens.x[i] = formats::Bf16::encode(formats::Bf16::decode(tokens.x[i]) * weight);
  }
  std::fill(tokens.weights.begin(), tokens.weights.end(), 1.0f);
  EXPECT_LT(distance(tokens.expected(layer()), found), 1e-12);
  const TestTokens two(2, kHidden, 2, kExperts, 11);
  std::vector<double> out(2 * kHidden);
  EXPECT_EQ(kernel.apply(two.routed(), dense_rows(std::span(out), DType::f64, 2, kHidden)).why().id,
            "kernel.on_input");
}

TEST(ModularKernel, OutputsComeInEveryType) {
  ModularKernel kernel = kernel_of("local");
  const TestTokens tokens(3, kHidden, 2, kExperts, 12);
  const std::vector<double> exact = apply(kernel, tokens);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    std::vector<std::byte> out(3 * kHidden * element_bytes(dtype));
    const MutableRows rows{out.data(), dtype, 3, kHidden, kHidden * element_bytes(dtype)};
    ASSERT_TRUE(kernel.apply(tokens.routed(), rows));
    std::vector<double> found(3 * kHidden);
    for (std::uint64_t t = 0; t < 3; ++t)
      read_row(ConstRows(rows), t, std::span(found).subspan(t * kHidden, kHidden));
    EXPECT_LT(distance(exact, found), dtype == DType::f32 ? 1e-7 : 4e-3) << tensor::name(dtype);
  }
}

TEST(ModularKernel, RefusesPartsThatDoNotFit) {
  const auto refusal = [](const char* exchange_name, const ExpertsRole& role,
                          const KernelOptions& options = {}) {
    auto result = ModularKernel::make(exchange_of(exchange_name), experts_of(), role, options);
    return result ? std::string("ok") : result.why().id;
  };
  EXPECT_EQ(refusal("local", role_of(TokenFormat::standard)), "ok");
  EXPECT_EQ(refusal("local", role_of(TokenFormat::batched)), "kernel.format");
  EXPECT_EQ(refusal("batched", role_of(TokenFormat::standard)), "kernel.format");
  EXPECT_EQ(refusal("local", {.kind = Kind::monolithic}), "kernel.kind");
  EXPECT_EQ(refusal("local", {.max_tokens = 3}), "kernel.limits");
  EXPECT_EQ(refusal("batched", {.format = TokenFormat::batched, .leaves_weights = true}),
            "kernel.limits");
}

TEST(ModularKernel, RefusesCallsThatDoNotFit) {
  ModularKernel kernel = kernel_of("local");
  const TestTokens tokens(2, kHidden, 2, kExperts, 13);
  std::vector<double> out(3 * kHidden);
  const auto refusal = [&](const moe::Tokens& given, std::uint64_t rows) {
    const auto done = kernel.apply(given, dense_rows(std::span(out), DType::f64, rows, kHidden));
    return done ? std::string("ok") : done.why().id;
  };
  moe::Tokens given = tokens.routed();
  EXPECT_EQ(refusal(given, 2), "ok");
  EXPECT_EQ(refusal(given, 3), "kernel.output");
  given.weights = given.weights.first(3);
  EXPECT_EQ(refusal(given, 2), "kernel.routes");
  given = tokens.routed();
  given.x.columns = 32;
  EXPECT_EQ(refusal(given, 2), "rows.columns");
}

routing::Router router_of(routing::Method method, std::uint64_t top_k) {
  auto result = routing::Router::make({.method = method, .experts = kExperts, .top_k = top_k});
  EXPECT_TRUE(result) << text(result.why());
  return std::move(*result);
}

std::vector<float> logits_of(std::uint64_t tokens, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<float> logits(tokens * kExperts);
  for (float& logit : logits) logit = 4.0f * random.unit() - 2.0f;
  return logits;
}

Result<MonolithicKernel> monolithic(routing::Method method, std::uint64_t top_k,
                                    const KernelOptions& options = {}) {
  return MonolithicKernel::make(exchange_of("local"), experts_of(), router_of(method, top_k),
                                {.kind = Kind::monolithic}, {.kernel = options});
}

TEST(MonolithicKernel, DoesWhatRoutingAndAModularKernelDo) {
  ThreadPool pool(1);
  for (const routing::Method method : {routing::Method::renormalize, routing::Method::softmax_topk,
                                       routing::Method::deepseek_v3, routing::Method::sigmoid}) {
    auto kernel = monolithic(method, 3);
    ASSERT_TRUE(kernel) << text(kernel.why());
    TestTokens tokens(7, kHidden, 3, kExperts, 14);
    const std::vector<float> logits = logits_of(7, 15);
    const moe::Tokens given{.x = tokens.rows(),
                            .logits = dense_rows(std::span(logits), DType::f32, 7, kExperts)};
    std::vector<double> found(7 * kHidden, std::nan(""));
    std::vector<std::int16_t> replay(21);
    const auto done =
        kernel->apply(given, dense_rows(std::span(found), DType::f64, 7, kHidden), pool, replay);
    ASSERT_TRUE(done) << text(done.why());
    ASSERT_TRUE(
        router_of(method, 3).route({.logits = {logits.data(), DType::f32, 7, kExperts, kExperts}},
                                   {.ids = tokens.ids, .weights = tokens.weights}, pool));
    ModularKernel modular = kernel_of("local");
    EXPECT_EQ(apply(modular, tokens), found);
    EXPECT_TRUE(std::equal(replay.begin(), replay.end(), tokens.ids.begin()));
  }
}

TEST(MonolithicKernel, RefusesWhatItCannotDo) {
  ThreadPool pool(1);
  EXPECT_EQ(monolithic(routing::Method::llama4, 1).why().id, "kernel.routing");
  EXPECT_EQ(monolithic(routing::Method::renormalize, 1, {.weight_on_input = true}).why().id,
            "kernel.routing");
  EXPECT_EQ(MonolithicKernel::make(exchange_of("local"), experts_of(),
                                   router_of(routing::Method::renormalize, 2), {}, {})
                .why()
                .id,
            "kernel.kind");
  auto kernel = monolithic(routing::Method::renormalize, 2);
  ASSERT_TRUE(kernel);
  const TestTokens tokens(3, kHidden, 2, kExperts, 16);
  const std::vector<float> logits = logits_of(3, 17);
  const std::vector<std::int32_t> adapters{0, 0, 0};
  moe::Tokens given{.x = tokens.rows(),
                    .logits = dense_rows(std::span(logits), DType::f32, 3, kExperts)};
  std::vector<double> out(3 * kHidden);
  const MutableRows rows = dense_rows(std::span(out), DType::f64, 3, kHidden);
  std::vector<std::int16_t> small(2);
  EXPECT_EQ(kernel->apply(given, rows, pool, small).why().id, "kernel.replay");
  given.adapters = adapters;
  EXPECT_EQ(kernel->apply(given, rows, pool).why().id, "kernel.lora");
  given.adapters = {};
  given.logits.rows = 2;
  EXPECT_EQ(kernel->apply(given, rows, pool).why().id, "kernel.output");
}

TEST(MonolithicKernel, Llama4WeighsTheInput) {
  ThreadPool pool(1);
  auto kernel = monolithic(routing::Method::llama4, 1, {.weight_on_input = true});
  ASSERT_TRUE(kernel) << text(kernel.why());
  TestTokens tokens(5, kHidden, 1, kExperts, 18);
  const std::vector<float> logits = logits_of(5, 19);
  std::vector<double> found(5 * kHidden);
  const auto done = kernel->apply(
      {.x = tokens.rows(), .logits = dense_rows(std::span(logits), DType::f32, 5, kExperts)},
      dense_rows(std::span(found), DType::f64, 5, kHidden), pool);
  ASSERT_TRUE(done) << text(done.why());
  ASSERT_TRUE(router_of(routing::Method::llama4, 1)
                  .route({.logits = {logits.data(), DType::f32, 5, kExperts, kExperts}},
                         {.ids = tokens.ids, .weights = tokens.weights}, pool));
  ModularKernel modular = kernel_of("local", "exact", {.weight_on_input = true});
  EXPECT_EQ(apply(modular, tokens), found);
}

// Each rank brings its own tokens and holds a part of the experts.
TEST(RankedKernels, EveryExchangeGivesWhatOneProcessGives) {
  const TestTokens tokens(11, kHidden, 3, kExperts, 20);
  const std::vector<double> expected = tokens.expected(layer());
  for (const char* name : {"gather", "all_to_all", "all_to_all_batched"})
    for (const std::uint64_t size : {2u, 3u}) {
      auto groups = exchange::make_threads(size);
      std::vector<double> found(expected.size(), std::nan(""));
      std::vector<std::thread> threads;
      for (std::uint64_t rank = 0; rank < size; ++rank)
        threads.emplace_back([&, rank] {
          const std::uint64_t begin = 11 * rank / size, end = 11 * (rank + 1) / size;
          const std::uint64_t local = kExperts / size;
          const bool is_batched = std::string_view(name) == "all_to_all_batched";
          auto kernel = ModularKernel::make(
              exchange_of(name, groups[rank].get()), experts_of("exact", rank * local, local),
              role_of(is_batched ? TokenFormat::batched : TokenFormat::standard, size));
          ASSERT_TRUE(kernel) << text(kernel.why());
          std::vector<std::int32_t> map(kExperts, -1);
          for (std::uint64_t e = 0; e < local; ++e)
            map[rank * local + e] = static_cast<std::int32_t>(e);
          moe::Tokens mine = tokens.routed();
          mine.x = mine.x.from(begin, end - begin);
          mine.ids = mine.ids.subspan(begin * 3, (end - begin) * 3);
          mine.weights = mine.weights.subspan(begin * 3, (end - begin) * 3);
          const auto done = kernel->apply(
              mine,
              dense_rows(std::span(found).subspan(begin * kHidden, (end - begin) * kHidden),
                         DType::f64, end - begin, kHidden),
              {.expert_map = map});
          EXPECT_TRUE(done) << text(done.why());
        });
      for (std::thread& thread : threads) thread.join();
      EXPECT_LT(distance(expected, found), 1e-6) << name << " " << size;
    }
}

}  // namespace kernel_test
}  // namespace fp4moe::moe
