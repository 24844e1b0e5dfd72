// Layers from weights in memory, through C: the numbers of the model's layers, reload, what is
// refused.
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/c_api.hpp"
#include "support/c_weights.hpp"

namespace fp4moe::capi {
namespace weights_test {

using namespace testing;
using checkpoint::WeightFormat;

std::string id() { return fp4moe_last_error_id(); }

std::vector<float> run(fp4moe_layer* layer, const std::vector<float>& x,
                       const std::vector<float>& logits) {
  std::vector<float> out(x.size());
  const auto in = rows_of(x, kHidden), scores = rows_of(logits, kExperts);
  const auto to = output_of(out, kHidden);
  EXPECT_EQ(fp4moe_layer_run(layer, &in, &scores, &to), FP4MOE_OK) << fp4moe_last_error();
  return out;
}

TEST(CApiWeights, GiveTheNumbersOfTheModelsLayers) {
  const auto x = seeded(5 * kHidden, 1), logits = seeded(5 * kExperts, 2);
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const std::string& path = format == WeightFormat::mxfp4 ? model_path() : nvfp4_path();
    for (const char* backend : {"CPU", "MARLIN"})
      for (const char* engine : {"reference", "cpu"}) {
        auto options = layer_options();
        options.backend = backend;
        options.engine = engine;
        fp4moe_layer* reference = ready_layer(options, path);
        const std::vector<float> expected = run(reference, x, logits);
        fp4moe_layer_destroy(reference);
        for (const Arrangement arrangement : checkpoint::testing::kArrangements) {
          auto weights = std::make_unique<CWeights>(path, arrangement, 6);
          fp4moe_layer* layer = layer_of(*weights, Description(format), options);
          weights.reset();  // packed: the memory may go
          EXPECT_EQ(run(layer, x, logits), expected) << backend << " on " << engine;
          fp4moe_shape shape{};
          shape.size = sizeof shape;
          EXPECT_EQ(fp4moe_layer_shape(layer, &shape), FP4MOE_OK);
          EXPECT_EQ(shape.intermediate, kIntermediate);
          EXPECT_EQ(shape.experts, kExperts);
          fp4moe_layer_destroy(layer);
        }
      }
  }
}

TEST(CApiWeights, AreReadAgainOrFromElsewhere) {
  const auto x = seeded(3 * kHidden, 3), logits = seeded(3 * kExperts, 4);
  CWeights first(model_path()), second(model_path(), Arrangement::halves, 3);
  fp4moe_layer* layer = layer_of(first, Description());
  const std::vector<float> before = run(layer, x, logits);
  for (std::byte& byte : second.memory.w2.codes) byte ^= std::byte{0x21};
  const fp4moe_weights other = second.given();
  ASSERT_EQ(fp4moe_layer_load_weights(layer, &other), FP4MOE_OK) << fp4moe_last_error();
  ASSERT_EQ(fp4moe_layer_process(layer), FP4MOE_OK) << fp4moe_last_error();
  const std::vector<float> after = run(layer, x, logits);
  EXPECT_NE(after, before);
  for (std::byte& byte : second.memory.w2.codes) byte ^= std::byte{0x21};
  for (std::uint64_t e = 0; e < kExperts; ++e)
    ASSERT_EQ(fp4moe_layer_load_expert(layer, e), FP4MOE_OK) << fp4moe_last_error();
  ASSERT_EQ(fp4moe_layer_process(layer), FP4MOE_OK);
  EXPECT_EQ(run(layer, x, logits), before);

  const CWeights nvfp4(nvfp4_path());
  const fp4moe_weights wrong = nvfp4.given();
  EXPECT_EQ(fp4moe_layer_load_weights(layer, &wrong), FP4MOE_USAGE);
  EXPECT_EQ(id(), "weights.other");
  EXPECT_EQ(fp4moe_layer_load_weights(layer, nullptr), FP4MOE_USAGE);
  EXPECT_EQ(id(), "argument.null");
  EXPECT_EQ(run(layer, x, logits), before) << "nothing was lost";
  fp4moe_layer_destroy(layer);
  EXPECT_EQ(fp4moe_layer_load_weights(layer, &other), FP4MOE_USAGE);
  EXPECT_EQ(id(), "handle.freed");
}

fp4moe_gpt_oss_experts gpt_oss_experts(const CWeights& weights) {
  return {.size = sizeof(fp4moe_gpt_oss_experts),
          .experts = kExperts,
          .hidden = kHidden,
          .intermediate = kIntermediate,
          .top_k = 0,
          .gate_up_proj_blocks = weights.w13.codes,
          .gate_up_proj_scales = weights.w13.scales,
          .gate_up_proj_bias = weights.w13.bias,
          .down_proj_blocks = weights.w2.codes,
          .down_proj_scales = weights.w2.scales,
          .down_proj_bias = weights.w2.bias};
}

TEST(CApiWeights, OfGptOssAreALayerInOneCall) {
  const auto x = seeded(3 * kHidden, 3), logits = seeded(3 * kExperts, 4);
  const CWeights weights(model_path(), Arrangement::interleaved);
  fp4moe_layer* reference = ready_layer();
  fp4moe_layer* layer = nullptr;
  fp4moe_gpt_oss_experts given = gpt_oss_experts(weights);
  ASSERT_NE(given.gate_up_proj_bias, nullptr);
  ASSERT_EQ(fp4moe_layer_from_gpt_oss(&given, nullptr, &layer), FP4MOE_OK) << fp4moe_last_error();
  EXPECT_EQ(run(layer, x, logits), run(reference, x, logits));
  fp4moe_layer* without = nullptr;
  given.gate_up_proj_bias = given.down_proj_bias = nullptr;
  ASSERT_EQ(fp4moe_layer_from_gpt_oss(&given, nullptr, &without), FP4MOE_OK);
  EXPECT_NE(run(without, x, logits), run(reference, x, logits));
  for (fp4moe_layer* each : {reference, layer, without}) fp4moe_layer_destroy(each);
}

TEST(CApiWeights, OfGptOssAreCheckedInOneCall) {
  const CWeights weights(model_path(), Arrangement::interleaved);
  const auto refusal = [&](const std::function<void(fp4moe_gpt_oss_experts&)>& change) {
    fp4moe_gpt_oss_experts given = gpt_oss_experts(weights);
    change(given);
    fp4moe_layer* layer = nullptr;
    EXPECT_EQ(fp4moe_layer_from_gpt_oss(&given, nullptr, &layer), FP4MOE_USAGE);
    EXPECT_EQ(layer, nullptr);
    return id();
  };
  using G = fp4moe_gpt_oss_experts&;
  EXPECT_EQ(refusal([](G g) { g.size = 4; }), "struct.size");
  EXPECT_EQ(refusal([](G g) { g.experts = 0; }), "weights.shape");
  EXPECT_EQ(refusal([](G g) { g.experts = UINT64_MAX; }), "rows.size");
  EXPECT_EQ(refusal([](G g) { g.intermediate = UINT64_MAX / 2 + 1; }), "rows.size");
  EXPECT_EQ(refusal([](G g) { g.hidden = 40; }), "weights.shape");
  EXPECT_EQ(refusal([](G g) { g.down_proj_scales = nullptr; }), "weights.missing");
  EXPECT_EQ(refusal([](G g) { g.top_k = 99; }), "description.top_k");
  EXPECT_EQ(fp4moe_layer_from_gpt_oss(nullptr, nullptr, nullptr), FP4MOE_USAGE);
  EXPECT_EQ(id(), "argument.null");
}

TEST(CApiWeights, AreCutForRanks) {
  const auto x = seeded(2 * kHidden, 5), logits = seeded(2 * kExperts, 6);
  const CWeights weights(model_path(), Arrangement::interleaved);
  for (const bool experts : {false, true})
    for (const std::uint64_t rank : {0u, 1u}) {
      auto options = layer_options();
      options.backend = "CPU";
      (experts ? options.ep_rank : options.tp_rank) = rank;
      (experts ? options.ep_size : options.tp_size) = 2;
      fp4moe_layer* reference = ready_layer(options);
      fp4moe_layer* layer = layer_of(weights, Description(), options);
      EXPECT_EQ(run(layer, x, logits), run(reference, x, logits));
      fp4moe_layer_destroy(reference);
      fp4moe_layer_destroy(layer);
    }
}

TEST(CApiWeights, WithoutARouterTakeIdsAlone) {
  Description description;
  description.given.routing = nullptr;
  fp4moe_layer* layer = layer_of(CWeights(model_path()), description);
  fp4moe_layer* reference = ready_layer();
  const auto x = seeded(2 * kHidden, 7), logits = seeded(2 * kExperts, 8);
  const std::vector<std::int32_t> ids{0, 5, 3, -1};
  const std::vector<float> weights{0.5f, 0.25f, 1.0f, 0.0f};
  const fp4moe_routes routes{sizeof routes, ids.data(), weights.data(), 2, 2};
  std::vector<float> mine(2 * kHidden), theirs(2 * kHidden);
  const auto in = rows_of(x, kHidden), scores = rows_of(logits, kExperts);
  const auto a = output_of(mine, kHidden), b = output_of(theirs, kHidden);
  EXPECT_EQ(fp4moe_layer_apply(layer, &in, &routes, &a), FP4MOE_OK) << fp4moe_last_error();
  EXPECT_EQ(fp4moe_layer_apply(reference, &in, &routes, &b), FP4MOE_OK);
  EXPECT_EQ(mine, theirs);
  EXPECT_EQ(fp4moe_layer_run(layer, &in, &scores, &a), FP4MOE_USAGE);
  EXPECT_EQ(id(), "layer.routing");
  fp4moe_layer_destroy(layer);
  fp4moe_layer_destroy(reference);
}

TEST(CApiWeights, ComputeWithGivenConstants) {
  const auto x = seeded(2 * kHidden, 9), logits = seeded(2 * kExperts, 10);
  const CWeights weights(model_path());
  const double alpha = 1.702, beta = 1.0, limit = 7.0, other = 0.5;
  Description own, same, changed;
  same.given.alpha = &alpha;
  same.given.beta = &beta;
  same.given.limit = &limit;
  changed.given.beta = &other;
  std::vector<std::vector<float>> found;
  for (const Description* each : {&own, &same, &changed}) {
    fp4moe_layer* layer = layer_of(weights, *each);
    found.push_back(run(layer, x, logits));
    fp4moe_layer_destroy(layer);
  }
  EXPECT_EQ(found[0], found[1]) << "gpt-oss's own";
  EXPECT_NE(found[0], found[2]);
}

struct Given {
  CWeights memory{nvfp4_path(), Arrangement::halves};
  Description description{WeightFormat::nvfp4};
  fp4moe_weights weights = memory.given();
  fp4moe_layer_options options = layer_options();

  std::string refusal() const {
    fp4moe_layer* layer = nullptr;
    const auto status = fp4moe_layer_from_weights(&description.given, &weights, &options, &layer);
    EXPECT_EQ(layer == nullptr, status != FP4MOE_OK);
    fp4moe_layer_destroy(layer);
    return status == FP4MOE_OK ? "ok" : id();
  }
};

TEST(CApiWeights, RefuseWhatCannotBeALayer) {
  const auto refusal = [](const std::function<void(Given&)>& change) {
    Given given;
    change(given);
    return given.refusal();
  };
  using G = Given&;
  EXPECT_EQ(refusal([](G) {}), "ok");
  EXPECT_EQ(refusal([](G g) { g.weights.format = nullptr; }), "argument.null");
  EXPECT_EQ(refusal([](G g) { g.weights.format = "fp5"; }), "weights.word");
  EXPECT_EQ(refusal([](G g) { g.weights.row_order = "random"; }), "weights.word");
  EXPECT_EQ(refusal([](G g) { g.weights.row_order = "single"; }), "weights.size");
  EXPECT_EQ(refusal([](G g) { g.weights.format = "mxfp4"; }), "weights.size");
  EXPECT_EQ(refusal([](G g) { g.weights.size = 4; }), "struct.size");
  EXPECT_EQ(refusal([](G g) { g.weights.experts = 0; }), "weights.shape");
  EXPECT_EQ(refusal([](G g) { g.weights.experts = UINT64_MAX; }), "weights.shape");
  EXPECT_EQ(refusal([](G g) { g.weights.hidden = 24; }), "weights.shape");
  EXPECT_EQ(refusal([](G g) { g.weights.hidden = 64; }), "weights.size");
  EXPECT_EQ(refusal([](G g) { g.weights.w2 = nullptr; }), "weights.missing");
  EXPECT_EQ(refusal([](G g) { g.weights.up = &g.memory.w2; }), "weights.given");
  EXPECT_EQ(refusal([](G g) { g.memory.w13.codes = nullptr; }), "weights.missing");
  EXPECT_EQ(refusal([](G g) { g.memory.w13.codes_bytes = 0; }), "weights.size");
  EXPECT_EQ(refusal([](G g) { g.memory.w13.codes_bytes -= 1; }), "weights.size");
  EXPECT_EQ(refusal([](G g) { g.memory.w13.codes_bytes = UINT64_MAX; }), "rows.size");
  EXPECT_EQ(refusal([](G g) { g.memory.w2.scales_bytes += 1; }), "weights.size");
  EXPECT_EQ(refusal([](G g) { g.memory.w2.codes_row_stride = 1; }), "weights.stride");
  EXPECT_EQ(refusal([](G g) { g.memory.w2.codes_expert_stride = UINT64_MAX; }), "weights.size");
  EXPECT_EQ(refusal([](G g) { g.memory.w13.size = 0; }), "struct.size");
  EXPECT_EQ(refusal([](G g) { g.memory.w13.global_scales = nullptr; }), "argument.null");
  EXPECT_EQ(refusal([](G g) {
              g.memory.w13.global_scales = reinterpret_cast<const float*>(
                  reinterpret_cast<const char*>(g.memory.w13.global_scales) + 1);
            }),
            "routes.memory");
  EXPECT_EQ(refusal([](G g) { g.memory.w13.global_scales_count = 0; }), "weights.missing");
  EXPECT_EQ(refusal([](G g) { g.memory.w13.input_scales_count = 3; }), "weights.size");
  EXPECT_EQ(refusal([](G g) { g.memory.w2.bias = g.memory.w2.codes; }), "weights.size");
  EXPECT_EQ(refusal([](G g) { g.memory.w2.bias_dtype = 9; }), "rows.type");
  EXPECT_EQ(refusal([](G g) { g.description.given.activation = nullptr; }), "argument.null");
  EXPECT_EQ(refusal([](G g) { g.description.given.activation = "soft"; }),
            "description.activation");
  EXPECT_EQ(refusal([](G g) { g.description.given.activation = "relu2_no_mul"; }),
            "description.activation");
  EXPECT_EQ(refusal([](G g) {
              static const double kNothing = 0;
              g.description.given.limit = &kNothing;
            }),
            "description.constant");
  EXPECT_EQ(refusal([](G g) { g.description.given.top_k = 99; }), "description.top_k");
  EXPECT_EQ(refusal([](G g) { g.description.given.experts = UINT64_MAX; }), "routing.size");
  EXPECT_EQ(refusal([](G g) {
              g.description.given.routing = nullptr;
              g.description.given.experts = UINT64_MAX;
            }),
            "description.whole");
  EXPECT_EQ(refusal([](G g) { g.description.given.intermediate = 48; }), "description.whole");
  EXPECT_EQ(refusal([](G g) { g.description.given.intermediate = 960; }), "weights.slice");
  EXPECT_EQ(refusal([](G g) { g.description.routing.method = "Guess"; }), "routing.method");
  EXPECT_EQ(refusal([](G g) { g.description.routing.experts = 5; }), "description.experts");
  EXPECT_EQ(refusal([](G g) { g.options.backend = "MARLYN"; }), "choice.backend");
  Given given;
  EXPECT_EQ(fp4moe_layer_from_weights(nullptr, &given.weights, nullptr, nullptr), FP4MOE_USAGE);
  fp4moe_layer* layer = nullptr;
  EXPECT_EQ(fp4moe_layer_from_weights(nullptr, &given.weights, nullptr, &layer), FP4MOE_USAGE);
  EXPECT_EQ(id(), "argument.null");
  EXPECT_EQ(fp4moe_layer_from_weights(&given.description.given, nullptr, nullptr, &layer),
            FP4MOE_USAGE);
}

TEST(CApiWeights, TellBrokenScalesWhenTheyAreLoaded) {
  CWeights weights(nvfp4_path());
  weights.memory.w13.globals[2 * 3] = std::nanf("");
  const fp4moe_weights given = weights.given();
  const Description description(WeightFormat::nvfp4);
  const auto options = layer_options();
  fp4moe_layer* layer = nullptr;
  ASSERT_EQ(fp4moe_layer_from_weights(&description.given, &given, &options, &layer), FP4MOE_OK);
  EXPECT_EQ(fp4moe_layer_load(layer), FP4MOE_INVALID_INPUT);
  EXPECT_EQ(id(), "scale.global");
  EXPECT_EQ(fp4moe_layer_process(layer), FP4MOE_USAGE);
  fp4moe_layer_destroy(layer);
}

}  // namespace weights_test
}  // namespace fp4moe::capi
