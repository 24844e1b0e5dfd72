#include "fp4moe/checkpoint/write/tensor_names.hpp"

#include <gtest/gtest.h>

namespace fp4moe::checkpoint {
namespace tensor_names_test {

OtherTensor tensor_of(std::string name, tensor::Shape shape) {
  OtherTensor other{.spec = {std::move(name), tensor::DType::bf16, std::move(shape)}};
  const std::uint64_t size = tensor::byte_count(tensor::DType::bf16, other.spec.shape).value_or(0);
  for (std::uint64_t i = 0; i < size; ++i)
    other.bytes.push_back(static_cast<std::byte>(i + other.spec.name.size()));
  return other;
}

TEST(TensorNames, GgufNamesGoThereAndBack) {
  const std::pair<const char*, const char*> names[] = {
      {"gpt_oss", "model.layers.7.post_attention_layernorm.weight"},
      {"gpt_oss", "model.layers.7.self_attn.sinks"},
      {"gpt_oss", "model.layers.7.mlp.router.bias"},
      {"qwen3_moe", "model.layers.7.post_attention_layernorm.weight"},
      {"qwen3_moe", "model.layers.7.mlp.gate.weight"},
      {"qwen3_moe", "model.layers.7.self_attn.q_norm.weight"},
      {"deepseek_v3", "model.layers.7.mlp.gate.e_score_correction_bias"},
      {"mixtral", "model.layers.7.block_sparse_moe.gate.weight"},
      {"nemotron_h", "backbone.layers.7.mixer.gate.weight"},
      {"nemotron_h", "backbone.norm_f.weight"},
      {"nemotron_h", "backbone.layers.7.mixer.shared_experts.up_proj.weight"},
      {"qwen3_moe", "model.embed_tokens.weight"},
  };
  for (const auto& [family, name] : names) {
    const std::string there = gguf_name(name, family);
    EXPECT_NE(there, name);
    EXPECT_EQ(hugging_face_name(there, family), name) << family << " " << there;
  }
}

TEST(TensorNames, FamiliesDifferWhereLlamaCppDoes) {
  const char* norm = "model.layers.3.post_attention_layernorm.weight";

  EXPECT_EQ(gguf_name(norm, "gpt_oss"), "blk.3.post_attention_norm.weight");
  EXPECT_EQ(gguf_name(norm, "qwen3_moe"), "blk.3.ffn_norm.weight");
  EXPECT_EQ(gguf_name("model.layers.3.self_attn.q_proj.weight", "qwen3_moe"),
            "blk.3.attn_q.weight");
  // Permuted in llama.cpp: we do not claim to be that.
  EXPECT_EQ(gguf_name("model.layers.3.self_attn.q_proj.weight", "mixtral"),
            "model.layers.3.self_attn.q_proj.weight");
}

TEST(TensorNames, UnknownNamesStay) {
  for (const char* name : {"model.layers.x.input_layernorm.weight", "something.else", "",
                           "model.layers..input_layernorm.weight"}) {
    EXPECT_EQ(gguf_name(name, "gpt_oss"), name);
    EXPECT_EQ(hugging_face_name(name, "gpt_oss"), name);
  }
}

TEST(TensorNames, OpenaiJoinsTheRowsOfQkvAndTheWayBackPartsThem) {
  const RenameContext context{.model_type = "gpt_oss", .query_rows = 4, .key_rows = 2};
  std::vector<OtherTensor> others;
  others.push_back(tensor_of("model.layers.0.self_attn.q_proj.weight", {4, 3}));
  others.push_back(tensor_of("model.layers.0.self_attn.k_proj.weight", {2, 3}));
  others.push_back(tensor_of("model.layers.0.self_attn.v_proj.weight", {2, 3}));
  others.push_back(tensor_of("model.layers.0.mlp.router.bias", {5}));
  const std::vector<OtherTensor> before = others;

  auto there = rename_others(others, NameFamily::hugging_face, NameFamily::openai, context);
  ASSERT_TRUE(there);
  ASSERT_EQ(there->size(), 2u);
  EXPECT_EQ((*there)[0].spec.name, "block.0.attn.qkv.weight");
  EXPECT_EQ((*there)[0].spec.shape, (tensor::Shape{8, 3}));
  EXPECT_EQ((*there)[1].spec.name, "block.0.mlp.gate.bias");
  const auto back = rename_others(*there, NameFamily::openai, NameFamily::hugging_face, context);

  ASSERT_TRUE(back);
  ASSERT_EQ(back->size(), before.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ((*back)[i].spec.name, before[i].spec.name);
    EXPECT_EQ((*back)[i].spec.shape, before[i].spec.shape);
    EXPECT_EQ((*back)[i].bytes, before[i].bytes);
  }
}

TEST(TensorNames, RefusesToPartQkvByGuessing) {
  for (const RenameContext& context :
       {RenameContext{.model_type = "gpt_oss"}, RenameContext{"gpt_oss", 4, 3}}) {
    const auto back = rename_others({tensor_of("block.0.attn.qkv.weight", {8, 3})},
                                    NameFamily::openai, NameFamily::hugging_face, context);
    ASSERT_FALSE(back);
    EXPECT_EQ(back.why().id, "names.qkv");
  }
}

// The way back could not part them.
TEST(TensorNames, RefusesToJoinQkvOfAnotherNumberOfHeads) {
  for (const RenameContext& context :
       {RenameContext{.model_type = "gpt_oss"}, RenameContext{"gpt_oss", 4, 3}}) {
    const auto there = rename_others({tensor_of("model.layers.0.self_attn.q_proj.weight", {4, 3}),
                                      tensor_of("model.layers.0.self_attn.k_proj.weight", {2, 3}),
                                      tensor_of("model.layers.0.self_attn.v_proj.weight", {2, 3})},
                                     NameFamily::hugging_face, NameFamily::openai, context);
    ASSERT_FALSE(there);
    EXPECT_EQ(there.why().id, "names.qkv");
    EXPECT_EQ(there.why().tensor, "block.0.attn.qkv.weight");
    EXPECT_EQ(there.why().found, "8 rows; heads give " + std::to_string(context.query_rows) +
                                     " + 2 * " + std::to_string(context.key_rows));
  }
}

TEST(TensorNames, IncompleteQkvKeepsItsNames) {
  const auto there =
      rename_others({tensor_of("model.layers.0.self_attn.q_proj.weight", {4, 3})},
                    NameFamily::hugging_face, NameFamily::openai, {.model_type = "gpt_oss"});

  ASSERT_TRUE(there);
  EXPECT_EQ((*there)[0].spec.name, "model.layers.0.self_attn.q_proj.weight");
}

TEST(TensorNames, HeadsComeFromTheConfigurationWithinReason) {
  const Json config{{"num_attention_heads", 64}, {"num_key_value_heads", 8}, {"head_dim", 64}};

  EXPECT_EQ(rename_context("gpt_oss", config, {}).query_rows, 4096u);
  EXPECT_EQ(rename_context("gpt_oss", config, {}).key_rows, 512u);
  EXPECT_EQ(rename_context("gpt_oss", {{"head_dim", "wide"}}, {}).query_rows, 0u);
  EXPECT_EQ(rename_context("gpt_oss", nullptr, {}).query_rows, 0u);
  const Json without{{"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"hidden_size", 128}};
  EXPECT_EQ(rename_context("mixtral", without, {}).query_rows, 128u);
  EXPECT_EQ(rename_context("mixtral", without, {}).key_rows, 64u);
}

TEST(TensorNames, LayersAreNumberedByTheirPrefixes) {
  struct Layer {
    std::uint64_t index;
    std::string prefix;
  };
  const std::vector<Layer> layers{{3, "model.layers.3.mlp."}, {1, "model.layers.1.mlp."}};
  EXPECT_EQ(rename_context("new", nullptr, layer_numbers(layers)).layers,
            (LayerNumbers{{"model.layers.1.mlp.", 1}, {"model.layers.3.mlp.", 3}}));
}

TEST(TensorNames, ARouterIsFoundInGgufWhateverItWasCalled) {
  RenameContext context = rename_context("new", nullptr, {{"a.layers.3.moe.", 3}});
  const std::vector<std::pair<std::string, std::string>> names{
      {"a.layers.3.moe.router.layer.weight", "blk.3.ffn_gate_inp.weight"},
      {"a.layers.3.moe.expert_bias", "blk.3.exp_probs_b.bias"},
      {"a.layers.3.moe.gate.tid2eid", "blk.3.ffn_gate_tid2eid.weight"},
      {"a.layers.2.moe.gate.weight", "a.layers.2.moe.gate.weight"},
  };
  std::vector<OtherTensor> others;
  for (const auto& name : names) others.push_back(tensor_of(name.first, {4, 3}));
  context.names = names_to_keep(others, context);

  const auto there = rename_others(others, NameFamily::hugging_face, NameFamily::gguf, context);
  ASSERT_TRUE(there);
  const auto back = rename_others(*there, NameFamily::gguf, NameFamily::hugging_face, context);
  ASSERT_TRUE(back);
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ((*there)[i].spec.name, names[i].second);
    EXPECT_EQ((*back)[i].spec.name, names[i].first);
  }
}

}  // namespace tensor_names_test
}  // namespace fp4moe::checkpoint
