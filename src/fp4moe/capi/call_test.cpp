// fp4moe_layer_call, routing and adapters, through C.
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/lora/lora_adapter.hpp"
#include "fp4moe/checkpoint/synth/synth_adapter.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/moe/routing/router.hpp"
#include "support/c_api.hpp"
#include "support/c_weights.hpp"

namespace fp4moe::capi {
namespace call_test {

using namespace testing;
using moe::routing::Method;
using moe::routing::Router;
using moe::routing::RouterOptions;
using tensor::testing::TemporaryFolder;

std::string id() { return fp4moe_last_error_id(); }

constexpr std::uint64_t kTokens = 4;

// A call with a buffer for its result.
struct Call {
  std::vector<float> x = seeded(kTokens * kHidden, 1), logits = seeded(kTokens * kExperts, 2);
  std::vector<std::int32_t> ids{0, 5, 3, -1, 2, 2, 4, 1};
  std::vector<float> weights{0.5f, 0.25f, 1.0f, 0.0f, 0.125f, 0.5f, 1.0f, 0.75f};
  std::vector<float> result = std::vector<float>(kTokens * kHidden);
  fp4moe_rows in = rows_of(x, kHidden), scores = rows_of(logits, kExperts);
  fp4moe_output out = output_of(result, kHidden);
  fp4moe_routes routes{sizeof routes, ids.data(), weights.data(), kTokens, 2};
  fp4moe_call given{};

  Call() {
    given.size = sizeof given;
    given.x = &in;
    given.out = &out;
    given.routes = &routes;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  std::vector<float> on(fp4moe_layer* layer) {
    EXPECT_EQ(fp4moe_layer_call(layer, &given), FP4MOE_OK) << fp4moe_last_error();
    return result;
  }
  std::string refusal(fp4moe_layer* layer) {
    return fp4moe_layer_call(layer, &given) == FP4MOE_OK ? "ok" : id();
  }
};

TEST(CApiCall, DoesWhatApplyAndRunDo) {
  fp4moe_layer* layer = ready_layer();
  Call call;
  const std::vector<float> mine = call.on(layer);
  ASSERT_EQ(fp4moe_layer_apply(layer, &call.in, &call.routes, &call.out), FP4MOE_OK);
  EXPECT_EQ(call.result, mine);
  call.given.routes = nullptr;
  call.given.logits = &call.scores;
  const std::vector<float> routed = call.on(layer);
  EXPECT_NE(routed, mine);
  ASSERT_EQ(fp4moe_layer_run(layer, &call.in, &call.scores, &call.out), FP4MOE_OK);
  EXPECT_EQ(call.result, routed);
  fp4moe_layer_destroy(layer);
}

TEST(CApiCall, RefusesWhatDoesNotGoTogether) {
  fp4moe_layer* layer = ready_layer();
  const auto refusal = [&](const std::function<void(Call&)>& change) {
    Call call;
    change(call);
    return call.refusal(layer);
  };
  EXPECT_EQ(refusal([](Call&) {}), "ok");
  EXPECT_EQ(refusal([](Call& c) { c.given.routes = nullptr; }), "call.routes");
  EXPECT_EQ(refusal([](Call& c) { c.given.logits = &c.scores; }), "call.routes");
  EXPECT_EQ(refusal([](Call& c) { c.given.x = nullptr; }), "argument.null");
  EXPECT_EQ(refusal([](Call& c) { c.given.out = nullptr; }), "argument.null");
  EXPECT_EQ(refusal([](Call& c) { c.given.size = 7; }), "struct.size");
  EXPECT_EQ(refusal([](Call& c) { c.given.stream = &c; }), "call.device");
  EXPECT_EQ(refusal([](Call& c) { c.given.trusted = 1; }), "call.device");
  EXPECT_EQ(refusal([](Call& c) { c.given.adapter_of_token = c.ids.data(); }), "lora.tokens");
  EXPECT_EQ(refusal([](Call& c) { c.given.on_device = 1; }), "layer.device");
  EXPECT_EQ(fp4moe_layer_reserve(layer, 16, 0), FP4MOE_USAGE);
  EXPECT_EQ(id(), "layer.device");
  EXPECT_EQ(fp4moe_layer_call(layer, nullptr), FP4MOE_USAGE);
  EXPECT_EQ(id(), "argument.null");
  fp4moe_layer_destroy(layer);
  EXPECT_EQ(refusal([](Call&) {}), "handle.freed");
}

// ---- routing

struct RouteCall {
  std::vector<float> logits = seeded(kTokens * kExperts, 3);
  std::vector<std::int32_t> ids{};
  std::vector<float> weights{};
  fp4moe_rows rows = rows_of(logits, kExperts);
  fp4moe_route_call given{};

  explicit RouteCall(std::uint64_t assignments)
      : ids(kTokens * assignments, -7), weights(kTokens * assignments, -7.0f) {
    given.size = sizeof given;
    given.logits = &rows;
    given.ids = ids.data();
    given.weights = weights.data();
    given.slots = assignments;
  }
  RouteCall(const RouteCall&) = delete;
  RouteCall& operator=(const RouteCall&) = delete;
};

TEST(CApiRouting, ChoosesAsTheLibraryDoesByEveryMethod) {
  const std::vector<float> bias{0.5f, -0.25f, 0.0f, 0.125f, 1.0f, -1.0f};
  std::size_t routed = 0;
  for (const moe::routing::MethodRow& row : moe::routing::kMethods) {
    fp4moe_routing routing{};
    routing.size = sizeof routing;
    routing.method = row.name.data();
    routing.experts = kExperts;
    routing.top_k = row.method == Method::llama4 ? 1 : 2;
    RouterOptions same{.method = row.method, .experts = kExperts, .top_k = routing.top_k};
    if (row.takes_bias) {
      routing.bias = bias.data();
      same.bias = bias;
    }
    if (row.takes_groups) {
      routing.groups = same.groups = 3;
      routing.chosen_groups = same.chosen_groups = 2;
    }
    if (row.takes_scale) routing.scale = same.scale = 2.5;
    if (row.normalization == moe::routing::Normalization::optional) {
      routing.renormalize = 2;
      same.renormalize = false;
    }
    RouteCall call(routing.top_k);
    const fp4moe_status status = fp4moe_route(&routing, &call.given);
    const auto router = Router::make(same);
    ASSERT_EQ(status == FP4MOE_OK, bool(router)) << row.name << fp4moe_last_error();
    if (!router) continue;
    ++routed;
    std::vector<std::int32_t> ids(call.ids.size());
    std::vector<float> weights(call.weights.size());
    ThreadPool alone(1);
    ASSERT_TRUE(router->route(
        {.logits = {.data = call.logits.data(), .tokens = kTokens, .columns = kExperts}},
        {.ids = ids, .weights = weights}, alone));
    EXPECT_EQ(call.ids, ids) << row.name;
    EXPECT_EQ(call.weights, weights) << row.name;
  }
  EXPECT_GT(routed, 10u);
}

TEST(CApiRouting, ALayerRoutesAsItsDescriptionSays) {
  const CWeights weights(model_path());
  Description description;
  fp4moe_layer* layer = layer_of(weights, description);
  RouteCall mine(4), same(4);
  ASSERT_EQ(fp4moe_layer_route(layer, &mine.given), FP4MOE_OK) << fp4moe_last_error();
  description.routing.experts = kExperts;
  description.routing.top_k = 4;
  ASSERT_EQ(fp4moe_route(&description.routing, &same.given), FP4MOE_OK);
  EXPECT_EQ(mine.ids, same.ids);
  EXPECT_EQ(mine.weights, same.weights);
  // Routing and applying is running.
  Call call;
  std::memcpy(call.logits.data(), mine.logits.data(), call.logits.size() * sizeof(float));
  call.routes = {sizeof call.routes, mine.ids.data(), mine.weights.data(), kTokens, 4};
  const std::vector<float> applied = call.on(layer);
  call.given.routes = nullptr;
  call.given.logits = &call.scores;
  EXPECT_EQ(call.on(layer), applied);
  fp4moe_layer_destroy(layer);

  description.given.routing = nullptr;
  layer = layer_of(weights, description);
  EXPECT_EQ(fp4moe_layer_route(layer, &mine.given), FP4MOE_USAGE);
  EXPECT_EQ(id(), "layer.routing");
  fp4moe_layer_destroy(layer);
}

TEST(CApiRouting, KnowsPaddingTablesAndIdentities) {
  fp4moe_routing routing{};
  routing.size = sizeof routing;
  routing.method = "DeepseekV4";
  routing.experts = kExperts;
  routing.top_k = 2;
  const std::vector<std::int32_t> table{5, 1, 0, 3, 2, 4};
  routing.table = table.data();
  routing.table_rows = 3;
  RouteCall call(2);
  const std::vector<std::int32_t> tokens{2, 0, 1, 1};
  const std::vector<std::uint8_t> padding{0, 0, 1, 0};
  call.given.token_ids = tokens.data();
  call.given.is_padding = padding.data();
  ASSERT_EQ(fp4moe_route(&routing, &call.given), FP4MOE_OK) << fp4moe_last_error();
  EXPECT_EQ(call.ids, (std::vector<std::int32_t>{2, 4, 5, 1, -1, -1, 0, 3}));
  call.given.token_ids = nullptr;
  EXPECT_EQ(fp4moe_route(&routing, &call.given), FP4MOE_USAGE);
  EXPECT_EQ(id(), "routing.input");

  routing = {};
  routing.size = sizeof routing;
  routing.method = "Default";
  routing.experts = kExperts - 2;
  routing.zero_experts = 2;
  routing.top_k = 3;
  RouteCall zeros(3);
  std::vector<float> identities(kTokens, -1.0f);
  EXPECT_EQ(fp4moe_route(&routing, &zeros.given), FP4MOE_USAGE);
  EXPECT_EQ(id(), "argument.null");
  zeros.given.identity_weights = identities.data();
  ASSERT_EQ(fp4moe_route(&routing, &zeros.given), FP4MOE_OK) << fp4moe_last_error();
  for (const float weight : identities) EXPECT_GE(weight, 0.0f);
}

TEST(CApiRouting, RefusesWhatCannotBeRouted) {
  struct Both {
    fp4moe_routing routing{};
    RouteCall call{2};
  };
  const auto refusal = [](const std::function<void(Both&)>& change) -> std::string {
    Both both;
    both.routing.size = sizeof both.routing;
    both.routing.method = "Renormalize";
    both.routing.experts = kExperts;
    both.routing.top_k = 2;
    change(both);
    return fp4moe_route(&both.routing, &both.call.given) == FP4MOE_OK ? "ok" : id();
  };
  EXPECT_EQ(refusal([](Both&) {}), "ok");
  EXPECT_EQ(refusal([](Both& b) { b.routing.method = nullptr; }), "argument.null");
  EXPECT_EQ(refusal([](Both& b) { b.routing.method = "Guess"; }), "routing.method");
  EXPECT_EQ(refusal([](Both& b) { b.routing.method = "Custom"; }), "routing.method");
  EXPECT_EQ(refusal([](Both& b) { b.routing.experts = UINT64_MAX; }), "routing.size");
  EXPECT_EQ(refusal([](Both& b) { b.routing.experts = 0; }), "routing.experts");
  EXPECT_EQ(refusal([](Both& b) { b.routing.top_k = 7; }), "routing.top_k");
  EXPECT_EQ(refusal([](Both& b) { b.routing.renormalize = 3; }), "routing.renormalize");
  EXPECT_EQ(refusal([](Both& b) { b.routing.table_rows = UINT64_MAX; }), "routing.size");
  EXPECT_EQ(refusal([](Both& b) { b.routing.table_rows = 1; }), "argument.null");
  EXPECT_EQ(refusal([](Both& b) { b.routing.size = 3; }), "struct.size");
  EXPECT_EQ(refusal([](Both& b) { b.call.given.ids = nullptr; }), "argument.null");
  EXPECT_EQ(refusal([](Both& b) { b.call.given.weights = nullptr; }), "argument.null");
  EXPECT_EQ(refusal([](Both& b) { b.call.given.slots = 3; }), "routes.top_k");
  EXPECT_EQ(refusal([](Both& b) { b.call.given.logits = nullptr; }), "argument.null");
  EXPECT_EQ(refusal([](Both& b) { b.call.rows.columns = 5; }), "rows.columns");
  EXPECT_EQ(refusal([](Both& b) { b.call.rows.dtype = FP4MOE_F64; }), "routing.dtype");
  EXPECT_EQ(refusal([](Both& b) {
              b.call.given.ids =
                  reinterpret_cast<std::int32_t*>(reinterpret_cast<char*>(b.call.given.ids) + 1);
            }),
            "routes.memory");
  EXPECT_EQ(fp4moe_route(nullptr, nullptr), FP4MOE_USAGE);
  EXPECT_EQ(fp4moe_layer_route(nullptr, nullptr), FP4MOE_USAGE);
  EXPECT_EQ(id(), "handle.null");
}

// ---- adapters

constexpr std::uint64_t kRank = 4;

// A PEFT folder for the model, and the same numbers in memory.
struct TestAdapter {
  TemporaryFolder folder{};
  std::string path = folder / "adapter";
  checkpoint::Checkpoint checkpoint = *checkpoint::Checkpoint::open(model_path());
  std::vector<float> a[3]{}, b[3]{};  // gate, up, down
  fp4moe_lora_pair pairs[3]{};
  fp4moe_lora given{};

  explicit TestAdapter(std::uint64_t seed) {
    const auto targets = checkpoint::adapter_targets(checkpoint);
    const auto created = checkpoint::synth_adapter(
        targets,
        {.form = checkpoint::AdapterForm::stacked, .rank = kRank, .alpha = 6, .seed = seed}, path);
    EXPECT_TRUE(created) << text(created.why());
    const auto opened = checkpoint::Adapter::open(path, targets);
    EXPECT_TRUE(opened) << text(opened.why());
    const auto loaded = checkpoint::LoraAdapter::load(*opened, 0, {});
    EXPECT_TRUE(loaded) << text(loaded.why());
    for (std::size_t which = 0; which < 3; ++which) {
      for (std::size_t e = 0; e < kExperts; ++e) {
        const checkpoint::LoraPair& pair =
            loaded->at(static_cast<checkpoint::Projection>(which), e);
        a[which].insert(a[which].end(), pair.a.data, pair.a.data + pair.a.rows * pair.a.columns);
        b[which].insert(b[which].end(), pair.b.data, pair.b.data + pair.b.rows * pair.b.columns);
      }
      pairs[which] = {sizeof pairs[which],
                      a[which].data(),
                      a[which].size() * sizeof(float),
                      b[which].data(),
                      b[which].size() * sizeof(float),
                      FP4MOE_F32};
    }
    given = {sizeof given, kRank, 0, nullptr, &pairs[0], &pairs[1], &pairs[2]};
  }
  TestAdapter(const TestAdapter&) = delete;
  TestAdapter& operator=(const TestAdapter&) = delete;
};

TEST(CApiAdapters, AreTheSameFromFoldersAndFromMemory) {
  const TestAdapter first(1), second(2);
  fp4moe_layer* layer = ready_layer();
  fp4moe_layer* described = layer_of(CWeights(model_path()), Description());
  const char* folders[] = {first.path.c_str(), second.path.c_str()};
  const fp4moe_lora both[] = {first.given, second.given};
  fp4moe_adapters *opened = nullptr, *given = nullptr, *elsewhere = nullptr;
  ASSERT_EQ(fp4moe_adapters_open(layer, folders, 2, &opened), FP4MOE_OK) << fp4moe_last_error();
  ASSERT_EQ(fp4moe_adapters_from_memory(layer, both, 2, &given), FP4MOE_OK) << fp4moe_last_error();
  ASSERT_EQ(fp4moe_adapters_from_memory(described, both, 2, &elsewhere), FP4MOE_OK);

  Call call;
  const std::vector<float> bare = call.on(layer);
  const std::vector<std::int32_t> of_token{0, -1, 1, 0};
  call.given.adapter_of_token = of_token.data();
  for (const bool routes : {true, false}) {
    call.given.routes = routes ? &call.routes : nullptr;
    call.given.logits = routes ? nullptr : &call.scores;
    call.given.adapters = opened;
    const std::vector<float> expected = call.on(layer);
    EXPECT_NE(expected, bare);
    if (routes) {
      EXPECT_TRUE(std::equal(expected.begin() + kHidden, expected.begin() + 2 * kHidden,
                             bare.begin() + kHidden))
          << "the token without an adapter";
    }
    call.given.adapters = given;
    EXPECT_EQ(call.on(layer), expected);
    call.given.adapters = elsewhere;
    EXPECT_EQ(call.on(described), expected) << "a layer without a model";
  }
  call.given.routes = &call.routes;
  call.given.logits = nullptr;
  call.given.adapters = opened;
  call.given.adapter_of_token = nullptr;  // the first for all
  const std::vector<float> all_first = call.on(layer);
  const std::vector<std::int32_t> zeros(kTokens, 0);
  call.given.adapter_of_token = zeros.data();
  EXPECT_EQ(call.on(layer), all_first);
  for (fp4moe_adapters* each : {opened, given, elsewhere}) fp4moe_adapters_close(each);
  fp4moe_layer_destroy(layer);
  fp4moe_layer_destroy(described);
}

TEST(CApiAdapters, FusedFactorsAndCommonOnesAreTheSameNumbers) {
  TestAdapter apart(3);
  // One A for gate and up of all experts; gpt-oss interleaves B.
  const std::vector<float> a(apart.a[0].begin(), apart.a[0].begin() + kRank * kHidden);
  std::vector<float> b;
  for (std::size_t e = 0; e < kExperts; ++e)
    for (std::size_t row = 0; row < kIntermediate; ++row)
      for (const std::size_t part : {0, 1}) {
        const float* from = apart.b[part].data() + (e * kIntermediate + row) * kRank;
        b.insert(b.end(), from, from + kRank);
      }
  fp4moe_lora_pair w13{
      sizeof w13, a.data(), a.size() * sizeof(float), b.data(), b.size() * sizeof(float),
      FP4MOE_F32};
  fp4moe_lora fused{sizeof fused, kRank, 1.0, &w13, nullptr, nullptr, &apart.pairs[2]};
  for (fp4moe_lora_pair* pair : {&apart.pairs[0], &apart.pairs[1]}) {
    pair->a = a.data();
    pair->a_bytes = a.size() * sizeof(float);
  }
  const CWeights weights(model_path(), Arrangement::interleaved);
  fp4moe_layer* layer = layer_of(weights, Description());
  Call call;
  std::vector<std::vector<float>> found;
  for (const fp4moe_lora* lora : {&apart.given, &fused}) {
    fp4moe_adapters* adapters = nullptr;
    ASSERT_EQ(fp4moe_adapters_from_memory(layer, lora, 1, &adapters), FP4MOE_OK)
        << fp4moe_last_error();
    call.given.adapters = adapters;
    found.push_back(call.on(layer));
    fp4moe_adapters_close(adapters);
  }
  EXPECT_EQ(found[0], found[1]);
  fp4moe_layer_destroy(layer);
}

TEST(CApiAdapters, AreRefusedWhereTheyDoNotFit) {
  const TestAdapter adapter(4);
  fp4moe_layer* layer = ready_layer();
  fp4moe_layer* other = layer_of(CWeights(model_path()), Description());
  const auto refusal = [&](const std::function<void(fp4moe_lora&, fp4moe_lora_pair&)>& change) {
    fp4moe_lora lora = adapter.given;
    fp4moe_lora_pair gate = adapter.pairs[0];
    lora.gate = &gate;
    change(lora, gate);
    fp4moe_adapters* created = nullptr;
    const auto status = fp4moe_adapters_from_memory(layer, &lora, 1, &created);
    EXPECT_EQ(created == nullptr, status != FP4MOE_OK);
    fp4moe_adapters_close(created);
    return status == FP4MOE_OK ? std::string("ok") : id();
  };
  using L = fp4moe_lora&;
  using P = fp4moe_lora_pair&;
  EXPECT_EQ(refusal([](L, P) {}), "ok");
  EXPECT_EQ(refusal([](L l, P) { l.gate = nullptr; }), "ok") << "up and down alone";
  EXPECT_EQ(refusal([](L l, P) { l.rank = 0; }), "adapter.rank");
  EXPECT_EQ(refusal([](L l, P) { l.rank = UINT64_MAX; }), "adapter.rank");
  EXPECT_EQ(refusal([](L l, P) { l.rank = 5; }), "adapter.shape");
  EXPECT_EQ(refusal([](L l, P) { l.size = 1; }), "struct.size");
  EXPECT_EQ(refusal([](L l, P p) { l.w13 = &p; }), "adapter.duplicate");
  EXPECT_EQ(refusal([](L, P p) { p.a = nullptr; }), "argument.null");
  EXPECT_EQ(refusal([](L, P p) { p.b_bytes = 0; }), "adapter.pair");
  EXPECT_EQ(refusal([](L, P p) { p.b_bytes -= 4; }), "adapter.shape");
  EXPECT_EQ(refusal([](L, P p) { p.dtype = FP4MOE_BF16; }), "adapter.shape");
  EXPECT_EQ(refusal([](L, P p) { p.dtype = FP4MOE_F64; }), "adapter.dtype");
  EXPECT_EQ(refusal([](L, P p) { p.dtype = 0; }), "rows.type");
  EXPECT_EQ(refusal([](L l, P) { l.scale = 1e39; }), "adapter.not_finite");

  fp4moe_adapters* adapters = nullptr;
  const char* folders[] = {adapter.path.c_str(), nullptr};
  EXPECT_EQ(fp4moe_adapters_open(layer, folders, 2, &adapters), FP4MOE_USAGE);
  EXPECT_EQ(id(), "argument.null");
  EXPECT_EQ(fp4moe_adapters_open(layer, nullptr, 1, &adapters), FP4MOE_USAGE);
  EXPECT_EQ(fp4moe_adapters_open(layer, folders, 0, &adapters), FP4MOE_USAGE);
  EXPECT_EQ(id(), "lora.folders");
  EXPECT_EQ(fp4moe_adapters_open(layer, folders, UINT64_MAX, &adapters), FP4MOE_USAGE);
  EXPECT_EQ(fp4moe_adapters_open(other, folders, 1, &adapters), FP4MOE_USAGE);
  EXPECT_EQ(id(), "lora.model");
  EXPECT_EQ(fp4moe_adapters_open(layer, folders, 1, nullptr), FP4MOE_USAGE);

  ASSERT_EQ(fp4moe_adapters_open(layer, folders, 1, &adapters), FP4MOE_OK);
  Call call;
  call.given.adapters = adapters;
  EXPECT_EQ(call.refusal(other), "lora.layer");
  const std::vector<std::int32_t> wrong{0, 1, -1, 0}, none(kTokens, -2);
  call.given.adapter_of_token = wrong.data();
  EXPECT_EQ(call.refusal(layer), "lora.tokens");
  call.given.adapter_of_token = none.data();
  EXPECT_EQ(call.refusal(layer), "lora.tokens");
  call.given.adapter_of_token = nullptr;
  call.given.on_device = 1;
  EXPECT_EQ(call.refusal(layer), "call.adapters");
  call.given.on_device = 0;
  fp4moe_adapters_close(adapters);
  EXPECT_EQ(call.refusal(layer), "handle.freed");
  call.given.adapters = reinterpret_cast<fp4moe_adapters*>(layer);
  EXPECT_EQ(call.refusal(layer), "handle.kind");
  fp4moe_adapters_close(reinterpret_cast<fp4moe_adapters*>(layer));  // let be
  fp4moe_adapters_close(nullptr);
  fp4moe_layer_destroy(layer);
  fp4moe_layer_destroy(other);
}

}  // namespace call_test
}  // namespace fp4moe::capi
