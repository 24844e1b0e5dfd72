#include "fp4moe/checkpoint/expert_name.hpp"

#include <gtest/gtest.h>

namespace fp4moe::checkpoint {
namespace expert_name_test {

TEST(ExpertName, TakesPerExpertNamesApartUnderAnyPrefix) {
  for (const std::string_view prefix :
       {"model.layers.12.mlp.", "model.language_model.layers.12.mlp.",
        "model.layers.12.block_sparse_moe.", "backbone.layers.12.mixer.", "layers.12.ffn.",
        "language_model.model.layers.12.feed_forward."}) {
    const std::string name = std::string(prefix) + "experts.7.gate_proj.weight_scale_2";
    const auto parsed = parse_expert_name(name);
    ASSERT_TRUE(parsed) << name;
    EXPECT_EQ(parsed->family, NameFamily::hugging_face);
    EXPECT_EQ(parsed->prefix, prefix);
    EXPECT_EQ(parsed->layer, 12u);
    EXPECT_EQ(parsed->expert, 7u);
    EXPECT_EQ(parsed->projection, StoredProjection::gate);
    EXPECT_EQ(parsed->part, ".weight_scale_2");
  }
}

TEST(ExpertName, KnowsTheNumberedProjections) {
  EXPECT_EQ(parse_expert_name("layers.0.ffn.experts.0.w1.weight")->projection,
            StoredProjection::gate);
  EXPECT_EQ(parse_expert_name("layers.0.ffn.experts.0.w3.weight")->projection,
            StoredProjection::up);
  EXPECT_EQ(parse_expert_name("layers.0.ffn.experts.0.w2.scale")->projection,
            StoredProjection::down);
}

TEST(ExpertName, TakesFusedNamesApart) {
  const auto blocks = parse_expert_name("model.layers.3.mlp.experts.gate_up_proj_blocks");
  ASSERT_TRUE(blocks);
  EXPECT_EQ(blocks->expert, std::nullopt);
  EXPECT_EQ(blocks->projection, StoredProjection::gate_up);
  EXPECT_EQ(blocks->part, "_blocks");
  EXPECT_EQ(parse_expert_name("model.layers.3.mlp.experts.down_proj")->part, "");
  EXPECT_EQ(parse_expert_name("model.layers.3.mlp.experts.gate_up_proj.weight_scale")->part,
            ".weight_scale");
}

TEST(ExpertName, TakesOpenaiNamesApart) {
  const auto codes = parse_expert_name("block.3.mlp.mlp1_weight.blocks");
  ASSERT_TRUE(codes);
  EXPECT_EQ(codes->family, NameFamily::openai);
  EXPECT_EQ(codes->prefix, "block.3.mlp.");
  EXPECT_EQ(codes->layer, 3u);
  EXPECT_EQ(codes->projection, StoredProjection::gate_up);
  EXPECT_EQ(codes->part, "_weight.blocks");
  EXPECT_EQ(parse_expert_name("block.3.mlp.mlp2_bias")->part, "_bias");
  EXPECT_FALSE(parse_expert_name("block.3.mlp.gate.weight"));
}

TEST(ExpertName, TakesGgufNamesApart) {
  const auto codes = parse_expert_name("blk.30.ffn_gate_exps.weight");
  ASSERT_TRUE(codes);
  EXPECT_EQ(codes->family, NameFamily::gguf);
  EXPECT_EQ(codes->prefix, "blk.30.");
  EXPECT_EQ(codes->layer, 30u);
  EXPECT_EQ(codes->projection, StoredProjection::gate);
  EXPECT_EQ(parse_expert_name("blk.30.ffn_gate_up_exps.weight")->projection,
            StoredProjection::gate_up);
  EXPECT_EQ(parse_expert_name("blk.30.ffn_down_exps.input_scale")->part, ".input_scale");
  EXPECT_FALSE(parse_expert_name("blk.30.ffn_gate_inp.weight"));
  EXPECT_FALSE(parse_expert_name("blk.x.ffn_gate_exps.weight"));
}

TEST(ExpertName, LeavesSharedExpertsAndOtherTensorsAlone) {
  EXPECT_FALSE(parse_expert_name("model.layers.3.mlp.shared_experts.gate_proj.weight"));
  EXPECT_FALSE(parse_expert_name("model.layers.3.mlp.shared_expert.gate_proj.weight"));
  EXPECT_FALSE(parse_expert_name("model.layers.3.self_attn.q_proj.weight"));
  EXPECT_FALSE(parse_expert_name("model.layers.3.mlp.gate.e_score_correction_bias"));
  EXPECT_FALSE(parse_expert_name(""));
  EXPECT_FALSE(parse_expert_name("experts."));
}

TEST(ExpertName, DoesNotBelieveHugeNumbers) {
  const auto absurd =
      parse_expert_name("model.layers.3.mlp.experts.18446744073709551616.w1.weight");
  ASSERT_TRUE(absurd);  // an expert's, beyond every last one
  EXPECT_EQ(absurd->expert, 999'999'999u);
  EXPECT_TRUE(mentions_experts("model.layers.3.mlp.experts.18446744073709551616.w1.weight"));
  EXPECT_FALSE(mentions_experts("model.layers.3.mlp.shared_experts.up_proj.weight"));
}

TEST(ExpertName, NamesOfNoProjectionKeepTheirLayer) {
  const auto one = unknown_expert_name("model.layers.3.mlp.experts.0.scale");
  ASSERT_TRUE(one);
  EXPECT_EQ(one->prefix, "model.layers.3.mlp.");
  EXPECT_EQ(one->part, "0.scale");
  EXPECT_EQ(unknown_expert_name("experts.act_scale")->prefix, "");
  const auto stacked = unknown_expert_name("blk.3.ffn_norm_exps.weight");
  ASSERT_TRUE(stacked);
  EXPECT_EQ(stacked->prefix, "blk.3.");
  EXPECT_EQ(stacked->part, "ffn_norm_exps.weight");
  EXPECT_EQ(unknown_expert_name("blk_exps.x")->prefix, "");
  EXPECT_FALSE(unknown_expert_name("model.layers.3.mlp.experts.0.up_proj.scale"));
  EXPECT_FALSE(unknown_expert_name("model.layers.3.mlp.shared_experts.scale"));
}

TEST(ExpertName, LayersOfOneKindShareAFamily) {
  EXPECT_EQ(prefix_family("model.layers.3.mlp."), prefix_family("model.layers.40.mlp."));
  EXPECT_FALSE(prefix_family("model.layers.3.mlp.") == prefix_family("mtp.layers.3.mlp."));
  EXPECT_EQ(prefix_family("mlp.").before, "mlp.");
}

}  // namespace expert_name_test
}  // namespace fp4moe::checkpoint
