#include "fp4moe/weights/models.hpp"

#include <set>
#include <string_view>

#include <gtest/gtest.h>

namespace fp4moe::weights {
namespace models_test {

TEST(Models, EveryNameIsThereOnceAndFound) {
  std::set<std::string_view> names;

  for (const ModelRow& row : models()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(find_model(row.name), &row);
  }

  EXPECT_EQ(find_model("gpt-oss-21b"), nullptr);
}

TEST(Models, EverySizeFillsWholeScaleBlocks) {
  for (const ModelRow& row : models()) {
    EXPECT_EQ(row.hidden % 32, 0u) << row.name;
    EXPECT_EQ(row.intermediate % 32, 0u) << row.name;
    EXPECT_LE(row.top_k, row.experts) << row.name;
    EXPECT_NE(row.prefix.find("{}"), std::string_view::npos) << row.name;
  }
}

TEST(Models, MoeLayersAreCountedAsPublished) {
  EXPECT_EQ(moe_layer_count(*find_model("gpt-oss-20b")), 24u);
  EXPECT_EQ(moe_layer_count(*find_model("deepseek-v3")), 58u);
  EXPECT_EQ(moe_layer_count(*find_model("kimi-k2")), 60u);
  EXPECT_EQ(moe_layer_count(*find_model("glm-4.5")), 89u);
  EXPECT_EQ(moe_layer_count(*find_model("llama-4-maverick")), 24u);
  EXPECT_EQ(moe_layer_count(*find_model("nemotron-3-nano")), 23u);
}

TEST(Models, MoeLayersLieInsideTheModelInAscendingOrder) {
  for (const ModelRow& row : models()) {
    std::uint64_t last = 0;
    for (std::uint64_t i = 0; i < moe_layer_count(row); ++i) {
      const std::uint64_t index = moe_layer_index(row, i);
      EXPECT_LT(index, row.layers) << row.name;
      if (i != 0) {
        EXPECT_GT(index, last) << row.name;
      }
      last = index;
    }
  }
  EXPECT_EQ(moe_layer_index(*find_model("nemotron-3-nano"), 0), 1u);
  EXPECT_EQ(moe_layer_index(*find_model("nemotron-3-nano"), 2), 6u);
  EXPECT_EQ(moe_layer_index(*find_model("deepseek-v3"), 0), 3u);
}

TEST(Models, FamiliesAreFoundByTypeAndByGgufArchitecture) {
  EXPECT_EQ(find_family("qwen3_moe")->name, "qwen3-30b-a3b");
  EXPECT_EQ(find_family("unheard_of"), nullptr);
  EXPECT_EQ(find_architecture("nemotron_h_moe")->model_type, "nemotron_h");
  EXPECT_EQ(find_architecture(""), nullptr);
}

TEST(Models, ALayerPrefixCarriesItsNumber) {
  EXPECT_EQ(layer_prefix("model.layers.{}.mlp.", 17), "model.layers.17.mlp.");
  EXPECT_EQ(layer_prefix("plain.", 17), "plain.");
}

}  // namespace models_test
}  // namespace fp4moe::weights
