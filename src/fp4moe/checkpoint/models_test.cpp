#include "fp4moe/checkpoint/models.hpp"

#include <set>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>

namespace fp4moe::checkpoint {
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

TEST(Models, AreFoundAsPeopleAndHubsSpellThem) {
  const std::pair<std::string_view, std::string_view> spellings[] = {
      {"gpt-oss-120b", "gpt-oss-120b"},
      {"openai/gpt-oss-120b", "gpt-oss-120b"},
      {"OpenAI/GPT-OSS-20B", "gpt-oss-20b"},
      {"gptoss120b", "gpt-oss-120b"},
      {"gpt_oss_20b", "gpt-oss-20b"},
      {"Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"},
      {"Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-30b-a3b"},
      {"nvidia/DeepSeek-R1-0528-FP4", "deepseek-v3"},
      {"deepseek-ai/DeepSeek-V3.1-Terminus", "deepseek-v3"},
      {"moonshotai/Kimi-K2-Thinking", "kimi-k2"},
      {"nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", "nemotron-3-nano"},
      {"meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"},
      {"zai-org/GLM-4.5-Air", "glm-4.5-air"},
      {"zai-org/GLM-4.5", "glm-4.5"},
      {"mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"},
  };
  for (const auto& [spelling, name] : spellings) {
    const auto found = require_named(spelling);
    ASSERT_TRUE(found) << spelling << ": " << text(found.why());
    EXPECT_EQ(found->row->name, name) << spelling;
  }
  for (const ModelRow& row : models()) EXPECT_EQ((*require_named(row.name)).row, &row);
}

TEST(Models, ANumberFormatInTheNameCounts) {
  EXPECT_EQ((*require_named("nvidia/Qwen3-30B-A3B-NVFP4")).format, WeightFormat::nvfp4);
  EXPECT_EQ((*require_named("amd/DeepSeek-R1-0528-MXFP4")).format, WeightFormat::mxfp4);
  EXPECT_FALSE((*require_named("Qwen/Qwen3-30B-A3B")).format);

  const auto fp8 = require_named("Qwen/Qwen3-30B-A3B-FP8");
  ASSERT_FALSE(fp8);
  EXPECT_EQ(fp8.why().id, "models.not_fp4");
  EXPECT_EQ(fp8.why().code, ErrorCode::no_backend);
}

TEST(Models, UnknownNamesAreAnsweredWithThoseThatWerePerhapsMeant) {
  const std::pair<std::string_view, std::string_view> meant[] = {
      {"gpt-oss", "did you mean gpt-oss-20b or gpt-oss-120b?"},
      {"qwen3", "did you mean qwen3-30b-a3b or qwen3-235b-a22b?"},
      {"openai/gpt-oss-121b", "did you mean gpt-oss-120b?"},
      {"deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "give its checkpoint or config.json instead"},
      {"", "give its checkpoint or config.json instead"},
      {"/", "give its checkpoint or config.json instead"},
      {"-", "give its checkpoint or config.json instead"},
  };
  for (const auto& [spelling, remedy] : meant) {
    const auto found = require_named(spelling);
    ASSERT_FALSE(found) << spelling;
    EXPECT_EQ(found.why().id, "models.unknown");
    EXPECT_EQ(found.why().remedy, remedy) << spelling;
  }
}

}  // namespace models_test
}  // namespace fp4moe::checkpoint
