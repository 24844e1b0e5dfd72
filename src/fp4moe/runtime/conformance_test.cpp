// Every backend of every policy: checkpoint, converted folder, layer, output within the backend's
// numerics of the exact result. New rows are found by themselves.
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/base/random.hpp"
#include "fp4moe/convert/folder/converted_folder.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/moe/numerics.hpp"
#include "fp4moe/platform/device.hpp"
#include "fp4moe/runtime/layer.hpp"
#include "support/converted_folder.hpp"
#include "support/engines.hpp"

namespace fp4moe::runtime {
namespace conformance_test {

using convert::testing::make_checkpoint;
using formats::WeightFormat;
using tensor::DType;
using tensor::testing::TemporaryFolder;

// Sizes that every backend converts; AITER's scales take no odd number of 128.
constexpr std::uint64_t kTokens = 5, kTopK = 2, kExperts = 4, kHidden = 128, kIntermediate = 256;

struct Call {
  std::vector<std::uint16_t> x{};
  std::vector<std::int32_t> ids{};
  std::vector<float> weights{};

  Call() {
    SplitMix64 random(77);
    for (std::uint64_t i = 0; i < kTokens * kHidden; ++i)
      x.push_back(
          formats::Bf16::encode((static_cast<float>(random.next() >> 40) / 8388608.0f - 1.0f)));
    for (std::uint64_t i = 0; i < kTokens * kTopK; ++i) {
      ids.push_back(static_cast<std::int32_t>(random.next() % kExperts));
      weights.push_back(0.1f + 0.1f * static_cast<float>(random.next() % 8));
    }
    ids[3] = -1;  // an assignment that does not exist
  }
  Tokens tokens() const {
    return {.x = moe::dense_rows(std::span(x), DType::bf16, kTokens, kHidden),
            .top_k = kTopK,
            .ids = ids,
            .weights = weights};
  }
};

std::vector<double> apply(MoeLayer& layer) {
  const Call call;
  std::vector<double> out(kTokens * kHidden, std::nan(""));
  const auto done =
      layer.apply(call.tokens(), moe::dense_rows(std::span(out), DType::f64, kTokens, kHidden));
  EXPECT_TRUE(done) << text(done.why());
  return out;
}

struct Distance {
  double of_largest = 0, cosine = 0;
};
Distance distance(const std::vector<double>& exact, const std::vector<double>& found) {
  double largest = 0, difference = 0, product = 0, own = 0, other = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    largest = std::max(largest, std::fabs(exact[i]));
    difference = std::max(difference, std::fabs(exact[i] - found[i]));
    if (std::isnan(found[i])) difference = INFINITY;
    product += exact[i] * found[i];
    own += exact[i] * exact[i];
    other += found[i] * found[i];
  }
  return {difference / largest, product / std::sqrt(own * other)};
}

std::vector<double> exact_result(const checkpoint::Checkpoint& checkpoint) {
  auto layer = MoeLayer::create(
      checkpoint, 0,
      {.engine = EngineKind::reference, .threads = 1, .numerics = moe::NumericsKind::exact});
  EXPECT_TRUE(layer) << text(layer.why());
  EXPECT_TRUE(layer->load());
  EXPECT_TRUE(layer->process());
  return apply(*layer);
}

class Conformance : public ::testing::TestWithParam<WeightFormat> {};

TEST_P(Conformance, EveryBackendRunsFromItsConvertedFolderWithinItsNumerics) {
  const TemporaryFolder folder;
  const std::string source = folder.path() + "/source";
  make_checkpoint(source, GetParam(),
                  {.experts = kExperts, .hidden = kHidden, .intermediate = kIntermediate});
  const auto checkpoint = checkpoint::Checkpoint::open(source);
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  const std::vector<double> exact = exact_result(*checkpoint);
  const auto hopper = platform::describe_device("h100"),
             instinct = platform::describe_device("mi355x");
  ASSERT_TRUE(hopper && instinct);

  std::set<std::tuple<std::string_view, std::string_view, std::string, std::string_view>> seen;
  for (const oracle::Policy& policy : backends::policies()) {
    if (policy.format != GetParam()) continue;
    for (const oracle::Backend* backend : policy.backends) {
      const std::string what = std::string(policy.name) + " " + std::string(backend->name);
      const BackendRequest backend_request{
          .policy = std::string(policy.name),
          .backend = std::string(backend->name),
          .device = backend->family == "aiter" ? *instinct : *hopper};
      const auto facts = layer_facts(*checkpoint, 0);
      ASSERT_TRUE(facts);
      const auto choice = choose(facts->model, {}, backend_request);
      ASSERT_TRUE(choice) << what << ": " << text(choice.why());
      const bool is_new = seen.emplace(backend->name, choice->layout->id,
                                       std::string(choice->layout->generation), backend->numerics)
                              .second;
      if (!is_new) continue;
      const std::string out = folder.path() + "/" + std::to_string(seen.size());
      const auto result =
          convert::testing::convert(source, out, choice->recipe({}, facts->model.layer.activation));
      ASSERT_TRUE(result) << what << ": " << text(result.why());
      auto opened = convert::ConvertedFolder::open(out);
      ASSERT_TRUE(opened) << text(opened.why());
      const auto shared = std::make_shared<const convert::ConvertedFolder>(std::move(*opened));
      LayerOptions options{.threads = 1};
      options.backend_request.policy = policy.name;
      auto layer = MoeLayer::open(shared, 0, options);
      ASSERT_TRUE(layer) << what << ": " << text(layer.why());
      auto processed = layer->process();
      if (layer->problem().quantizes == oracle::ActivationKey::fp8_static_tensor) {
        // gpt-oss has no static scales: refused, unless the caller knows some.
        ASSERT_FALSE(processed) << what;
        EXPECT_EQ(processed.why().id, "scale.input");
        options.input_scale = InputScale{.input = 0.01f, .hidden = 0.1f};
        layer = MoeLayer::open(shared, 0, options);
        ASSERT_TRUE(layer) << what << ": " << text(layer.why());
        processed = layer->process();
      }
      ASSERT_TRUE(processed) << what << ": " << text(processed.why());
      for (const EngineRow& engine : testing::usable_engines()) {
        options.engine = engine.kind;
        layer = MoeLayer::open(shared, 0, options);
        ASSERT_TRUE(layer && layer->process()) << what << ", " << engine.name;
        const Distance found = distance(exact, apply(*layer));
        const moe::Tolerance allowed =
            moe::tolerance(layer->problem().numerics, layer->problem().quantizes, engine.name);
        EXPECT_LE(found.of_largest, allowed.of_largest) << what << ", " << engine.name;
        EXPECT_GE(found.cosine, allowed.cosine) << what << ", " << engine.name;
      }
      std::filesystem::remove_all(out);
    }
  }
  EXPECT_GE(seen.size(), GetParam() == WeightFormat::mxfp4 ? 15u : 8u);
}

INSTANTIATE_TEST_SUITE_P(Formats, Conformance,
                         ::testing::Values(WeightFormat::mxfp4, WeightFormat::nvfp4),
                         [](const auto& chosen) { return std::string(name(chosen.param)); });

}  // namespace conformance_test
}  // namespace fp4moe::runtime
