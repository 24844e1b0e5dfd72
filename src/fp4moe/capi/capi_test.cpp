// The C functions as C calls them: the whole way, every kind of mistake, sizes of structs, threads.
#include <cstddef>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/version.hpp"
#include "fp4moe/capi/border.hpp"
#include "fp4moe/oracle/explain/record.hpp"
#include "fp4moe/runtime/answer.hpp"
#include "fp4moe/runtime/run.hpp"
#include "fp4moe/runtime/selection_request.hpp"
#include "support/c_api.hpp"

namespace fp4moe::capi {
namespace capi_test {

using tensor::DType;
using tensor::testing::TemporaryFolder;
using namespace testing;

std::string id() { return fp4moe_last_error_id(); }
Json parsed(const std::string& text) {
  const Result<Json> json = parse_json(text);
  EXPECT_TRUE(json) << text;
  return json ? *json : Json();
}

struct Line {
  std::int32_t level;
  std::string text;
};
void keep(std::int32_t level, const char* message, void* user) {
  static_cast<std::vector<Line>*>(user)->push_back({level, message});
}

TEST(CApi, SaysWhichVersionItIs) {
  EXPECT_EQ(fp4moe_version(), std::string(kVersion));
  EXPECT_EQ(
      fmt::format("{}.{}.{}", FP4MOE_VERSION_MAJOR, FP4MOE_VERSION_MINOR, FP4MOE_VERSION_PATCH),
      kVersion);
  EXPECT_EQ(fp4moe_api_version(), FP4MOE_API_VERSION);
  EXPECT_STREQ(fp4moe_status_name(FP4MOE_EXHAUSTED), "exhausted");
  EXPECT_STREQ(fp4moe_status_name(99), "unknown");
}

TEST(CApi, RunsALayerAsTheLibraryDoes) {
  constexpr std::uint64_t kTokens = 5;
  const auto x = seeded(kTokens * kHidden, 1), logits = seeded(kTokens * kExperts, 2);
  for (const char* backend : {"CPU", "MARLIN"}) {
    for (const char* engine : {"reference", "cpu"}) {
      auto options = layer_options();
      options.backend = backend;
      options.engine = engine;
      fp4moe_layer* layer = ready_layer(options);
      std::vector<float> out(kTokens * kHidden);
      const auto in = rows_of(x, kHidden), scores = rows_of(logits, kExperts);
      const auto to = output_of(out, kHidden);
      ASSERT_EQ(fp4moe_layer_run(layer, &in, &scores, &to), FP4MOE_OK) << fp4moe_last_error();
      fp4moe_layer_destroy(layer);

      const auto model = runtime::Model::open(model_path());
      ASSERT_TRUE(model);
      runtime::LayerOptions same{.engine = *runtime::engine_from_name(engine), .threads = 1};
      same.backend_request.backend = backend;
      auto other = model->layer(0, same);
      ASSERT_TRUE(other && other->load() && other->process());
      std::vector<float> expected(out.size());
      const auto ran =
          other->run({.x = moe::dense_rows(std::span(x), DType::f32, kTokens, kHidden),
                      .logits = moe::dense_rows(std::span(logits), DType::f32, kTokens, kExperts)},
                     moe::dense_rows(std::span(expected), DType::f32, kTokens, kHidden));
      ASSERT_TRUE(ran) << text(ran.why());
      EXPECT_EQ(out, expected) << backend << " on " << engine;
    }
  }
}

TEST(CApi, AppliesGivenRoutesToRowsWithGaps) {
  const auto x = seeded(2 * kHidden, 3);
  std::vector<float> wide(2 * (kHidden + 7)), dense(2 * kHidden), gaps(2 * (kHidden + 3), -7.0f);
  for (std::size_t t = 0; t < 2; ++t)
    std::memcpy(&wide[t * (kHidden + 7)], &x[t * kHidden], kHidden * sizeof(float));
  const std::vector<std::int32_t> ids{0, 5, 3, -1};
  const std::vector<float> weights{0.5f, 0.25f, 1.0f, 0.0f};
  const fp4moe_routes routes{sizeof routes, ids.data(), weights.data(), 2, 2};
  fp4moe_layer* layer = ready_layer();
  const auto in = rows_of(x, kHidden);
  const auto out = output_of(dense, kHidden);
  ASSERT_EQ(fp4moe_layer_apply(layer, &in, &routes, &out), FP4MOE_OK) << fp4moe_last_error();
  const fp4moe_rows in_wide{
      sizeof in_wide, wide.data(), FP4MOE_F32, 2, kHidden, (kHidden + 7) * sizeof(float)};
  const fp4moe_output out_gaps{
      sizeof out_gaps, gaps.data(), FP4MOE_F32, 2, kHidden, (kHidden + 3) * sizeof(float)};
  ASSERT_EQ(fp4moe_layer_apply(layer, &in_wide, &routes, &out_gaps), FP4MOE_OK)
      << fp4moe_last_error();
  for (std::size_t t = 0; t < 2; ++t) {
    EXPECT_EQ(std::memcmp(&gaps[t * (kHidden + 3)], &dense[t * kHidden], kHidden * sizeof(float)),
              0);
    EXPECT_EQ(gaps[t * (kHidden + 3) + kHidden], -7.0f);
  }
  EXPECT_NE(dense[0], 0.0f);
  fp4moe_layer_destroy(layer);
}

TEST(CApi, TakesItsStepsInOrder) {
  fp4moe_model* model = open_model();
  fp4moe_layer* layer = nullptr;
  const auto options = layer_options();
  ASSERT_EQ(fp4moe_layer_create(model, 1, &options, &layer), FP4MOE_OK);
  EXPECT_EQ(fp4moe_layer_process(layer), FP4MOE_USAGE);
  EXPECT_EQ(id(), "layer.order");
  EXPECT_EQ(fp4moe_layer_load_expert(layer, 0), FP4MOE_USAGE);
  EXPECT_EQ(fp4moe_layer_load(layer), FP4MOE_OK);
  EXPECT_EQ(fp4moe_layer_load_expert(layer, 0), FP4MOE_OK);
  EXPECT_EQ(fp4moe_layer_load_expert(layer, 99), FP4MOE_USAGE);
  EXPECT_EQ(id(), "layer.position");
  EXPECT_EQ(fp4moe_layer_create(model, kLayers, &options, &layer), FP4MOE_USAGE);
  EXPECT_EQ(id(), "layer.number");
  EXPECT_EQ(layer, nullptr);
  fp4moe_model_close(model);
}

TEST(CApi, DescribesModelsAndLayers) {
  fp4moe_model* model = open_model();
  std::uint64_t count = 0;
  EXPECT_EQ(fp4moe_model_layers(model, &count), FP4MOE_OK);
  EXPECT_EQ(count, kLayers);
  char* json = nullptr;
  ASSERT_EQ(fp4moe_model_info(model, &json), FP4MOE_OK);
  const Json info = parsed(take(json));
  EXPECT_EQ(info["layers"].size(), kLayers);
  EXPECT_EQ(info["layers"][1]["experts"], kExperts);
  EXPECT_EQ(info["is_converted"], false);
  fp4moe_model_close(model);

  auto options = layer_options();
  options.backend = "MARLIN";
  fp4moe_layer* layer = ready_layer(options);
  ASSERT_EQ(fp4moe_layer_info(layer, &json), FP4MOE_OK);
  const Json layer_info = parsed(take(json));
  EXPECT_EQ(layer_info["backend"], "MARLIN");
  EXPECT_EQ(layer_info["engine"], "cpu");
  EXPECT_FALSE(layer_info.contains("wide_rows"));  // of layers on a device
  EXPECT_GT(layer_info["weights_bytes"].get<std::uint64_t>(), kExperts * kHidden * kIntermediate);
  fp4moe_shape shape{};
  shape.size = offsetof(fp4moe_shape, local_experts);  // of an older program
  shape.local_experts = 77;
  ASSERT_EQ(fp4moe_layer_shape(layer, &shape), FP4MOE_OK);
  EXPECT_EQ(shape.hidden, kHidden);
  EXPECT_EQ(shape.experts, kExperts);
  EXPECT_EQ(shape.local_experts, 77u);
  fp4moe_layer_destroy(layer);
}

TEST(CApi, ConvertsAndRunsWhatItConverted) {
  const TemporaryFolder folder;
  const std::string out = folder.path() + "/marlin";
  fp4moe_convert_options options{};
  options.size = sizeof options;
  options.backend = "MARLIN";
  options.device = "h100";
  options.threads = 1;
  char* report = nullptr;
  ASSERT_EQ(fp4moe_convert(model_path().c_str(), out.c_str(), &options, &report), FP4MOE_OK)
      << fp4moe_last_error();
  EXPECT_EQ(parsed(take(report))["layout"], "marlin.mxfp4");
  EXPECT_EQ(fp4moe_convert(model_path().c_str(), out.c_str(), &options, nullptr), FP4MOE_USAGE);
  EXPECT_EQ(id(), "folder.exists");
  options.layout = "marlin.mxfp4";
  EXPECT_EQ(fp4moe_convert(model_path().c_str(), "x", &options, nullptr), FP4MOE_USAGE);
  EXPECT_EQ(id(), "convert.layout");

  fp4moe_model* model = nullptr;
  ASSERT_EQ(fp4moe_model_open(out.c_str(), &model), FP4MOE_OK) << fp4moe_last_error();
  fp4moe_layer* layer = nullptr;
  const auto plain = layer_options();
  ASSERT_EQ(fp4moe_layer_create(model, 0, &plain, &layer), FP4MOE_OK) << fp4moe_last_error();
  fp4moe_model_close(model);
  ASSERT_EQ(fp4moe_layer_process(layer), FP4MOE_OK) << fp4moe_last_error();
  fp4moe_layer_destroy(layer);
  options.layout = nullptr;
  options.backend = "TRITON";
  options.policy = "2026-08-22";
  options.device = "rtx4090";
  EXPECT_EQ(fp4moe_convert(model_path().c_str(), "x", &options, nullptr), FP4MOE_NO_BACKEND);
  EXPECT_EQ(id(), "target.backend");
}

TEST(CApi, ExplainsAsTheCommandDoes) {
  char* record = nullptr;
  ASSERT_EQ(fp4moe_explain(R"({"device": "h100", "policy": "2026-04-24", "lib": ["+aiter"],
                               "env": {"VLLM_MXFP4_USE_MARLIN": "1"}, "tp": 2, "ep": true,
                               "layer": {"hidden_dim": 4096}})",
                           &record),
            FP4MOE_OK)
      << fp4moe_last_error();
  runtime::SelectionOptions options;
  options.device = "h100";
  options.policy = "2026-04-24";
  options.libraries = {"+aiter"};
  options.variables = {"VLLM_MXFP4_USE_MARLIN=1"};
  options.tp = 2;
  options.expert_parallel = true;
  options.fields["hidden_dim"] = "4096";
  const auto request = runtime::resolve(options);
  ASSERT_TRUE(request) << text(request.why());
  Json expected{{"schema_version", 1}};
  expected.update(runtime::to_json(runtime::answer(*request)));
  EXPECT_EQ(parsed(take(record)), expected);
  ASSERT_EQ(fp4moe_explain(nullptr, &record), FP4MOE_OK) << fp4moe_last_error();
  fp4moe_free_string(record);
}

TEST(CApi, HasARecordEvenWhereThereIsNoBackend) {
  char* record = nullptr;
  EXPECT_EQ(fp4moe_explain(R"({"device": "h100", "policy": "2026-04-24",
                               "layer": {"moe_backend": "flashinfer_trtllm"}})",
                           &record),
            FP4MOE_NO_BACKEND)
      << fp4moe_last_error();
  EXPECT_EQ(id(), "choice.backend");
  EXPECT_TRUE(parsed(take(record)).contains("evaluated"));
}

TEST(CApi, RefusesRequestsItDoesNotUnderstand) {
  const std::pair<const char*, const char*> wrong[] = {
      {"{", "json.syntax"},
      {"[]", "request.object"},
      {R"({"devise": "h100"})", "request.key"},
      {R"({"device": 5})", "request.value"},
      {R"({"tp": 0})", "request.value"},
      {R"({"tp": -1})", "request.value"},
      {R"({"ep": "yes"})", "request.value"},
      {R"({"lib": "aiter"})", "request.value"},
      {R"({"env": {"A": 1}})", "request.value"},
      {R"({"layer": 7})", "layer.field"},
      {R"({"device": "toaster"})", "device.unknown"},
  };
  for (const auto& [request, expected] : wrong) {
    char* record = const_cast<char*>("old");  // must become null
    EXPECT_EQ(fp4moe_explain(request, &record), FP4MOE_USAGE) << request;
    EXPECT_EQ(id(), expected) << request;
    EXPECT_EQ(record, nullptr);
  }
  EXPECT_EQ(fp4moe_explain("{}", nullptr), FP4MOE_USAGE);
  EXPECT_EQ(id(), "argument.null");
}

TEST(CApi, RefusesWordsTheLibraryDoesNotKnow) {
  fp4moe_model* model = open_model();
  const auto refusal = [&](auto change) {
    auto options = layer_options();
    change(options);
    fp4moe_layer* layer = nullptr;
    if (fp4moe_layer_create(model, 0, &options, &layer) != FP4MOE_OK) return id();
    std::string found = "ok";
    if (fp4moe_layer_load(layer) != FP4MOE_OK || fp4moe_layer_process(layer) != FP4MOE_OK)
      found = id();
    fp4moe_layer_destroy(layer);
    return found;
  };
  EXPECT_EQ(refusal([](auto& o) { o.backend = "MARLYN"; }), "choice.backend");
  EXPECT_EQ(refusal([](auto& o) { o.policy = "yesterday"; }), "policy.unknown");
  EXPECT_EQ(refusal([](auto& o) { o.engine = "steam"; }), "engine.unknown");
  EXPECT_EQ(refusal([](auto& o) { o.numerics = "vague"; }), "numerics.unknown");
  EXPECT_EQ(refusal([](auto& o) { o.weights = "elsewhere"; }), "layer.weights");
  EXPECT_EQ(refusal([](auto& o) { o.device = "toaster"; }), "device.unknown");
  EXPECT_EQ(refusal([](auto& o) { o.threads = 1u << 30; }), "options.threads");
  EXPECT_EQ(refusal([](auto& o) { o.ep_rank = 3; }), "options.rank");
  EXPECT_EQ(refusal([](auto& o) { o.weights = "mapped"; }), "ok");
  EXPECT_EQ(refusal([](auto& o) { o.ep_rank = 1, o.ep_size = 2; }), "ok");
  fp4moe_model_close(model);
}

TEST(CApi, RefusesRowsThatCannotBe) {
  fp4moe_layer* layer = ready_layer();
  const auto x = seeded(2 * kHidden, 1), logits = seeded(2 * kExperts, 2);
  std::vector<float> out(2 * kHidden);
  struct Call {
    fp4moe_rows x, logits;
    fp4moe_output out;
  };
  const auto refusal = [&](auto change) {
    Call call{rows_of(x, kHidden), rows_of(logits, kExperts), output_of(out, kHidden)};
    change(call);
    const auto status = fp4moe_layer_run(layer, &call.x, &call.logits, &call.out);
    return status == FP4MOE_OK ? std::string("ok") : id();
  };
  EXPECT_EQ(refusal([](Call&) {}), "ok");
  EXPECT_EQ(refusal([](Call& c) { c.x.data = nullptr; }), "rows.memory");
  EXPECT_EQ(refusal([](Call& c) { c.out.data = nullptr; }), "rows.memory");
  EXPECT_EQ(refusal([](Call& c) { c.logits.data = nullptr; }), "rows.memory");
  EXPECT_EQ(refusal([](Call& c) { c.x.dtype = 0; }), "rows.type");
  EXPECT_EQ(refusal([](Call& c) { c.out.dtype = 99; }), "rows.type");
  EXPECT_EQ(refusal([](Call& c) { c.x.columns = 64; }), "rows.columns");
  EXPECT_EQ(refusal([](Call& c) { c.logits.columns = 5; }), "rows.columns");
  EXPECT_EQ(refusal([](Call& c) { c.x.stride = 8; }), "rows.stride");
  EXPECT_EQ(refusal([](Call& c) { c.x.stride = kHidden * 4 + 2; }), "rows.alignment");
  EXPECT_EQ(refusal([](Call& c) { c.out.data = static_cast<char*>(c.out.data) + 1; }),
            "rows.alignment");
  EXPECT_EQ(refusal([](Call& c) { c.out.rows = 1; }), "rows.count");
  EXPECT_EQ(refusal([](Call& c) { c.logits.rows = 1; }), "rows.count");
  EXPECT_EQ(refusal([](Call& c) { c.x.rows = UINT64_MAX / 2; }), "rows.size");
  EXPECT_EQ(refusal([](Call& c) { c.x.columns = UINT64_MAX; }), "rows.size");
  EXPECT_EQ(refusal([](Call& c) { c.x.rows = c.logits.rows = c.out.rows = 0; }), "ok");
  Call call{rows_of(x, kHidden), rows_of(logits, kExperts), output_of(out, kHidden)};
  EXPECT_EQ(fp4moe_layer_run(layer, nullptr, &call.logits, &call.out), FP4MOE_USAGE);
  EXPECT_EQ(fp4moe_layer_run(layer, &call.x, nullptr, &call.out), FP4MOE_USAGE);
  EXPECT_EQ(fp4moe_layer_run(layer, &call.x, &call.logits, nullptr), FP4MOE_USAGE);
  EXPECT_EQ(id(), "argument.null");
  fp4moe_layer_destroy(layer);
}

TEST(CApi, RefusesRoutesThatCannotBe) {
  fp4moe_layer* layer = ready_layer();
  const auto x = seeded(2 * kHidden, 1);
  std::vector<float> out(2 * kHidden);
  const std::vector<std::int32_t> ids{0, 1, 2, 3};
  const std::vector<float> weights(4, 0.5f);
  const auto in = rows_of(x, kHidden);
  const auto to = output_of(out, kHidden);
  const auto refusal = [&](auto change) {
    fp4moe_routes routes{sizeof routes, ids.data(), weights.data(), 2, 2};
    change(routes);
    return fp4moe_layer_apply(layer, &in, &routes, &to) == FP4MOE_OK ? std::string("ok") : id();
  };
  EXPECT_EQ(refusal([](auto&) {}), "ok");
  EXPECT_EQ(refusal([](auto& r) { r.ids = nullptr; }), "argument.null");
  EXPECT_EQ(refusal([](auto& r) { r.weights = nullptr; }), "argument.null");
  EXPECT_EQ(refusal([](auto& r) { r.tokens = 1; }), "rows.count");
  EXPECT_EQ(refusal([](auto& r) { r.top_k = 0; }), "routes.top_k");
  EXPECT_EQ(refusal([](auto& r) { r.top_k = kExperts + 1; }), "routes.top_k");
  EXPECT_EQ(fp4moe_layer_apply(layer, &in, nullptr, &to), FP4MOE_USAGE);
  fp4moe_layer_destroy(layer);
}

TEST(CApi, RefusesPathsThatLeadNowhere) {
  fp4moe_model* model = nullptr;
  EXPECT_EQ(fp4moe_model_open(nullptr, &model), FP4MOE_USAGE);
  EXPECT_EQ(id(), "argument.null");
  EXPECT_EQ(fp4moe_model_open("", &model), FP4MOE_USAGE);
  EXPECT_EQ(id(), "argument.empty");
  EXPECT_EQ(fp4moe_model_open("x", nullptr), FP4MOE_USAGE);
  EXPECT_NE(fp4moe_model_open("/nowhere/at\nall", &model), FP4MOE_OK);
  EXPECT_EQ(std::string(fp4moe_last_error()).find('\n'), std::string::npos);
  EXPECT_EQ(model, nullptr);
  EXPECT_EQ(fp4moe_convert(nullptr, "x", nullptr, nullptr), FP4MOE_USAGE);
  EXPECT_EQ(fp4moe_convert("/nowhere", nullptr, nullptr, nullptr), FP4MOE_USAGE);
  EXPECT_NE(fp4moe_convert("/nowhere", "x", nullptr, nullptr), FP4MOE_OK);
}

TEST(CApi, RefusesHandlesThatAreNotOpen) {
  fp4moe_model* model = open_model();
  fp4moe_layer* layer = ready_layer();
  char* json = nullptr;
  EXPECT_EQ(fp4moe_layer_info(nullptr, &json), FP4MOE_USAGE);
  EXPECT_EQ(id(), "handle.null");
  EXPECT_EQ(fp4moe_layer_info(reinterpret_cast<fp4moe_layer*>(model), &json), FP4MOE_USAGE);
  EXPECT_EQ(id(), "handle.kind");
  EXPECT_EQ(fp4moe_layer_info(reinterpret_cast<fp4moe_layer*>(&json), &json), FP4MOE_USAGE);
  EXPECT_EQ(id(), "handle.unknown");
  fp4moe_layer_destroy(reinterpret_cast<fp4moe_layer*>(model));  // let be
  EXPECT_EQ(fp4moe_model_info(model, &json), FP4MOE_OK);
  fp4moe_free_string(json);
  fp4moe_layer_destroy(layer);
  fp4moe_layer_destroy(layer);
  EXPECT_EQ(fp4moe_layer_load(layer), FP4MOE_USAGE);
  EXPECT_EQ(id(), "handle.freed");
  fp4moe_model_close(model);
  EXPECT_EQ(fp4moe_model_info(model, &json), FP4MOE_USAGE);
  EXPECT_EQ(id(), "handle.freed");
  EXPECT_EQ(json, nullptr);
  fp4moe_model_close(nullptr);
  fp4moe_layer_destroy(nullptr);
  fp4moe_free_string(nullptr);
}

TEST(CApi, TakesStructsOfOlderAndNewerPrograms) {
  fp4moe_model* model = open_model();
  struct Newer {
    fp4moe_layer_options known = layer_options();
    std::uint64_t added = 0;
  } newer;
  newer.known.size = sizeof newer;
  fp4moe_layer* layer = nullptr;
  EXPECT_EQ(fp4moe_layer_create(model, 0, &newer.known, &layer), FP4MOE_OK);
  fp4moe_layer_destroy(layer);
  newer.added = 1;
  EXPECT_EQ(fp4moe_layer_create(model, 0, &newer.known, &layer), FP4MOE_USAGE);
  EXPECT_EQ(id(), "struct.tail");

  auto older = layer_options();
  older.size = offsetof(fp4moe_layer_options, tp_rank);
  older.ep_rank = 5;  // beyond what it says it knows
  EXPECT_EQ(fp4moe_layer_create(model, 0, &older, &layer), FP4MOE_OK) << fp4moe_last_error();
  fp4moe_layer_destroy(layer);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{4}, std::size_t{12}, SIZE_MAX, std::size_t{1} << 20}) {
    older.size = size;
    EXPECT_EQ(fp4moe_layer_create(model, 0, &older, &layer), FP4MOE_USAGE) << size;
    EXPECT_EQ(id(), "struct.size");
  }
  fp4moe_model_close(model);
}

TEST(CApi, GivesEveryThreadItsOwnWords) {
  char* json = nullptr;
  EXPECT_EQ(fp4moe_layer_info(nullptr, &json), FP4MOE_USAGE);
  std::thread other([] {
    EXPECT_STREQ(fp4moe_last_error(), "");
    EXPECT_STREQ(fp4moe_last_error_json(), "{}");
    EXPECT_EQ(fp4moe_convert(nullptr, nullptr, nullptr, nullptr), FP4MOE_USAGE);
    EXPECT_EQ(id(), "argument.null");
  });
  other.join();
  EXPECT_EQ(id(), "handle.null");
  const Json words = parsed(fp4moe_last_error_json());
  EXPECT_EQ(words["code"].get<int>(), FP4MOE_USAGE);
  EXPECT_EQ(words["found"], "null");
  EXPECT_NE(std::string(fp4moe_last_error()).find("expected"), std::string::npos);
}

TEST(CApi, LetsManyThreadsUseAndCloseOneLayer) {
  fp4moe_layer* layer = ready_layer();
  const auto x = seeded(3 * kHidden, 1), logits = seeded(3 * kExperts, 2);
  std::vector<std::thread> threads;
  std::vector<std::vector<float>> outs(4, std::vector<float>(3 * kHidden));
  const auto call = [&](std::vector<float>& out) {
    const auto in = rows_of(x, kHidden), scores = rows_of(logits, kExperts);
    const auto to = output_of(out, kHidden);
    return fp4moe_layer_run(layer, &in, &scores, &to);
  };
  for (auto& out : outs)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) EXPECT_EQ(call(out), FP4MOE_OK);
    });
  for (auto& thread : threads) thread.join();
  for (const auto& out : outs) EXPECT_EQ(out, outs[0]);
  threads.clear();
  for (auto& out : outs)
    threads.emplace_back([&] {
      while (call(out) == FP4MOE_OK) continue;
      EXPECT_EQ(id(), "handle.freed");
    });
  fp4moe_layer_destroy(layer);
  for (auto& thread : threads) thread.join();
}

TEST(CApi, LetsNoExceptionOut) {
  using Work = Result<Done>;
  EXPECT_EQ(guarded([]() -> Work { throw std::bad_alloc(); }), FP4MOE_EXHAUSTED);
  EXPECT_EQ(id(), "memory.exhausted");
  EXPECT_EQ(parsed(fp4moe_last_error_json())["code"].get<int>(), FP4MOE_EXHAUSTED);
  EXPECT_EQ(guarded([]() -> Work { throw std::runtime_error("a bug"); }), FP4MOE_FAILED);
  EXPECT_STREQ(fp4moe_last_error(), "internal: a bug");
  EXPECT_EQ(guarded([]() -> Work { throw 7; }), FP4MOE_FAILED);
  EXPECT_EQ(guarded([]() -> Work {
              std::vector<float> too_large;
              too_large.resize(too_large.max_size() + 1);
              return Done{};
            }),
            FP4MOE_EXHAUSTED);
}

TEST(CApi, HandsWarningsToTheSink) {
  std::vector<Line> lines;
  fp4moe_set_log(keep, &lines);
  char* record = nullptr;
  EXPECT_EQ(
      fp4moe_explain(R"({"device": "h100", "all2all": "naive", "policy": "2026-08-22"})", &record),
      FP4MOE_OK)
      << fp4moe_last_error();
  const Json notes = parsed(take(record))["notes"];
  fp4moe_set_log(nullptr, nullptr);
  ASSERT_FALSE(notes.empty());
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines.back().text, notes.back().string());
  EXPECT_EQ(lines.back().level, FP4MOE_LOG_NOTE);
  const std::size_t before = lines.size();
  EXPECT_EQ(
      fp4moe_explain(R"({"device": "h100", "all2all": "naive", "policy": "2026-08-22"})", &record),
      FP4MOE_OK);
  fp4moe_free_string(record);
  EXPECT_EQ(lines.size(), before);
}

}  // namespace capi_test
}  // namespace fp4moe::capi
