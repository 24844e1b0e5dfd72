#include "fp4moe/moe/routing/router.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"

namespace fp4moe::moe::routing {
namespace router_test {

using tensor::DType;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Logits as a type stores them.
struct Stored {
  std::vector<float> wide{};
  std::vector<std::uint16_t> narrow{};
  LogitsView view{};
};
Stored store(std::vector<float> logits, std::uint64_t tokens, DType dtype = DType::f32) {
  Stored result{.wide = std::move(logits)};
  result.view = {result.wide.data(), dtype, tokens, tokens == 0 ? 1 : result.wide.size() / tokens,
                 0};
  if (dtype == DType::f32) return result;
  for (const float x : result.wide)
    result.narrow.push_back(dtype == DType::bf16 ? formats::Bf16::encode(x)
                                                 : formats::F16::encode(x));
  result.view.data = result.narrow.data();
  return result;
}

struct Routed {
  std::vector<std::int32_t> ids{};
  std::vector<float> weights{}, identity{};
  RouteOutput output() { return {ids, weights, identity}; }
};
Routed buffers_for(const Router& router, std::uint64_t tokens) {
  return {std::vector<std::int32_t>(tokens * router.assignments_per_token(), -9),
          std::vector<float>(tokens * router.assignments_per_token(), kNan),
          std::vector<float>(router.options().zero_experts > 0 ? tokens : 0, kNan)};
}
Routed route(const Router& router, RouteInput input, std::size_t threads = 1) {
  ThreadPool pool(threads);
  Routed routed = buffers_for(router, input.logits.tokens);
  const Result<Done> done = router.route(input, routed.output(), pool);
  EXPECT_TRUE(done) << text(done.why());
  return routed;
}
Routed reference(const Router& router, const RouteInput& input) {
  Routed routed = buffers_for(router, input.logits.tokens);
  EXPECT_TRUE(router.route_reference(input, routed.output()));
  return routed;
}

Router result(RouterOptions options) {
  Result<Router> router = Router::make(std::move(options));
  EXPECT_TRUE(router) << text(router.why());
  return *std::move(router);
}
std::string refusal(RouterOptions options) {
  const Result<Router> router = Router::make(std::move(options));
  return router ? std::string() : router.why().id;
}

// Every method that reads logits, with everything it takes.
std::vector<RouterOptions> all_methods(std::uint64_t experts, std::uint64_t top_k) {
  std::vector<RouterOptions> all;
  SplitMix64 random(experts * 31 + top_k);
  for (const MethodRow& method : kMethods) {
    if (method.key == Score::none || (method.method == Method::llama4 && top_k != 1)) continue;
    RouterOptions options{.method = method.method, .experts = experts, .top_k = top_k};
    all.push_back(options);
    if (method.takes_scale) options.scale = 2.5;
    if (method.takes_bias) {
      for (std::uint64_t e = 0; e < experts; ++e) options.bias.push_back(random.unit() - 0.5f);
      all.push_back(options);
    }
    if (method.takes_groups && experts % 4 == 0 && experts > 4 && top_k <= experts / 2) {
      options.groups = 4;
      options.chosen_groups = 2;
      all.push_back(options);
      options.bias.clear();
      options.renormalize = method.normalization == Normalization::optional
                                ? std::optional<bool>(false)
                                : std::nullopt;
      all.push_back(options);
    }
  }
  return all;
}

void expect_same(const Routed& fast, const Routed& slow, const std::string& what) {
  ASSERT_EQ(fast.ids, slow.ids) << what;
  for (std::size_t i = 0; i < slow.weights.size(); ++i)
    ASSERT_NEAR(fast.weights[i], slow.weights[i], 1e-18f + 5e-6f * std::abs(slow.weights[i]))
        << what << ", assignment " << i;
}

TEST(Router, FastRowsAgreeWithSlowOnes) {
  SplitMix64 random(11);
  for (const std::uint64_t experts : {1u, 3u, 16u, 31u, 128u, 384u, 512u, 896u}) {
    for (const std::uint64_t top_k :
         {std::uint64_t{1}, std::uint64_t{8}, std::uint64_t{22}, experts}) {
      if (top_k > experts) continue;
      constexpr std::uint64_t kTokens = 5;
      std::vector<float> logits(kTokens * experts);
      // Far apart, ordinary, crowded, on a coarse grid, and extreme.
      const float spread[kTokens] = {60, 4, 1e-5f, 2, 300};
      for (std::uint64_t i = 0; i < logits.size(); ++i) {
        const std::uint64_t t = i / experts;
        logits[i] = spread[t] * (2 * random.unit() - 1);
        if (t == 3) logits[i] = std::round(logits[i] * 4) / 4;
      }
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        const Stored stored = store(logits, kTokens, dtype);
        for (const RouterOptions& options : all_methods(experts, top_k)) {
          const Router router = result(options);
          expect_same(route(router, {stored.view}), reference(router, {stored.view}),
                      fmt::format("{} of {} experts, {}, {}, {} groups", top_k, experts,
                                  name(options.method), tensor::name(dtype), options.groups));
        }
      }
    }
  }
}

TEST(Router, IdsAreDistinctWhateverTheLogits) {
  SplitMix64 random(5);
  const float wild[] = {kNan, -kNan, kInfinity, -kInfinity, 0, -0.0f, 1, 3e38f, -3e38f, 1e-45f};
  constexpr std::uint64_t kTokens = 200, kExperts = 16, kTop = 6;
  std::vector<float> logits(kTokens * kExperts);
  for (std::uint64_t t = 0; t < kTokens; ++t)
    for (std::uint64_t e = 0; e < kExperts; ++e)
      logits[t * kExperts + e] =
          t < std::size(wild) ? wild[t] : wild[random.next() % std::size(wild)];
  const Stored stored = store(logits, kTokens);
  for (const RouterOptions& options : all_methods(kExperts, kTop)) {
    const Router router = result(options);
    const Routed routed = route(router, {stored.view});
    for (std::uint64_t t = 0; t < kTokens; ++t) {
      std::set<std::int32_t> seen;
      for (std::uint64_t j = 0; j < kTop; ++j) {
        const std::int32_t id = routed.ids[t * kTop + j];
        EXPECT_TRUE(id >= 0 && id < static_cast<std::int32_t>(kExperts));
        EXPECT_TRUE(seen.insert(id).second) << name(options.method) << ", token " << t;
        EXPECT_TRUE(std::isfinite(routed.weights[t * kTop + j])) << name(options.method);
      }
    }
    expect_same(routed, reference(router, {stored.view}), std::string(name(options.method)));
  }
}

TEST(Router, ThreadsChangeNothing) {
  SplitMix64 random(2);
  std::vector<float> logits(777 * 64);
  for (float& x : logits) x = 8 * random.unit() - 4;
  const Stored stored = store(logits, 777);
  for (const RouterOptions& options : all_methods(64, 6)) {
    const Router router = result(options);
    const Routed one = route(router, {stored.view}), three = route(router, {stored.view}, 3);
    EXPECT_EQ(one.ids, three.ids);
    EXPECT_EQ(one.weights, three.weights);
  }
}

TEST(Router, EqualScoresGoToTheLowerExpert) {
  // Float32 sigmoids of 20, 30 and 40 are all 1; float32 softmax of -200 and -150 is 0.
  EXPECT_EQ(route(result({.method = Method::sigmoid, .experts = 5, .top_k = 3}),
                  {store({20, 30, -1, 40, 2}, 1).view})
                .ids,
            (std::vector<std::int32_t>{0, 1, 3}));
  EXPECT_EQ(route(result({.method = Method::softmax_topk, .experts = 4, .top_k = 3}),
                  {store({-200, -150, 0, -180}, 1).view})
                .ids,
            (std::vector<std::int32_t>{2, 0, 1}));
  // Logits a ten-billionth apart have the same softmax in float32.
  const float above = 1e-10f;
  EXPECT_EQ(route(result({.method = Method::renormalize_naive, .experts = 3, .top_k = 2}),
                  {store({0, above, 0}, 1).view})
                .ids,
            (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(route(result({.method = Method::renormalize, .experts = 3, .top_k = 2}),
                  {store({0, above, 0}, 1).view})
                .ids,
            (std::vector<std::int32_t>{1, 0}));
}

TEST(Router, MaskedGroupsAreBelowNegativeKeys) {
  RouterOptions options{.method = Method::deepseek_v3, .experts = 8, .top_k = 2};
  options.groups = 4;
  options.chosen_groups = 1;
  options.bias.assign(8, -3.0f);
  const Routed routed = route(result(options), {store({0, 0, 0, 0, 1, 1, 0, 0}, 1).view});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{4, 5}));
}

TEST(Router, GroupsWithoutAFiniteScoreGiveEqualWeights) {
  RouterOptions options{.method = Method::deepseek_v3, .experts = 8, .top_k = 4, .scale = 2.5};
  options.groups = 4;
  options.chosen_groups = 2;
  const Routed routed = route(result(options), {store(std::vector<float>(8, kNan), 1).view});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(routed.weights, std::vector<float>(4, 0.25f));
}

TEST(Router, GroupingThatCannotBeIsSkipped) {
  for (const std::uint64_t groups : {3u, 8u, 9u}) {
    RouterOptions options{.method = Method::grouped_softmax, .experts = 8, .top_k = 2};
    options.groups = groups;
    options.chosen_groups = 1;
    const Router router = result(options);
    EXPECT_FALSE(router.is_grouped());
    EXPECT_EQ(route(router, {store({0, 9, 0, 0, 0, 0, 8, 0}, 1).view}).ids,
              (std::vector<std::int32_t>{1, 6}));
  }
}

TEST(Router, ScoresMayBeRoundedAsLogitsAre) {
  // 0.7303 and 0.7311 are one number in bf16: the tie goes to the lower expert.
  RouterOptions options{.method = Method::deepseek_v3, .experts = 4, .top_k = 2};
  options.groups = 2;
  options.chosen_groups = 2;
  const Stored stored = store({0.99609375f, 1.0f, -4, -4}, 1, DType::bf16);
  EXPECT_EQ(route(result(options), {stored.view}).ids, (std::vector<std::int32_t>{1, 0}));
  options.scores_in_logits_dtype = true;
  EXPECT_EQ(route(result(options), {stored.view}).ids, (std::vector<std::int32_t>{0, 1}));
}

TEST(Router, ZeroExpertsBecomeAnIdentityWeight) {
  RouterOptions options{.method = Method::softmax_topk, .experts = 2, .top_k = 2};
  options.zero_experts = 2;
  const Routed routed = route(result(options), {store({0, 1, 2, 3, 3, 2, 1, 0}, 2).view});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{0, 0, 0, 1}));
  EXPECT_EQ(routed.weights[0], 0);
  EXPECT_EQ(routed.weights[1], 0);
  EXPECT_NEAR(routed.identity[0],
              (std::exp(2.0) + std::exp(3.0)) / (1 + std::exp(1.0) + std::exp(2.0) + std::exp(3.0)),
              1e-6);
  EXPECT_EQ(routed.identity[1], 0);
}

TEST(Router, PaddingRowsChooseNothing) {
  RouterOptions options{.method = Method::topk, .experts = 3, .top_k = 2};
  options.shared_experts = 1;
  const std::vector<std::uint8_t> padding{1, 0};
  const Stored stored = store({1, 2, 3, 1, 2, 3}, 2);
  const Routed routed = route(result(options), {.logits = stored.view, .is_padding = padding});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{-1, -1, -1, 2, 1, 3}));
  EXPECT_EQ(routed.weights, (std::vector<float>{0, 0, 0, 3, 2, 1}));
}

TEST(Router, SharedExpertsWeighOneOrWhatTheOutputScaleTakesBack) {
  RouterOptions options{.method = Method::topk, .experts = 2, .top_k = 1, .scale = 4};
  options.shared_experts = 2;
  options.scale_on_output = true;
  const Routed routed = route(result(options), {store({1, 2}, 1).view});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_EQ(routed.weights, (std::vector<float>{2, 0.25f, 0.25f}));
}

TEST(Router, WeightsMayBeRoundedToBf16) {
  RouterOptions options{.method = Method::topk, .experts = 1, .top_k = 1};
  options.weights_in_bf16 = true;
  EXPECT_EQ(route(result(options), {store({1.005f}, 1).view}).weights[0], 1.0078125f);
}

TEST(Router, ATableChoosesByTokenId) {
  RouterOptions options{.method = Method::deepseek_v4, .experts = 4, .top_k = 2};
  options.hash_table = {3, 0, 1, 2};
  const Router router = result(options);
  const std::vector<std::int32_t> tokens{1, 0};
  const Stored stored = store({0, 1, 2, 3, 0, 0, 0, 0}, 2);
  const Routed routed = route(router, {.logits = stored.view, .token_ids = tokens});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{1, 2, 3, 0}));
  EXPECT_FLOAT_EQ(routed.weights[2], 0.5f);
  expect_same(routed, reference(router, {.logits = stored.view, .token_ids = tokens}), "table");

  ThreadPool pool(1);
  Routed buffer = buffers_for(router, 2);
  const std::vector<std::int32_t> unknown{0, 2};
  EXPECT_EQ(
      router.route({.logits = stored.view, .token_ids = unknown}, buffer.output(), pool).why().id,
      "routing.input");
  EXPECT_EQ(router.route({.logits = stored.view}, buffer.output(), pool).why().id, "routing.input");
}

TEST(Router, SimulationDependsOnSeedAndTokenAlone) {
  RouterOptions options{.method = Method::simulated, .experts = 32, .top_k = 4, .seed = 9};
  for (const Simulation simulation : {Simulation::uniform_random, Simulation::normal_routing}) {
    options.simulation = simulation;
    const Routed many = route(result(options), {{.tokens = 100}}, 2);
    const Routed few = route(result(options), {{.tokens = 3}});
    EXPECT_TRUE(std::equal(few.ids.begin(), few.ids.end(), many.ids.begin()));
    RouterOptions other = options;
    other.seed = 10;
    EXPECT_NE(route(result(other), {{.tokens = 100}}).ids, many.ids);
    std::vector<int> used(32);
    for (std::size_t t = 0; t < 100; ++t) {
      float sum = 0;
      std::set<std::int32_t> distinct;
      for (std::size_t j = 0; j < 4; ++j) {
        sum += many.weights[t * 4 + j];
        distinct.insert(many.ids[t * 4 + j]);
        ++used[static_cast<std::size_t>(many.ids[t * 4 + j])];
      }
      if (simulation == Simulation::uniform_random) {
        EXPECT_EQ(distinct.size(), 4u);
        EXPECT_EQ(sum, 4.0f);
      } else {
        EXPECT_NEAR(sum, 1.0f, 1e-6f);
      }
    }
    EXPECT_GT(std::ranges::count_if(used, [](int times) { return times > 0; }), 24);
  }
}

TEST(Router, NoTokensAreFine) {
  const Router router = result({.method = Method::renormalize, .experts = 8, .top_k = 2});
  EXPECT_TRUE(route(router, {{nullptr, DType::f32, 0, 8, 0}}).ids.empty());
}

TEST(Router, RowsMayLieApart) {
  const std::vector<float> memory{1, 2, 99, 4, 3, 99};
  const Router router = result({.method = Method::topk, .experts = 2, .top_k = 1});
  EXPECT_EQ(route(router, {{memory.data(), DType::f32, 2, 2, 3}}).ids,
            (std::vector<std::int32_t>{1, 0}));
}

TEST(Router, RefusesOptionsThatCannotBe) {
  const RouterOptions good{.method = Method::deepseek_v3, .experts = 8, .top_k = 2};
  const auto with = [&](auto change) {
    RouterOptions options = good;
    change(options);
    return refusal(options);
  };
  EXPECT_EQ(with([](auto&) {}), "");
  EXPECT_EQ(with([](auto& o) { o.method = Method::custom; }), "routing.method");
  EXPECT_EQ(with([](auto& o) { o.method = Method::unspecified; }), "routing.method");
  EXPECT_EQ(with([](auto& o) { o.experts = 0; }), "routing.experts");
  EXPECT_EQ(with([](auto& o) { o.experts = kMaxExperts + 1; }), "routing.experts");
  EXPECT_EQ(with([](auto& o) { o.zero_experts = ~std::uint64_t{0}; }), "routing.experts");
  EXPECT_EQ(with([](auto& o) { o.shared_experts = ~std::uint64_t{0}; }), "routing.experts");
  EXPECT_EQ(with([](auto& o) { o.top_k = 0; }), "routing.top_k");
  EXPECT_EQ(with([](auto& o) { o.top_k = 9; }), "routing.top_k");
  EXPECT_EQ(with([](auto& o) { o.method = Method::llama4; }), "routing.top_k");
  EXPECT_EQ(with([](auto& o) { o.groups = 4; }), "routing.groups");
  EXPECT_EQ(with([](auto& o) { o.groups = 4, o.chosen_groups = 5; }), "routing.groups");
  EXPECT_EQ(with([](auto& o) { o.groups = 4, o.chosen_groups = 1, o.top_k = 3; }),
            "routing.groups");
  EXPECT_EQ(with([](auto& o) { o.method = Method::topk, o.groups = 4, o.chosen_groups = 2; }),
            "routing.groups");
  EXPECT_EQ(with([](auto& o) { o.bias.assign(7, 0); }), "routing.bias");
  EXPECT_EQ(with([](auto& o) { o.bias.assign(8, kNan); }), "routing.bias");
  EXPECT_EQ(with([](auto& o) { o.method = Method::topk, o.bias.assign(8, 0); }), "routing.bias");
  EXPECT_EQ(with([](auto& o) { o.scale = 0; }), "routing.scale");
  EXPECT_EQ(with([](auto& o) { o.scale = std::nan(""); }), "routing.scale");
  EXPECT_EQ(with([](auto& o) { o.method = Method::topk, o.scale = 2; }), "routing.scale");
  EXPECT_EQ(with([](auto& o) { o.renormalize = false; }), "routing.renormalize");
  EXPECT_EQ(with([](auto& o) { o.method = Method::topk, o.renormalize = true; }),
            "routing.renormalize");
  EXPECT_EQ(with([](auto& o) { o.hash_table = {1, 2}; }), "routing.hash");
  EXPECT_EQ(with([](auto& o) {
              o.method = Method::deepseek_v4, o.hash_table = {1, 2, 3};
            }),
            "routing.hash");
  EXPECT_EQ(with([](auto& o) {
              o.method = Method::deepseek_v4, o.hash_table = {1, 8};
            }),
            "routing.hash");
}

TEST(Router, RefusesInputOfTheWrongSize) {
  RouterOptions options{.method = Method::topk, .experts = 2, .top_k = 1};
  options.zero_experts = 1;
  const Router router = result(options);
  const Stored stored = store({1, 2, 3, 4, 5, 6}, 2);
  ThreadPool pool(1);
  const auto id = [&](RouteInput input, Routed buffer) {
    const Result<Done> done = router.route(input, buffer.output(), pool);
    EXPECT_EQ(bool(done), bool(router.route_reference(input, buffer.output())));
    return done ? std::string() : done.why().id;
  };
  const Routed buffer = buffers_for(router, 2);
  LogitsView view = stored.view;
  EXPECT_EQ(id({view}, buffer), "");
  view.dtype = DType::f64;
  EXPECT_EQ(id({view}, buffer), "routing.dtype");
  view = stored.view;
  view.columns = 2;
  EXPECT_EQ(id({view}, buffer), "routing.input");
  view = stored.view;
  view.stride = 2;
  EXPECT_EQ(id({view}, buffer), "routing.input");
  view = stored.view;
  view.data = nullptr;
  EXPECT_EQ(id({view}, buffer), "routing.input");
  view = stored.view;
  EXPECT_EQ(id({view}, {std::vector<std::int32_t>(3), buffer.weights, buffer.identity}),
            "routing.input");
  EXPECT_EQ(id({view}, {buffer.ids, std::vector<float>(1), buffer.identity}), "routing.input");
  EXPECT_EQ(id({view}, {buffer.ids, buffer.weights, {}}), "routing.input");
  const std::vector<std::uint8_t> padding(1);
  EXPECT_EQ(id({.logits = view, .is_padding = padding}, buffer), "routing.input");
}

TEST(PackRouting, PutsTheIdAboveTheWeight) {
  const std::vector<std::int32_t> ids{0, 255, -1};
  const std::vector<float> weights{1.0f, 0.5f, 0.0f};
  std::vector<std::int32_t> packed(3);
  ASSERT_TRUE(pack_routing(ids, weights, packed));
  EXPECT_EQ(packed, (std::vector<std::int32_t>{0x3F80, (255 << 16) | 0x3F00, -65536}));
  EXPECT_EQ(pack_routing(ids, weights, std::span(packed).first(2)).why().id, "routing.input");
}

TEST(Methods, ThePageShowsTheTable) {
  std::ifstream file(std::string(FP4MOE_TESTDATA) + "/../docs/routing.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const std::string marked =
      fmt::format("<!-- methods -->\n{}<!-- methods -->", methods_markdown());
  EXPECT_NE(page.find(marked), std::string::npos)
      << "docs/routing.md is stale; between its markers belongs\n"
      << methods_markdown();
}

TEST(Methods, HaveNamesOfTheirOwn) {
  for (const MethodRow& one : kMethods) {
    EXPECT_EQ(method_from_name(one.name), one.method);
    EXPECT_EQ(&row(one.method), &one);
  }
  EXPECT_EQ(method_from_name("renormalize"), std::nullopt);
  EXPECT_EQ(scoring_from_name("sqrtsoftplus"), Scoring::sqrtsoftplus);
  EXPECT_EQ(scoring_from_name("tanh"), std::nullopt);
  EXPECT_EQ(simulation_from_name("normal_routing"), Simulation::normal_routing);
  EXPECT_EQ(simulation_from_name("none"), std::nullopt);
}

TEST(Methods, ConfigurationsAdvertiseThem) {
  struct Case {
    RouterConfig config;
    Method august_2026, before;
  };
  const auto softmax = [](bool renormalize) { return RouterConfig{.renormalize = renormalize}; };
  const auto sigmoid = [](RouterConfig config) {
    config.scoring = Scoring::sigmoid;
    return config;
  };
  const Case cases[] = {
      {softmax(true), Method::renormalize_naive, Method::renormalize},
      {softmax(false), Method::softmax_topk, Method::softmax_topk},
      {{.has_bias = true}, Method::unspecified, Method::unspecified},
      {sigmoid({.top_k = 8}), Method::sigmoid_renorm, Method::unspecified},
      {sigmoid({.renormalize = false}), Method::sigmoid, Method::llama4},
      {sigmoid({.has_bias = true, .groups = 8}), Method::deepseek_v3, Method::deepseek_v3},
      {sigmoid({.has_bias = true, .groups = 1}), Method::deepseek_v3, Method::deepseek_v3},
      {sigmoid({.has_bias = true}), Method::minimax2, Method::unspecified},
      {sigmoid({.has_bias = true, .scale = 1.0}), Method::minimax2, Method::unspecified},
      {sigmoid({.has_bias = true, .scale = 2.5}), Method::unspecified, Method::unspecified},
      {sigmoid({.renormalize = false, .has_bias = true, .groups = 8}), Method::unspecified,
       Method::deepseek_v3},
      {{.scoring = Scoring::sqrtsoftplus}, Method::deepseek_v4, Method::unspecified},
      {{.scoring = Scoring::sqrtsoftplus, .renormalize = false},
       Method::unspecified,
       Method::unspecified},
      {{.has_custom_function = true}, Method::custom, Method::custom},
      {{.has_custom_function = true, .is_llama4_function = true}, Method::llama4, Method::llama4},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(advertised_method(one.config, ConfigDate::august_2026), one.august_2026)
        << &one - cases;
    EXPECT_EQ(advertised_method(one.config, ConfigDate::before_august_2026), one.before)
        << &one - cases;
  }
  const RouterConfig scaled = sigmoid({.has_bias = true, .scale = 2.5});
  EXPECT_EQ(advertised_method(scaled, ConfigDate::vllm_033), Method::minimax2);
  EXPECT_EQ(advertised_method(softmax(true), ConfigDate::vllm_033), Method::renormalize_naive);
}

TEST(Methods, TheFirstRouterThatMatchesServes) {
  RouterSetting setting;
  EXPECT_EQ(choose_router(setting), RouterKind::plain_topk);
  setting.fuses_shared_experts = true;
  EXPECT_EQ(choose_router(setting), RouterKind::shared_topk);
  setting.has_hash_table = true;
  EXPECT_EQ(choose_router(setting), RouterKind::biased_topk);
  setting.config.has_custom_function = true;
  EXPECT_EQ(choose_router(setting), RouterKind::custom);
  setting.uses_grouped_topk = true;
  setting.config.groups = setting.config.chosen_groups = 1;
  EXPECT_EQ(choose_router(setting), RouterKind::custom);  // one group groups nothing
  setting.config.groups = 8;
  EXPECT_EQ(choose_router(setting), RouterKind::grouped_topk);
  setting.has_zero_experts = true;
  EXPECT_EQ(choose_router(setting), RouterKind::zero_experts);
  setting.is_simulated = true;
  EXPECT_EQ(choose_router(setting), RouterKind::simulated);
  EXPECT_EQ(name(RouterKind::simulated), "simulated");

  // One group stays where dropping it would change what is advertised, or lose the scale.
  RouterSetting kimi{.config = {.scoring = Scoring::sigmoid,
                                .has_bias = true,
                                .groups = 1,
                                .chosen_groups = 1,
                                .scale = 2.827}};
  kimi.uses_grouped_topk = true;
  EXPECT_EQ(choose_router(kimi), RouterKind::grouped_topk);
  RouterSetting scaled{.config = {.groups = 1, .chosen_groups = 1, .scale = 2.0}};
  scaled.uses_grouped_topk = true;
  EXPECT_EQ(choose_router(scaled), RouterKind::plain_topk);
  scaled.can_scale_elsewhere = false;
  EXPECT_EQ(choose_router(scaled), RouterKind::grouped_topk);
}

}  // namespace router_test
}  // namespace fp4moe::moe::routing
