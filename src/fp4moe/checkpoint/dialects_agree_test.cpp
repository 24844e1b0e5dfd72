// The same seeded weights in every dialect are the same canonical weights.
#include <algorithm>
#include <filesystem>
#include <optional>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/moe_weights.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "support/files.hpp"

namespace fp4moe::checkpoint {
namespace dialects_agree_test {

using tensor::testing::TemporaryFolder;

struct Spelling {
  Dialect dialect;
  std::optional<Grouping> grouping{};
};

void expect_same(const SynthOptions& base, const std::vector<Spelling>& spellings) {
  const TemporaryFolder folder;
  std::optional<MoeWeights> first;
  for (const Spelling& spelling : spellings) {
    SynthOptions options = base;
    options.dialect = spelling.dialect;
    options.grouping = spelling.grouping;
    const bool gguf = spelling.dialect == Dialect::gguf;
    const std::string path = folder / (gguf ? "model.gguf" : "model");
    const auto result = synth(options, path);
    ASSERT_TRUE(result) << name(spelling.dialect) << ": " << text(result.why());
    const auto checkpoint = Checkpoint::open(path);
    ASSERT_TRUE(checkpoint) << name(spelling.dialect) << ": " << text(checkpoint.why());
    EXPECT_EQ(checkpoint->dialect().dialect, spelling.dialect);
    ASSERT_EQ(checkpoint->layers().size(), options.layers);
    const bool gated = checkpoint->layers()[0].shape.gated();
    auto weights = load_layer(*checkpoint, options.layers - 1, {},
                              gated ? RowOrder::halves : RowOrder::single, 2);
    ASSERT_TRUE(weights) << text(weights.why());
    if (first) {
      const auto same = [](const tensor::Buffer& a, const tensor::Buffer& b) {
        return std::ranges::equal(a.bytes(), b.bytes());
      };
      EXPECT_TRUE(same(first->w13_codes, weights->w13_codes)) << name(spelling.dialect);
      EXPECT_TRUE(same(first->w13_scales, weights->w13_scales)) << name(spelling.dialect);
      EXPECT_TRUE(same(first->w2_codes, weights->w2_codes)) << name(spelling.dialect);
      EXPECT_TRUE(same(first->w2_scales, weights->w2_scales)) << name(spelling.dialect);
      EXPECT_EQ(first->w13_bias, weights->w13_bias) << name(spelling.dialect);
      EXPECT_EQ(first->w2_bias, weights->w2_bias) << name(spelling.dialect);
      // Reciprocals of compressed-tensors may be off by a rounding.
      ASSERT_EQ(first->w13_global_scales.size(), weights->w13_global_scales.size());
      for (std::size_t i = 0; i < first->w13_global_scales.size(); ++i) {
        EXPECT_NEAR(first->w13_global_scales[i] / weights->w13_global_scales[i], 1.0f, 3e-7f);
      }
    } else {
      first = std::move(*weights);
    }
    std::filesystem::remove_all(path);
  }
}

TEST(DialectsAgree, OnMxfp4) {
  const SynthOptions base{.model = "gpt-oss-20b",
                          .format = WeightFormat::mxfp4,
                          .layers = 2,
                          .experts = 3,
                          .hidden = 128,
                          .intermediate = 192,
                          .seed = 7};
  expect_same(base, {{Dialect::gpt_oss},
                     {Dialect::openai},
                     {Dialect::compressed_tensors},
                     {Dialect::quark, Grouping::per_expert},
                     {Dialect::quark, Grouping::fused},
                     {Dialect::gguf}});
}

TEST(DialectsAgree, OnNvfp4WithAndWithoutAGate) {
  for (const std::string model : {"qwen3-30b-a3b", "nemotron-3-nano"}) {
    const SynthOptions base{.model = model,
                            .format = WeightFormat::nvfp4,
                            .layers = 1,
                            .experts = 3,
                            .hidden = 128,
                            .intermediate = 192,
                            .seed = 8};
    expect_same(base, {{Dialect::modelopt}, {Dialect::compressed_tensors}, {Dialect::gguf}});
  }
}

}  // namespace dialects_agree_test
}  // namespace fp4moe::checkpoint
