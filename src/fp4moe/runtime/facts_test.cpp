#include "fp4moe/runtime/facts.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/convert/folder/converted_folder.hpp"
#include "fp4moe/runtime/run_input.hpp"
#include "support/converted_folder.hpp"
#include "support/files.hpp"

namespace fp4moe::runtime {
namespace facts_test {

using moe::routing::Method;
using tensor::DType;
using tensor::testing::TemporaryFolder;
using tensor::testing::write_text;

constexpr std::uint64_t kExperts = 4, kHidden = 8;

// Tensors of float32 by name, all of one value.
class Found {
 public:
  void add(const std::string& name, tensor::Shape shape, DType dtype = DType::f32) {
    const std::uint64_t bytes = *tensor::byte_count(dtype, shape);
    all_[name] = {dtype, std::move(shape), std::vector<std::byte>(bytes)};
  }
  ListTensors lister() const {
    return [this](std::string_view prefix) {
      std::vector<std::string> names;
      for (const auto& [name, tensor] : all_)
        if (name.starts_with(prefix)) names.push_back(name);
      return names;
    };
  }
  FindTensor finder() const {
    return [this](std::string_view name) -> std::optional<tensor::TensorView> {
      const auto at = all_.find(std::string(name));
      if (at == all_.end()) return std::nullopt;
      return tensor::TensorView{at->second.dtype, at->second.shape, at->second.bytes};
    };
  }

 private:
  struct Tensor {
    DType dtype = DType::f32;
    tensor::Shape shape{};
    std::vector<std::byte> bytes{};
  };
  std::map<std::string, Tensor> all_{};
};

LayerFacts facts_of(checkpoint::ModelConfig config, const Found& found) {
  config.top_k = 2;
  const checkpoint::MoeShape shape{.experts = kExperts, .hidden = kHidden, .intermediate = 32};
  const auto facts = layer_facts(config, shape, "model.layers.0.mlp.", checkpoint::SplitRule::equal,
                                 found.finder(), found.lister());
  EXPECT_TRUE(facts) << text(facts.why());
  return facts ? *facts : LayerFacts{};
}

Found router(bool has_bias = false) {
  Found found;
  found.add("model.layers.0.mlp.gate.weight", {kExperts, kHidden});
  if (has_bias) found.add("model.layers.0.mlp.gate.e_score_correction_bias", {kExperts});
  return found;
}

TEST(Facts, FamiliesHaveTheirRouters) {
  struct Case {
    checkpoint::ModelConfig config;
    bool has_bias;
    Method method;
  };
  for (const Case& row : {
           Case{{.model_type = "qwen3_moe"}, false, Method::renormalize},
           Case{{.model_type = "qwen3_moe", .renormalizes = false}, false, Method::softmax_topk},
           Case{{.model_type = "qwen2_moe"}, false, Method::softmax_topk},
           Case{
               {.model_type = "qwen2_moe", .renormalizes = true}, false, Method::renormalize_naive},
           Case{{.model_type = "qwen3_5_moe_text"}, false, Method::renormalize_naive},
           Case{{.model_type = "granitemoe"}, false, Method::renormalize},
           Case{{.model_type = "kimi_linear", .routed_scale = 2.446}, true, Method::deepseek_v3},
           Case{{.model_type = "ernie4_5_moe"}, true, Method::softmax_bias},
           Case{{.model_type = "deepseek_v4", .scoring = "sigmoid"}, true, Method::deepseek_v3},
           Case{{.model_type = "lfm2_moe"}, true, Method::deepseek_v3},
           Case{
               {.model_type = "deepseek_v3", .topk_method = "noaux_tc"}, true, Method::deepseek_v3},
           Case{{.model_type = "deepseek_v2", .topk_method = "group_limited_greedy"},
                false,
                Method::grouped_softmax},
           Case{{.model_type = "deepseek_v2", .topk_method = "greedy"},
                false,
                Method::grouped_softmax},
           Case{{.model_type = "jamba"}, false, Method::softmax_topk},
           Case{{.model_type = "hunyuan-moe"}, false, Method::renormalize_naive},
           Case{{.model_type = "ernie4_5-moe"}, true, Method::softmax_bias},
           Case{{.model_type = "minimax_m3_vl",
           .routed_scale = 2.0,
           .scoring = "sigmoid",
           .activation = "silu"},
                true,
                Method::deepseek_v3},
           Case{{.model_type = "new",
           .renormalizes = true,
           .scoring = "sigmoid",
           .activation = "silu"},
                true,
                Method::deepseek_v3},
           Case{{.model_type = "new",
           .renormalizes = true,
           .scoring = "sigmoid",
           .activation = "silu"},
                false,
                Method::sigmoid_renorm},
           Case{{.model_type = "new",
           .renormalizes = false,
           .scoring = "sigmoid",
           .activation = "silu"},
                false,
                Method::sigmoid},
           Case{{.model_type = "new",
           .routed_scale = 2.0,
           .renormalizes = false,
           .scoring = "softmax",
           .activation = "silu"},
                false,
                Method::grouped_softmax},
       }) {
    const LayerFacts facts = facts_of(row.config, router(row.has_bias));
    EXPECT_FALSE(facts.no_routing) << row.config.model_type << ": " << text(*facts.no_routing);
    EXPECT_EQ(facts.router.method, row.method) << row.config.model_type;
    EXPECT_EQ(facts.router.bias.empty(), !row.has_bias) << row.config.model_type;
    EXPECT_EQ(facts.router.scale, row.config.routed_scale.value_or(1.0));
  }
}

TEST(Facts, ARouterThatIsNotKnownIsNotGuessed) {
  struct Case {
    checkpoint::ModelConfig config;
    bool has_bias;
    std::string_view word;
  };
  for (const Case& row : {
           Case{{.model_type = "new", .activation = "silu"}, false, "not known"},
           Case{{.model_type = "new", .renormalizes = true, .activation = "silu"},
                false,
                "not known"},
           Case{{.model_type = "new", .renormalizes = true, .activation = "silu"},
                true,
                "not known"},
           Case{{.model_type = "new", .scoring = "tanh", .activation = "silu"}, false, "tanh"},
           Case{{.model_type = "new", .scoring = "sigmoid", .activation = "silu"},
                false,
                "no norm_topk_prob"},
           Case{{.model_type = "new", .scoring = "softmax", .activation = "silu"},
                true,
                "no norm_topk_prob"},
           Case{{.model_type = "new",
           .renormalizes = false,
           .scoring = "sigmoid",
           .activation = "silu"},
                true,
                "norm_topk_prob is false"},
           Case{{.model_type = "qwen3_moe", .routed_scale = 2.0}, false, "routed_scaling_factor"},
           Case{{.model_type = "qwen3_moe"}, true, "correction bias"},
           Case{{.model_type = "qwen3_moe", .groups = 2}, false, "groups"},
           Case{{.model_type = "deepseek_v3", .renormalizes = false}, true, "norm_topk_prob"},
           Case{{.model_type = "deepseek_v3", .topk_method = "by_hash"}, true, "by_hash"},
           Case{{.model_type = "deepseek_v3", .topk_method = "noaux_tc"},
                false,
                "no correction bias"},
           Case{{.model_type = "qwen3_moe", .scoring = "tanh"}, false, "tanh"},
           Case{{.model_type = "qwen3_moe", .router_softcap = 30.0}, false, "softcap of 30"},
       }) {
    const LayerFacts facts = facts_of(row.config, router(row.has_bias));
    ASSERT_TRUE(facts.no_routing) << row.config.model_type << " " << row.word;
    EXPECT_EQ(facts.no_routing->id, "facts.routing");
    EXPECT_NE(facts.no_routing->message.find(row.word), std::string::npos)
        << facts.no_routing->message;
  }
}

TEST(Facts, TheActivationIsTheConfigurationsOrTheFamilys) {
  using oracle::Activation;
  struct Case {
    checkpoint::ModelConfig config;
    Activation activation;
  };
  for (const Case& row : {
           Case{{.model_type = "qwen3_moe"}, Activation::silu},
           Case{{.model_type = "qwen3_moe", .activation = "gelu_pytorch_tanh"},
                Activation::gelu_tanh},
           Case{{.model_type = "gpt_oss", .activation = "silu"}, Activation::swigluoai},
           Case{{.model_type = "grok"}, Activation::gelu_tanh},
           Case{{.model_type = "new", .activation = "gelu"}, Activation::gelu},
           Case{{.model_type = "new", .activation = "swish"}, Activation::silu},
           Case{{.model_type = "new", .activation = "situ"}, Activation::situ},
           Case{{.model_type = "gpt_oss", .swiglu_alpha = 1.702, .activation = "silu"},
                Activation::swigluoai},
           Case{{.model_type = "new", .swiglu_alpha = 1.5, .activation = "swigluoai"},
                Activation::swigluoai},
       }) {
    EXPECT_EQ(facts_of(row.config, router()).model.layer.activation, row.activation)
        << row.config.model_type << " " << row.config.activation;
  }
}

// Found is what the configuration says, so that the user sees what to change.
TEST(Facts, AnActivationThatIsNotOursIsRefusedInTheConfigurationsWords) {
  struct Case {
    checkpoint::ModelConfig config;
    std::string_view found;
  };
  for (const Case& row : {
           Case{{}, "not said, model_type \"\""},
           Case{{.model_type = "new"}, "not said, model_type \"new\""},
           Case{{.model_type = "qwen3_moe", .activation = "quick_gelu"},
                "quick_gelu, model_type \"qwen3_moe\""},
           Case{{.model_type = "new", .swiglu_alpha = 1.702, .activation = "silu"},
                "silu, swiglu_alpha 1.702, model_type \"new\""},
           Case{{.model_type = "new", .has_layer_limits = true, .activation = "silu"},
                "silu, swiglu_limits, model_type \"new\""},
           Case{{.model_type = "qwen3_moe", .has_layer_limits = true},
                "swiglu_limits, model_type \"qwen3_moe\""},
           Case{{.model_type = "gpt_oss", .swiglu_alpha = 2.0, .activation = "silu"},
                "silu, swiglu_alpha 2, model_type \"gpt_oss\""},
           Case{{.model_type = "gpt_oss", .swiglu_beta = 0.5},
                "swiglu_beta 0.5, model_type \"gpt_oss\""},
       }) {
    checkpoint::ModelConfig config = row.config;
    config.top_k = 2;
    const checkpoint::MoeShape shape{.experts = kExperts, .hidden = kHidden, .intermediate = 32};
    const Found found = router();
    const auto refused = layer_facts(config, shape, "model.layers.0.mlp.",
                                     checkpoint::SplitRule::equal, found.finder(), found.lister());
    ASSERT_FALSE(refused) << row.found;
    EXPECT_EQ(refused.why().id, "facts.activation");
    EXPECT_EQ(refused.why().found, row.found);
  }
}

// gpt-oss's own folder, original/: its config.json has neither model_type nor hidden_act.
TEST(Facts, OpenaisOwnFolderComputesGptOss) {
  const TemporaryFolder folder;
  const std::string source = folder / "original", out = folder / "converted";
  convert::testing::make_checkpoint(source, checkpoint::WeightFormat::mxfp4, {},
                                    checkpoint::Dialect::openai);
  write_text(source + "/config.json",
             R"({"num_hidden_layers": 1, "num_experts": 3, "experts_per_token": 2,
                 "hidden_size": 128, "intermediate_size": 128, "swiglu_limit": 7.0})");
  const auto checkpoint = checkpoint::Checkpoint::open(source);
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  const auto converted =
      convert::testing::convert(source, out, convert::testing::recipe_of("cpu_native.mxfp4"));
  ASSERT_TRUE(converted) << text(converted.why());
  const auto opened = convert::ConvertedFolder::open(out);
  ASSERT_TRUE(opened) << text(opened.why());
  for (const auto& facts : {layer_facts(*checkpoint, 0), layer_facts(*opened, 0)}) {
    ASSERT_TRUE(facts) << text(facts.why());
    EXPECT_EQ(facts->model.family, "gpt_oss");
    EXPECT_EQ(facts->model.layer.activation, oracle::Activation::swigluoai);
    EXPECT_EQ(facts->router.method, Method::renormalize);
    EXPECT_TRUE(facts->router.bias.empty());  // the router's own bias belongs to its logits
    EXPECT_TRUE(facts->has_router_weights);
    EXPECT_FALSE(facts->no_routing);
  }
}

// docs/files.md, "Links".
TEST(Facts, AConvertedFoldersConfigurationMayNotLinkOutOfIt) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  const std::string source = folder / "source", out = folder / "models--x/snapshots/abc";
  convert::testing::make_checkpoint(source, checkpoint::WeightFormat::mxfp4);
  fs::create_directories(folder / "models--x/snapshots");
  fs::create_directories(folder / "models--x/blobs");
  const auto converted =
      convert::testing::convert(source, out, convert::testing::recipe_of("cpu_native.mxfp4"));
  ASSERT_TRUE(converted) << text(converted.why());
  const auto id_of = [](const std::string& path) {
    const auto opened = convert::ConvertedFolder::open(path);
    EXPECT_TRUE(opened);
    const auto facts = layer_facts(*opened, 0);
    return facts ? std::string("ok") : facts.why().id;
  };
  EXPECT_EQ(id_of(out), "ok");
  fs::rename(out + "/config.json", folder / "models--x/blobs/1");
  fs::create_symlink("../../blobs/1", out + "/config.json");
  EXPECT_EQ(id_of(out), "ok") << "a Hugging Face cache";
  fs::rename(folder / "models--x/blobs/1", folder / "elsewhere");
  fs::remove(out + "/config.json");
  fs::create_symlink(folder / "elsewhere", out + "/config.json");
  EXPECT_EQ(id_of(out), "store.link");
}

TEST(Facts, LayersThatChooseByTokenIdsWantChosenExperts) {
  Found found = router();
  found.add("model.layers.0.mlp.gate.tid2eid", {16, 2}, DType::i64);
  const LayerFacts facts = facts_of({.model_type = "deepseek_v4"}, found);
  ASSERT_TRUE(facts.no_routing);
  EXPECT_NE(facts.no_routing->message.find("token ids"), std::string::npos);

  RunInput given{.tokens = 1, .hidden = kHidden};
  given.x.resize(kHidden);
  const auto refused = route_for(given, facts, found.finder(), 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "facts.routing");
  // Seeded tokens mean nothing anyway; their experts are seeded too, and the report says so.
  const auto seeded = seeded_input(3, kHidden, 1);
  ASSERT_TRUE(seeded);
  const auto routed = route_for(*seeded, facts, found.finder(), 1);
  ASSERT_TRUE(routed) << text(routed.why());
  EXPECT_EQ(routed->ids.size(), 6u);
  EXPECT_NE(routed->how.find("seeded experts"), std::string::npos);
}

TEST(Facts, ATensorOfTheRouterThatIsNotAppliedIsRefused) {
  struct Case {
    std::string_view model_type, tensor;
  };
  const std::string prefix = "model.layers.0.mlp.";
  for (const Case& row : {
           Case{"qwen3_moe", "gate.scale"},
           Case{"qwen3_moe", "gate.weight_scale"},
           Case{"qwen3_moe", "gate.bias_2"},
           Case{"qwen3_moe", "gate.wg.weight"},
           Case{"qwen3_moe", "router_correction"},
           Case{"qwen3_moe", "experts.e_score_correction_bias"},
           Case{"deepseek_v3", "gate.bias"},  // beside e_score_correction_bias
           Case{"deepseek_v3", "expert_bias"},
           Case{"gpt_oss", "router.per_expert_scale"},
           Case{"gpt_oss", "per_expert_scale"},
       }) {
    const bool has_bias = row.model_type == "deepseek_v3";
    Found found = router(has_bias);
    if (row.model_type == "gpt_oss") found = Found();
    found.add(prefix + "router.weight", {kExperts, kHidden});
    const std::string name = prefix + std::string(row.tensor);
    found.add(name, {kExperts});
    const LayerFacts facts = facts_of({.model_type = std::string(row.model_type)}, found);
    ASSERT_TRUE(facts.no_routing) << row.tensor;
    EXPECT_EQ(facts.no_routing->id, "facts.routing");
    EXPECT_NE(facts.no_routing->message.find("nothing here applies"), std::string::npos);
    EXPECT_TRUE(has_bias || facts.no_routing->tensor == name) << facts.no_routing->tensor;
    const auto loaded = load_router(facts, found.finder());
    ASSERT_FALSE(loaded) << row.tensor;
    EXPECT_EQ(loaded.why().id, "facts.router");
  }
}

TEST(Facts, OtherTensorsOfALayerAreNotTheRouters) {
  Found found = router(true);
  for (const char* name : {"shared_expert_gate.weight", "shared_experts.up_proj.weight_scale",
                           "experts.0.up_proj.weight_scale", "gate_proj.scale"})
    found.add("model.layers.0.mlp." + std::string(name), {1});
  found.add("model.layers.0.self_attn.gate.scale", {1});
  const LayerFacts facts = facts_of({.model_type = "deepseek_v3"}, found);
  EXPECT_FALSE(facts.no_routing) << text(*facts.no_routing);
  EXPECT_EQ(facts.router_tensors.size(), 2u);
}

TEST(Facts, RoutersOfFilesAreListed) {
  const TemporaryFolder folder;
  const std::string source = folder / "source", out = folder / "converted";
  convert::testing::make_checkpoint(source, checkpoint::WeightFormat::mxfp4);
  const auto converted =
      convert::testing::convert(source, out, convert::testing::recipe_of("cpu_native.mxfp4"));
  ASSERT_TRUE(converted) << text(converted.why());
  const auto checkpoint = checkpoint::Checkpoint::open(source);
  const auto opened = convert::ConvertedFolder::open(out);
  ASSERT_TRUE(checkpoint && opened);
  const std::vector<std::string> expected{"model.layers.0.mlp.router.bias",
                                          "model.layers.0.mlp.router.weight"};
  EXPECT_EQ(lister(*checkpoint)("model.layers.0.mlp.router."), expected);
  std::vector<std::string> listed = lister(*opened)("model.layers.0.mlp.router.");
  std::ranges::sort(listed);
  EXPECT_EQ(listed, expected);
}

TEST(Facts, GivenTokensAreNotRoutedByNoise) {
  Found found;
  found.add("model.layers.0.mlp.my_router.weight", {kExperts, kHidden});
  const LayerFacts facts = facts_of({.model_type = "qwen3_moe"}, found);
  EXPECT_FALSE(facts.has_router_weights);
  RunInput given{.tokens = 1, .hidden = kHidden, .x = std::vector<std::uint16_t>(kHidden)};
  const auto refused = route_for(given, facts, found.finder(), 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "facts.router");
  EXPECT_NE(refused.why().remedy.find("router_logits"), std::string::npos);
  given.logits.resize(kExperts);
  EXPECT_TRUE(route_for(given, facts, found.finder(), 1));
  const auto seeded = seeded_input(1, kHidden, 1);
  ASSERT_TRUE(seeded);
  const auto routed = route_for(*seeded, facts, found.finder(), 1);
  ASSERT_TRUE(routed) << text(routed.why());
  EXPECT_EQ(routed->how, "seeded logits");
}

TEST(Facts, LatentExpertsHaveARouterOfTheHiddenState) {
  Found found;
  found.add("model.layers.0.mlp.gate.weight", {kExperts, 2 * kHidden});
  const LayerFacts facts =
      facts_of({.model_type = "qwen3_moe", .router_hidden = 2 * kHidden}, found);
  RunInput input{.tokens = 2, .hidden = kHidden};
  input.x.resize(2 * kHidden);
  const auto refused = route_for(input, facts, found.finder(), 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "facts.router");
  EXPECT_NE(refused.why().remedy.find("router_hidden_states"), std::string::npos);
  input.router_x.resize(2 * 2 * kHidden, 1.0f);
  const auto routed = route_for(input, facts, found.finder(), 1);
  ASSERT_TRUE(routed) << text(routed.why());
  EXPECT_EQ(routed->how, "the model's router");
  EXPECT_EQ(routed->logits.size(), 2 * kExperts);
}

}  // namespace facts_test
}  // namespace fp4moe::runtime
