// The same seeded weights in every dialect are the same canonical weights.
#include <algorithm>
#include <filesystem>
#include <optional>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "support/canonical_expert.hpp"
#include "support/files.hpp"

namespace fp4moe::checkpoint {
namespace dialects_agree_test {

using tensor::testing::TemporaryFolder;
using testing::CanonicalExpert;
using testing::read_canonical;

struct Spelling {
  Dialect dialect;
  std::optional<Grouping> grouping{};
};

void expect_same(const SynthOptions& base, const std::vector<Spelling>& spellings) {
  const TemporaryFolder folder;
  std::vector<CanonicalExpert> first;
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
    ExpertReader reader(*checkpoint, {});
    std::vector<CanonicalExpert> experts;
    for (std::uint64_t e = 0; e < options.experts; ++e) {
      auto expert = read_canonical(reader, options.layers - 1, e,
                                   gated ? RowOrder::halves : RowOrder::single);
      ASSERT_TRUE(expert) << text(expert.why());
      experts.push_back(*std::move(expert));
    }
    if (first.empty()) first = experts;
    for (std::size_t e = 0; e < experts.size(); ++e) {
      EXPECT_EQ(first[e].w13_codes, experts[e].w13_codes) << name(spelling.dialect);
      EXPECT_EQ(first[e].w13_scales, experts[e].w13_scales) << name(spelling.dialect);
      EXPECT_EQ(first[e].w2_codes, experts[e].w2_codes) << name(spelling.dialect);
      EXPECT_EQ(first[e].w2_scales, experts[e].w2_scales) << name(spelling.dialect);
      EXPECT_EQ(first[e].w13_bias, experts[e].w13_bias) << name(spelling.dialect);
      EXPECT_EQ(first[e].w2_bias, experts[e].w2_bias) << name(spelling.dialect);
      // Reciprocals of compressed-tensors may be off by a rounding.
      for (const Projection which : {Projection::gate, Projection::up, Projection::down})
        EXPECT_NEAR(first[e].view.at(which).global_scale / experts[e].view.at(which).global_scale,
                    1.0f, 3e-7f);
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
