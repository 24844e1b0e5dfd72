#include "fp4moe/checkpoint/config.hpp"

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/config_document.hpp"
#include "support/files.hpp"
#include "support/tiny_model.hpp"

namespace fp4moe::checkpoint {
namespace config_test {

using tensor::testing::TemporaryFolder;
using tensor::testing::write_text;

ModelFacts parsed(std::string_view text) {
  const auto json = parse_json(text);
  EXPECT_TRUE(json);
  const auto facts = parse_config(*json);
  EXPECT_TRUE(facts) << fp4moe::text(facts.why());
  return facts ? *facts : ModelFacts{};
}

Error refused(std::string_view text) {
  const auto json = parse_json(text);
  EXPECT_TRUE(json);
  const auto facts = parse_config(*json);
  EXPECT_FALSE(facts) << text;
  return facts ? Error{} : facts.why();
}

TEST(Config, ReadsGptOss) {
  const ModelFacts facts = parsed(R"({"model_type": "gpt_oss", "num_hidden_layers": 24,
      "num_local_experts": 32, "num_experts_per_tok": 4, "hidden_size": 2880,
      "intermediate_size": 2880, "swiglu_limit": 7.0,
      "quantization_config": {"quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}})");
  EXPECT_EQ(facts.model.model_type, "gpt_oss");
  EXPECT_EQ(facts.model.layers, 24u);
  EXPECT_EQ(facts.model.experts, 32u);
  EXPECT_EQ(facts.model.top_k, 4u);
  EXPECT_EQ(facts.model.hidden, 2880u);
  EXPECT_EQ(facts.model.intermediate, 2880u);
  EXPECT_EQ(facts.model.swiglu_limit, 7.0);
  ASSERT_EQ(facts.claims.size(), 1u);
  EXPECT_EQ(facts.claims[0].dialect, Dialect::gpt_oss);
  EXPECT_EQ(facts.claims[0].format, WeightFormat::mxfp4);
  EXPECT_NE(facts.claims[0].excluded.find("model.layers.7.self_attn.q_proj"), nullptr);
  EXPECT_EQ(facts.claims[0].excluded.find("model.layers.7.mlp.experts"), nullptr);
}

TEST(Config, OfAConvertedFolderSaysWhatItsCheckpointSaid) {
  const ModelFacts facts = parsed(R"({"model_type": "gpt_oss", "quantization_config":
      {"quant_method": "fp4moe", "source": {"quant_method": "mxfp4"}}})");
  ASSERT_EQ(facts.claims.size(), 1u);
  EXPECT_EQ(facts.claims[0].format, WeightFormat::mxfp4);
  EXPECT_TRUE(parsed(R"({"quantization_config": {"quant_method": "fp4moe"}})").claims.empty());
}

TEST(Config, PrefersTheExpertsOwnSizesAndLooksIntoTextConfig) {
  const ModelFacts facts = parsed(R"({"model_type": "qwen3_vl_moe", "text_config": {
      "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
      "num_experts": 128, "n_routed_experts": null}})");
  EXPECT_EQ(facts.model.model_type, "qwen3_vl_moe");
  EXPECT_EQ(facts.model.hidden, 2048u);
  EXPECT_EQ(facts.model.intermediate, 768u);
  EXPECT_EQ(facts.model.experts, 128u);
  EXPECT_TRUE(facts.claims.empty());
  // Experts of a projection of the hidden state, as Nemotron and Kimi-K3 spell it.
  for (const char* key : {"moe_latent_size", "routed_expert_hidden_size"}) {
    const ModelFacts latent =
        parsed(R"({"hidden_size": 7168, ")" + std::string(key) + R"(": 3584})");
    EXPECT_EQ(latent.model.hidden, 3584u) << key;
    EXPECT_EQ(latent.model.router_hidden, 7168u) << key;
  }
}

TEST(Config, ReadsTheActivationUnderAllItsNames) {
  for (const char* key :
       {"mlp_hidden_act", "hidden_activation", "hidden_act", "activation_function"})
    EXPECT_EQ(parsed(R"({")" + std::string(key) + R"(": "gelu_new"})").model.activation, "gelu_new")
        << key;
  // The experts' own goes before that of all layers.
  EXPECT_EQ(parsed(R"({"hidden_act": "silu", "mlp_hidden_act": "relu2"})").model.activation,
            "relu2");
  EXPECT_EQ(parsed(R"({"hidden_act": null})").model.activation, "");
}

TEST(Config, ReadsTheConstantsOfTheActivation) {
  const ModelConfig minimax = parsed(R"({"text_config": {"hidden_act": "swigluoai",
      "swiglu_alpha": 1.702, "swiglu_beta": 0.5, "swiglu_limit": 7.0}})")
                                  .model;
  EXPECT_EQ(minimax.activation, "swigluoai");
  EXPECT_EQ(minimax.swiglu_alpha, 1.702);
  EXPECT_EQ(minimax.swiglu_beta, 0.5);
  EXPECT_EQ(minimax.swiglu_limit, 7.0);
  EXPECT_FALSE(minimax.has_layer_limits);
  const ModelConfig kimi = parsed(R"({"hidden_act": "situ", "activation_situ_beta": 4.0,
      "activation_situ_linear_beta": 25})")
                               .model;
  EXPECT_EQ(kimi.situ_beta, 4.0);
  EXPECT_EQ(kimi.situ_linear_beta, 25.0);
  const ModelConfig usual =
      parsed(R"({"activation_situ_beta": 0, "activation_situ_linear_beta": null})").model;
  EXPECT_EQ(usual.situ_beta, std::nullopt);
  EXPECT_EQ(usual.situ_linear_beta, std::nullopt);
  EXPECT_TRUE(parsed(R"({"swiglu_limits": [0, null, 7.0]})").model.has_layer_limits);
  for (const char* none : {"[0, 0.0, null]", "[]", "null", "7.0"})
    EXPECT_FALSE(parsed(R"({"swiglu_limits": )" + std::string(none) + "}").model.has_layer_limits)
        << none;
}

TEST(Config, ReadsTheRoutersFactorUnderAllItsNames) {
  for (const char* key : {"routed_scaling_factor", "moe_routed_scaling_factor",
                          "moe_router_scaling_factor", "router_scaling_factor", "route_scale"})
    EXPECT_EQ(parsed(R"({")" + std::string(key) + R"(": 2.5})").model.routed_scale, 2.5) << key;
  EXPECT_EQ(parsed("{}").model.routed_scale, std::nullopt);
}

TEST(Config, AListOfEqualNumbersIsOneNumber) {
  const ModelFacts facts = parsed(R"({"moe_num_experts": [64, 64], "moe_topk": [8, 8, 8],
                                      "moe_intermediate_size": [1536, 512]})");
  EXPECT_EQ(facts.model.experts, 64u);
  EXPECT_EQ(facts.model.top_k, 8u);
  EXPECT_EQ(facts.model.intermediate, std::nullopt);  // no single one holds
}

TEST(Config, FindsTheModelThatHasTheExperts) {
  // The whole is known for its other inputs alone; the part says what it is.
  const ModelFacts vision = parsed(R"({"model_type": "some_chat", "llm_config": {
      "model_type": "gpt_oss", "num_local_experts": 32}})");
  EXPECT_EQ(vision.model.model_type, "gpt_oss");
  EXPECT_EQ(parsed(R"({"model_type": "some_chat", "llm_config": {}})").model.model_type,
            "some_chat");
  const ModelFacts speech = parsed(R"({"model_type": "speaks", "thinker_config": {
      "text_config": {"model_type": "qwen3_moe", "num_experts": 128, "hidden_size": 2048}}})");
  EXPECT_EQ(speech.model.experts, 128u);
  EXPECT_EQ(speech.model.hidden, 2048u);
  EXPECT_EQ(speech.model.model_type, "qwen3_moe");
}

struct ClaimCase {
  std::string_view config;
  std::optional<Dialect> dialect;
  std::optional<WeightFormat> format;
};

class Claims : public ::testing::TestWithParam<ClaimCase> {};

TEST_P(Claims, AreReadFromTheQuantizationConfig) {
  const ModelFacts facts =
      parsed(R"({"quantization_config": )" + std::string(GetParam().config) + "}");
  ASSERT_EQ(facts.claims.size(), 1u);
  EXPECT_EQ(facts.claims[0].dialect, GetParam().dialect);
  EXPECT_EQ(facts.claims[0].format, GetParam().format);
  EXPECT_NE(facts.claims[0].fact.find("quant_method"), std::string::npos);
}

constexpr auto kNone = std::nullopt;
constexpr WeightFormat kMx = WeightFormat::mxfp4, kNv = WeightFormat::nvfp4;
INSTANTIATE_TEST_SUITE_P(
    Methods, Claims,
    ::testing::Values(
        ClaimCase{R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})", Dialect::modelopt, kNv},
        ClaimCase{R"({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"})", Dialect::modelopt,
                  kNv},
        ClaimCase{R"({"quant_method": "modelopt", "quant_algo": "FP8"})", kNone, kNone},
        ClaimCase{R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
                      "quantized_layers": {"a": {"quant_algo": "FP8"},
                                           "b": {"quant_algo": "NVFP4"}}})",
                  Dialect::modelopt, kNv},
        ClaimCase{R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
                      "quantized_layers": {"a": {"quant_algo": "mxfp4"},
                                           "b": {"quant_algo": "NVFP4"}}})",
                  Dialect::modelopt, kNone},
        ClaimCase{R"({"quant_method": "modelopt", "quant_algo": "mxfp4"})", Dialect::modelopt, kMx},
        ClaimCase{R"({"quant_method": "modelopt", "quant_algo": "W4A8_NVFP4_FP8",
                      "group_size": 32})",
                  Dialect::modelopt, kNone},
        ClaimCase{R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
                      "quantized_layers": {"a": {"quant_algo": "FP8"}}})",
                  kNone, kNone},
        ClaimCase{R"({"producer": {"name": "modelopt"}, "quant_algo": "NVFP4"})", Dialect::modelopt,
                  kNv},
        ClaimCase{R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"})",
                  Dialect::compressed_tensors, kNv},
        ClaimCase{R"({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"})",
                  Dialect::compressed_tensors, kMx},
        ClaimCase{R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})", kNone,
                  kNone},
        ClaimCase{R"({"quant_method": "compressed-tensors", "format": "mixed-precision",
                      "config_groups": {"g0": {"format": "float-quantized"},
                                        "g1": {"format": "nvfp4-pack-quantized"}}})",
                  Dialect::compressed_tensors, kNv},
        ClaimCase{R"({"quant_method": "quark", "global_quant_config":
                      {"weight": {"dtype": "fp4", "group_size": 32}}})",
                  Dialect::quark, kMx},
        ClaimCase{R"({"quant_method": "quark", "global_quant_config":
                      {"weight": {"dtype": "fp8_e4m3"}},
                      "layer_quant_config": {"*experts*": {"weight": [{"dtype": "fp4"}]}}})",
                  Dialect::quark, kMx},
        ClaimCase{R"({"quant_method": "quark", "global_quant_config":
                      {"weight": [{"dtype": "fp4", "group_size": 16},
                                  {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}]}})",
                  Dialect::quark, kNv},
        ClaimCase{R"({"quant_method": "quark", "global_quant_config": {"weight": null}})", kNone,
                  kNone},
        ClaimCase{R"({"quant_method": "fp8"})", kNone, kNone},
        ClaimCase{R"({"quant_method": "fp8", "expert_dtype": "fp4"})", Dialect::deepseek_v4, kMx},
        ClaimCase{R"({"quant_method": "awq", "bits": 4})", kNone, kNone}));

TEST(Config, SaysWhatQuarkMakesOfTheExpertsInput) {
  const auto input = [](const std::string& config) {
    return parsed(R"({"quantization_config": {"quant_method": "quark", )" + config + "}}")
        .model.quark_input;
  };
  const std::string weight = R"("weight": {"dtype": "fp4", "group_size": 32})";
  const auto global = [&](const std::string& more) {
    return input(R"("global_quant_config": {)" + weight + more + "}");
  };
  EXPECT_EQ(global(""), ExpertInput::unquantized);
  EXPECT_EQ(global(R"(, "input_tensors": null)"), ExpertInput::unquantized);
  EXPECT_EQ(global(R"(, "input_tensors": {"dtype": "fp4", "group_size": 32, "is_dynamic": true})"),
            ExpertInput::mxfp4);
  const std::string fp8 = R"({"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": )";
  EXPECT_EQ(global(R"(, "input_tensors": )" + fp8 + "false}"), ExpertInput::fp8_static);
  EXPECT_EQ(global(R"(, "input_tensors": )" + fp8 + "true}"), ExpertInput::other);
  // By layer: that of the layers with FP4.
  EXPECT_EQ(input(R"("global_quant_config": {"weight": {"dtype": "fp8_e4m3"}, "input_tensors": )" +
                  fp8 + R"(false}}, "layer_quant_config": {"*.experts.*": {)" + weight + "}}"),
            ExpertInput::unquantized);
  EXPECT_EQ(parsed(R"({"quantization_config": {"quant_method": "mxfp4"}})").model.quark_input,
            std::nullopt);
}

TEST(Config, KnowsDeepseekV4ByItsModelType) {
  const ModelFacts facts =
      parsed(R"({"model_type": "deepseek_v4", "quantization_config": {"quant_method": "fp8"}})");
  EXPECT_EQ(facts.claims.at(0).dialect, Dialect::deepseek_v4);
  EXPECT_EQ(parsed(R"({"model_type": "deepseek_v4", "expert_dtype": "fp8",
                       "quantization_config": {"quant_method": "fp8"}})")
                .claims.at(0)
                .dialect,
            std::nullopt);
}

TEST(Config, RefusesFieldsOfTheWrongTypeByName) {
  for (const auto& [text, field] :
       {std::pair{R"({"hidden_size": "2880"})", "hidden_size"},
        std::pair{R"({"hidden_size": -1})", "hidden_size"},
        std::pair{R"({"num_experts": 1.5})", "num_experts"},
        std::pair{R"({"moe_intermediate_size": [1, "2"]})", "moe_intermediate_size"},
        std::pair{R"({"moe_intermediate_size": []})", "moe_intermediate_size"},
        std::pair{R"({"thinker_config": []})", "thinker_config"},
        std::pair{R"({"thinker_config": {"text_config": 1}})", "text_config"},
        std::pair{R"({"model_type": 3})", "model_type"},
        std::pair{R"({"text_config": []})", "text_config"},
        std::pair{R"({"swiglu_limit": "7"})", "swiglu_limit"},
        std::pair{R"({"swiglu_alpha": [1.702]})", "swiglu_alpha"},
        std::pair{R"({"activation_situ_beta": true})", "activation_situ_beta"},
        std::pair{R"({"quantization_config": "nvfp4"})", "quantization_config"},
        std::pair{R"({"quantization_config": {"quant_method": 4}})", "quant_method"},
        std::pair{R"({"quantization_config": {"quant_method": "modelopt", "ignore": {}}})",
                  "ignore"},
        std::pair{R"({"quantization_config": {"quant_method": "modelopt", "ignore": [1]}})",
                  "ignore"},
        std::pair{R"({"quantization_config": {"quant_method": "modelopt",
                      "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": 1}}}})",
                  "quant_algo"},
        std::pair{R"({"quantization_config": {"quant_method": "compressed-tensors",
                      "config_groups": {"a": {"format": 1}}}})",
                  "format"},
        std::pair{R"({"quantization_config": {"quant_method": "quark",
                      "global_quant_config": {"weight": {"dtype": 1}}}})",
                  "dtype"}}) {
    const Error why = refused(text);
    EXPECT_EQ(why.id, "config.type") << text;
    EXPECT_EQ(why.tensor, field) << text;
    EXPECT_EQ(why.code, ErrorCode::invalid_input);
  }
  EXPECT_EQ(refused("[]").id, "config.type");
}

TEST(Config, ReadsHfQuantConfig) {
  const auto json = parse_json(R"({"producer": {"name": "modelopt", "version": "0.40"},
      "quantization": {"quant_algo": "NVFP4", "group_size": 16,
                       "exclude_modules": ["lm_head", "model.layers.0*"]}})");
  ASSERT_TRUE(json);
  const auto claim = parse_hf_quant_config(*json);
  ASSERT_TRUE(claim);
  EXPECT_EQ(claim->dialect, Dialect::modelopt);
  EXPECT_NE(claim->excluded.find("model.layers.0.mlp.experts.0.up_proj"), nullptr);
  EXPECT_EQ(claim->excluded.find("model.layers.1.mlp.experts.0.up_proj"), nullptr);
  EXPECT_EQ(parse_hf_quant_config(*parse_json("{}"))->dialect, std::nullopt);
  EXPECT_FALSE(parse_hf_quant_config(*parse_json("3")));
  EXPECT_FALSE(parse_hf_quant_config(*parse_json(R"({"quantization": 1})")));
  EXPECT_FALSE(parse_hf_quant_config(*parse_json(R"({"producer": 1})")));
}

TEST(Config, UnderstandsRegularExpressions) {
  Exclusions excluded;
  excluded.add("re:.*mlp\\.gate$");
  excluded.add("re:^lm_head");
  excluded.add("re:.*experts\\.[0-9]+\\.down");
  excluded.add("re:(?!model).*");  // not understood: left to the tensors
  EXPECT_NE(excluded.find("model.layers.3.mlp.gate"), nullptr);
  EXPECT_EQ(excluded.find("model.layers.3.mlp.gate_proj"), nullptr);
  EXPECT_NE(excluded.find("lm_head.weight"), nullptr);
  EXPECT_NE(excluded.find("model.layers.3.mlp.experts.0.down_proj"), nullptr);
  EXPECT_EQ(excluded.find("model.layers.3.mlp.experts.0.up_proj"), nullptr);
  excluded.add("model.layers.5.mlp");
  EXPECT_EQ(*excluded.find("model.layers.5.mlp.experts.0.up_proj"), "model.layers.5.mlp");
  EXPECT_EQ(excluded.unparsed(), "re:(?!model).*");
}

TEST(Config, PatternsThatAreNotUnderstoodAreKnown) {
  for (const auto& [pattern, is_read] :
       {std::pair{"re:.*[gq]ate$", true}, std::pair{"model.layers.*.mlp", true},
        std::pair{"lm_head", true}, std::pair{"re:(?<!x).*", false},
        std::pair{"*experts.[0-3].*", false}, std::pair{"model.layers.[01].mlp", false}}) {
    Exclusions listed;
    listed.add(pattern);
    EXPECT_EQ(listed.unparsed(), is_read ? "" : pattern);
  }
}

TEST(Config, ReadsTheRoutersScoresUnderAllTheirNames) {
  for (const char* key : {"scoring_func", "score_function", "score_func", "router_score_function",
                          "moe_router_activation_func", "expert_selection_fn"})
    EXPECT_EQ(parsed(R"({")" + std::string(key) + R"(": "tanh"})").model.scoring, "tanh") << key;
  EXPECT_EQ(parsed(R"({"scoring_func": "sigmoid", "score_func": "sigmoid"})").model.scoring,
            "sigmoid");
  EXPECT_EQ(parsed(R"({"scoring_func": "softmax", "score_func": "sigmoid"})").model.scoring,
            "softmax and sigmoid");
}

TEST(Config, ReadsTheRoutersChoiceAndSoftcap) {
  EXPECT_EQ(parsed(R"({"topk_method": "noaux_tc"})").model.topk_method, "noaux_tc");
  const ModelConfig greedy = parsed(R"({"topk_method": "greedy", "n_group": 8})").model;
  EXPECT_EQ(greedy.groups, 1u);
  for (const char* key : {"router_logit_softcapping", "moe_router_logit_softcapping"}) {
    const std::string before = R"({")" + std::string(key) + R"(": )";
    EXPECT_EQ(parsed(before + "30.0}").model.router_softcap, 30.0) << key;
    for (const char* none : {"0}", "0.0}", "null}"})
      EXPECT_EQ(parsed(before + none).model.router_softcap, std::nullopt) << key;
  }
  const std::vector<tensor::GgufField> fields{
      {"general.architecture", tensor::GgufType::string, std::string("grok")},
      {"grok.router_logit_softcapping", tensor::GgufType::f32, 30.0}};
  EXPECT_EQ(facts_from_gguf(fields)->model.router_softcap, 30.0);
}

TEST(Config, ReadsTheRouterFromGgufMetadata) {
  using tensor::GgufField;
  using tensor::GgufType;
  std::vector<GgufField> fields{
      {"general.architecture", GgufType::string, std::string("deepseek2")}};
  const auto first = facts_from_gguf(fields);
  ASSERT_TRUE(first) << text(first.why());
  EXPECT_EQ(first->model.scoring, "softmax");  // files of DeepSeek-V2 say nothing
  EXPECT_EQ(first->model.renormalizes, false);
  fields.push_back({"deepseek2.expert_gating_func", GgufType::u32, std::uint64_t{2}});
  fields.push_back({"deepseek2.expert_weights_norm", GgufType::boolean, true});
  fields.push_back({"deepseek2.expert_weights_scale", GgufType::f32, 2.5});
  fields.push_back({"deepseek2.expert_group_count", GgufType::u32, std::uint64_t{8}});
  fields.push_back({"deepseek2.expert_group_used_count", GgufType::u32, std::uint64_t{4}});
  const auto facts = facts_from_gguf(fields);
  ASSERT_TRUE(facts) << text(facts.why());
  EXPECT_EQ(facts->model.scoring, "sigmoid");
  EXPECT_EQ(facts->model.renormalizes, true);
  EXPECT_EQ(facts->model.routed_scale, 2.5);
  EXPECT_EQ(facts->model.groups, 8u);
  EXPECT_EQ(facts->model.chosen_groups, 4u);
  // A kept config.json says all of it in its own words.
  fields.push_back(
      {"fp4moe.config_json", GgufType::string,
       std::string(R"({"model_type": "kimi_linear", "routed_scaling_factor": 2.446})")});
  const auto kept = facts_from_gguf(fields);
  ASSERT_TRUE(kept) << text(kept.why());
  EXPECT_EQ(kept->model.model_type, "kimi_linear");
  EXPECT_EQ(kept->model.routed_scale, 2.446);
  EXPECT_TRUE(kept->claims.empty());
}

TEST(Config, ReadsGgufMetadata) {
  using tensor::GgufType;
  const std::vector<tensor::GgufField> fields{
      {"general.architecture", GgufType::string, std::string("gpt-oss")},
      {"gpt-oss.block_count", GgufType::u32, std::uint64_t{24}},
      {"gpt-oss.expert_count", GgufType::u32, std::uint64_t{32}},
      {"gpt-oss.expert_used_count", GgufType::i32, std::int64_t{4}},
      {"gpt-oss.embedding_length", GgufType::u32, std::uint64_t{2880}},
      {"gpt-oss.feed_forward_length", GgufType::u32, std::uint64_t{1}},
      {"gpt-oss.expert_feed_forward_length", GgufType::u32, std::uint64_t{2880}}};
  const auto facts = facts_from_gguf(fields);
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->model.model_type, "gpt-oss");
  EXPECT_EQ(facts->model.experts, 32u);
  EXPECT_EQ(facts->model.top_k, 4u);
  EXPECT_EQ(facts->model.hidden, 2880u);
  EXPECT_EQ(facts->model.intermediate, 2880u);

  auto wrong = fields;
  wrong[2].value = std::string("many");
  EXPECT_EQ(facts_from_gguf(wrong).why().id, "config.type");
  wrong[2].value = std::int64_t{-1};
  EXPECT_EQ(facts_from_gguf(wrong).why().tensor, "gpt-oss.expert_count");
  wrong[0].value = std::uint64_t{1};
  EXPECT_EQ(facts_from_gguf(wrong).why().tensor, "general.architecture");
  wrong = fields;
  wrong[6].value = std::vector<std::uint64_t>{0, 2880};  // one for each layer
  EXPECT_TRUE(facts_from_gguf(wrong));
}

class ConfigFiles : public ::testing::Test {
 protected:
  ConfigFiles() {
    testing::write_safetensors(folder_ / "model.safetensors",
                               {{"a", tensor::DType::u8, {1}, testing::Bytes(1)}});
  }
  Result<ModelFacts> read() const {
    const auto store = tensor::Store::open(folder_.path());
    EXPECT_TRUE(store);
    return read_facts(*store);
  }
  TemporaryFolder folder_{};
};

TEST_F(ConfigFiles, AreOptional) {
  const auto facts = read();
  ASSERT_TRUE(facts);
  EXPECT_FALSE(facts->has_config);
}

TEST_F(ConfigFiles, AreBothRead) {
  write_text(folder_ / "config.json",
             R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}})");
  write_text(folder_ / "hf_quant_config.json", R"({"quantization": {"quant_algo": "FP8"}})");
  const auto facts = read();
  ASSERT_TRUE(facts);
  ASSERT_EQ(facts->claims.size(), 2u);
  EXPECT_EQ(facts->claims[0].source, "config.json");
  EXPECT_EQ(facts->claims[1].source, "hf_quant_config.json");
}

TEST_F(ConfigFiles, MayHoldPythonsInfinity) {
  write_text(folder_ / "config.json",
             R"({"time_step_limit": [0.0, Infinity, -Infinity, NaN], "name": "NaN \" Infinity",
                 "hidden_size": 64})");
  const auto facts = read();
  ASSERT_TRUE(facts) << text(facts.why());
  EXPECT_EQ(facts->model.hidden, 64u);
}

TEST_F(ConfigFiles, AreNamedInTheirErrors) {
  write_text(folder_ / "config.json", "{");
  EXPECT_EQ(read().why().path, folder_ / "config.json");
  write_text(folder_ / "config.json", R"({"hidden_size": true})");
  EXPECT_EQ(read().why().path, folder_ / "config.json");
  write_text(folder_ / "config.json", "{}");
  write_text(folder_ / "hf_quant_config.json", "[]");
  EXPECT_EQ(read().why().path, folder_ / "hf_quant_config.json");
}

TEST_F(ConfigFiles, MustBeFiles) {
  std::filesystem::create_directory(folder_ / "config.json");
  EXPECT_EQ(read().why().id, "file.not_regular");
}

}  // namespace config_test
}  // namespace fp4moe::checkpoint
