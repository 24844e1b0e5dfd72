#include "fp4moe/plan/model.hpp"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/synth/synth.hpp"
#include "support/tiny_model.hpp"

namespace fp4moe::plan {
namespace model_test {

using checkpoint::testing::FileTensor;
using tensor::DType;
using tensor::testing::TemporaryFolder;

void make(const std::string& path, checkpoint::SynthOptions options) {
  options.experts = 4;
  options.hidden = options.intermediate = 64;
  const auto result = checkpoint::synth(options, path);
  ASSERT_TRUE(result) << text(result.why());
}

// One gpt-oss layer of zeros.
void add_layer(std::vector<FileTensor>& tensors, std::size_t index, std::uint64_t intermediate) {
  constexpr std::uint64_t kExperts = 2, kHidden = 64;
  const std::string stem = "model.layers." + std::to_string(index) + ".mlp.experts.";
  const auto add = [&](const std::string& name, const tensor::Shape& shape) {
    std::size_t bytes = 1;
    for (const std::uint64_t extent : shape) bytes *= extent;
    tensors.push_back({stem + name, DType::u8, shape, checkpoint::testing::Bytes(bytes)});
  };
  add("gate_up_proj_blocks", {kExperts, 2 * intermediate, kHidden / 32, 16});
  add("gate_up_proj_scales", {kExperts, 2 * intermediate, kHidden / 32});
  add("down_proj_blocks", {kExperts, kHidden, intermediate / 32, 16});
  add("down_proj_scales", {kExperts, kHidden, intermediate / 32});
}

TEST(Model, OfTheTableIsCompleteForEveryRowAndFormat) {
  for (const checkpoint::ModelRow& row : checkpoint::models()) {
    for (const auto format : {checkpoint::WeightFormat::mxfp4, checkpoint::WeightFormat::nvfp4}) {
      const Model model = model_from_row(row, format);
      EXPECT_EQ(model.layers, checkpoint::moe_layer_count(row));
      EXPECT_EQ(model.shape.format, format);
      EXPECT_EQ(model.layer.gated, oracle::is_gated(model.layer.activation)) << row.name;
      EXPECT_TRUE(model.layer.activation == oracle::Activation::silu || row.activation != "silu");
      EXPECT_EQ(model.rule == checkpoint::SplitRule::ceil_blocks,
                row.model_type == "gpt_oss" && format == checkpoint::WeightFormat::mxfp4);
    }
    EXPECT_EQ(model_from_row(row, {}).shape.format, row.format);
  }
}

TEST(Model, OfACheckpointIsReadFromItsHeaders) {
  const TemporaryFolder folder;
  make(folder / "gpt-oss", {.model = "gpt-oss-20b", .layers = 3});
  const auto gpt_oss = model_from_checkpoint(folder / "gpt-oss");
  ASSERT_TRUE(gpt_oss) << text(gpt_oss.why());
  EXPECT_EQ(gpt_oss->layers, 3u);
  EXPECT_EQ(gpt_oss->shape.experts, 4u);
  EXPECT_EQ(gpt_oss->rule, checkpoint::SplitRule::ceil_blocks);
  EXPECT_EQ(gpt_oss->layer.activation, oracle::Activation::swigluoai);
  EXPECT_TRUE(gpt_oss->layer.has_bias);
  EXPECT_TRUE(gpt_oss->notes.empty());

  make(folder / "packed",
       {.model = "qwen3-30b-a3b", .dialect = checkpoint::Dialect::compressed_tensors, .layers = 1});
  const auto packed = model_from_checkpoint(folder / "packed");
  ASSERT_TRUE(packed) << text(packed.why());
  EXPECT_EQ(packed->names, oracle::BufferNames::compressed_tensors);
  EXPECT_EQ(packed->rule, checkpoint::SplitRule::equal);
  EXPECT_EQ(packed->layer.activation, oracle::Activation::silu);
}

TEST(Model, OfAnUnknownFamilySaysWhatIsAssumed) {
  const TemporaryFolder folder;
  std::vector<FileTensor> tensors;
  add_layer(tensors, 0, 64);
  checkpoint::testing::write_safetensors(folder / "model.safetensors", tensors);

  const auto model = model_from_checkpoint(folder / "model.safetensors");
  ASSERT_TRUE(model) << text(model.why());
  ASSERT_EQ(model->notes.size(), 1u);
  EXPECT_NE(model->notes[0].find("silu is assumed"), std::string::npos);
}

TEST(Model, OfLayersWithDifferentShapesIsRefused) {
  const TemporaryFolder folder;
  std::vector<FileTensor> tensors;
  add_layer(tensors, 0, 64);
  add_layer(tensors, 1, 96);
  checkpoint::testing::write_safetensors(folder / "model.safetensors", tensors);

  const auto refused = model_from_checkpoint(folder / "model.safetensors");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "plan.shapes") << text(refused.why());
  EXPECT_EQ(refused.why().code, ErrorCode::invalid_input);
}

TEST(Model, OfNoCheckpointIsTheFilesError) {
  EXPECT_FALSE(model_from_checkpoint("/nonexistent/model"));
}

// A config.json as hubs publish it, with `extra` put in.
std::string config_in(const TemporaryFolder& folder, std::string_view extra) {
  const std::string path = folder / "config.json";
  std::ofstream(path) << R"({"model_type": "gpt_oss", "num_hidden_layers": 36, "hidden_size": 2880,
    "intermediate_size": 2880, "num_local_experts": 128, "num_experts_per_tok": 4,
    "swiglu_limit": 7.0)"
                      << extra << "}";
  return path;
}

TEST(Model, OfAConfigurationIsThatOfTheTable) {
  const TemporaryFolder folder;
  const std::string path =
      config_in(folder, R"(, "quantization_config": {"quant_method": "mxfp4"})");

  for (const std::string& place : {path, folder.path()}) {
    const auto model = model_from_path(place, std::nullopt);
    ASSERT_TRUE(model) << text(model.why());
    const Model row = model_from_row(*checkpoint::find_model("gpt-oss-120b"), std::nullopt);
    EXPECT_EQ(model->shape, row.shape);
    EXPECT_EQ(model->layers, row.layers);
    EXPECT_EQ(model->rule, row.rule);
    EXPECT_EQ(model->family, row.family);
    EXPECT_EQ(model->layer.activation, row.layer.activation);
    EXPECT_EQ(model->layer.routing, row.layer.routing);
    EXPECT_EQ(model->layer.experts_per_token, row.layer.experts_per_token);
  }
}

TEST(Model, OfAConfigurationKnowsWhatModelOptSaysBesideIt) {
  const TemporaryFolder folder;
  const std::string path = config_in(folder, "");
  std::ofstream(folder / "hf_quant_config.json")
      << R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}})";

  const auto model = model_from_path(path, std::nullopt);

  ASSERT_TRUE(model) << text(model.why());
  EXPECT_EQ(model->shape.format, checkpoint::WeightFormat::nvfp4);
}

// docs/files.md, "Links".
TEST(Model, OfAConfigurationThatLinksOutOfItsFolderIsRefused) {
  const TemporaryFolder outside, folder;
  const std::string real =
      config_in(outside, R"(, "quantization_config": {"quant_method": "mxfp4"})");
  const auto id_of = [](const std::string& path) {
    const auto model = model_from_path(path, std::nullopt);
    return model ? std::string("ok") : model.why().id;
  };
  std::filesystem::create_symlink(real, folder / "config.json");
  EXPECT_EQ(id_of(folder.path()), "store.link");
  EXPECT_EQ(id_of(folder.path() + "/"), "store.link");
  EXPECT_EQ(id_of(folder / "config.json"), "ok") << "the user named it";

  std::filesystem::remove(folder / "config.json");
  config_in(folder, "");
  std::ofstream(outside / "secret.json")
      << R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}})";
  std::filesystem::create_symlink(outside / "secret.json", folder / "hf_quant_config.json");
  EXPECT_EQ(id_of(folder.path()), "store.link");
  EXPECT_EQ(id_of(folder / "config.json"), "store.link") << "what lies beside it was not named";
}

TEST(Model, OfAConfigurationMayLieInTheBlobsOfACache) {
  const TemporaryFolder folder;
  const std::string snapshot = folder / "models--x/snapshots/abc";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(folder / "models--x/blobs");
  const std::string real =
      config_in(folder, R"(, "quantization_config": {"quant_method": "mxfp4"})");
  std::filesystem::rename(real, folder / "models--x/blobs/1");
  std::filesystem::create_symlink("../../blobs/1", snapshot + "/config.json");
  for (const std::string& path : {snapshot, snapshot + "/config.json"}) {
    const auto model = model_from_path(path, std::nullopt);
    ASSERT_TRUE(model) << text(model.why());
    EXPECT_EQ(model->family, "gpt_oss");
  }
}

TEST(Model, ConfigurationsWithoutExpertsOrWithoutFp4AreRefusedInASentence) {
  const TemporaryFolder folder;
  const auto refused = [&](std::string_view text, std::string_view id, ErrorCode code) {
    std::ofstream(folder / "config.json") << text;
    const auto model = model_from_path(folder / "config.json", std::nullopt);
    ASSERT_FALSE(model) << text;
    EXPECT_EQ(model.why().id, id) << text;
    EXPECT_EQ(model.why().code, code) << text;
  };
  refused(R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008})",
          "plan.no_moe", ErrorCode::no_backend);
  refused("{}", "plan.no_moe", ErrorCode::no_backend);
  refused(R"({"num_experts": 8, "hidden_size": 0, "intermediate_size": 64})", "plan.no_moe",
          ErrorCode::no_backend);
  refused(R"({"num_experts": 8, "hidden_size": 64, "intermediate_size": 64,
              "quantization_config": {"quant_method": "fp8"}})",
          "plan.not_fp4", ErrorCode::no_backend);
  refused(R"({"num_experts": 8, "hidden_size": 64, "intermediate_size": 64})", "plan.not_fp4",
          ErrorCode::no_backend);
  refused(R"({"num_experts": 18446744073709551615, "hidden_size": 64, "intermediate_size": 64})",
          "plan.sizes", ErrorCode::invalid_input);
  refused(R"({"num_experts": "eight"})", "config.type", ErrorCode::invalid_input);
  refused("[]", "config.type", ErrorCode::invalid_input);

  const auto nowhere = model_from_path(folder / "nothing.json", std::nullopt);
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.why().id, "plan.path");
  EXPECT_EQ(nowhere.why().code, ErrorCode::failed);
}

// Quark's method asks vLLM's first entry, with the activations that its configuration names.
TEST(Model, QuarksMxfp4GoesThroughGptOssEntry) {
  const auto quark = [](std::optional<checkpoint::ExpertInput> input) {
    const checkpoint::ModelConfig config{.model_type = "qwen3_moe", .quark_input = input};
    return model_of_layer(config, {.format = checkpoint::WeightFormat::mxfp4, .experts = 8},
                          checkpoint::SplitRule::equal);
  };
  using checkpoint::ExpertInput;
  using oracle::ActivationKey;
  using oracle::PolicyDate;
  EXPECT_EQ(entry_of(quark(std::nullopt)), backends::Entry::generic);
  for (const auto& [input, key] : {std::pair{ExpertInput::unquantized, ActivationKey::none},
                                   {ExpertInput::fp8_static, ActivationKey::fp8_static_tensor},
                                   {ExpertInput::mxfp4, ActivationKey::mxfp4},
                                   {ExpertInput::other, ActivationKey::none}}) {
    const Model model = quark(input);
    EXPECT_EQ(entry_of(model), backends::Entry::gpt_oss);
    EXPECT_EQ(layer_for(model, PolicyDate::vllm_033).activation_key, key);
    EXPECT_EQ(layer_for(model, PolicyDate::august_22).activation_key, key);
    EXPECT_EQ(layer_for(model, PolicyDate::native).activation_key, ActivationKey::none);
  }
}

Model model_with(const checkpoint::ModelConfig& config,
                 checkpoint::RowOrder order = checkpoint::RowOrder::halves) {
  return model_of_layer(config, {.experts = 8, .hidden = 64, .intermediate = 64, .order = order},
                        checkpoint::SplitRule::equal);
}

TEST(Model, AnActivationThatIsNotKnownIsToldWithTheOneThatIsAssumed) {
  using oracle::Activation;
  struct Case {
    checkpoint::ModelConfig config;
    Activation assumed;
    std::string_view note;
  };
  for (const Case& row : {
           Case{{.model_type = "qwen3_moe", .activation = "mish"},
                Activation::silu,
                "the activation (mish) is not known here: activation silu is assumed"},
           // A family without a row in the table of models.
           Case{{.model_type = "granitemoe", .activation = "mish"},
                Activation::silu,
                "the activation (mish) is not known here: activation silu is assumed"},
           Case{
               {.model_type = "grok", .has_layer_limits = true},
               Activation::gelu_tanh,
               "the activation (swiglu_limits) is not known here: activation gelu_tanh is assumed"},
           Case{{.model_type = "new", .activation = "mish"},
                Activation::silu,
                "the activation (mish) is not known here: activation silu is assumed"},
           Case{{.model_type = "new"},
                Activation::silu,
                "the model's family is not known here: activation silu is assumed"},
           Case{{},
                Activation::silu,
                "the model's family is not known here: activation silu is assumed"},
       }) {
    const Model model = model_with(row.config);
    EXPECT_EQ(model.layer.activation, row.assumed) << row.note;
    ASSERT_EQ(model.notes.size(), 1u) << row.note;
    EXPECT_EQ(model.notes[0], row.note);
    EXPECT_FALSE(model.unread_activation.empty()) << row.note;
  }
  const Model ungated =
      model_with({.model_type = "new", .activation = "mish"}, checkpoint::RowOrder::single);
  EXPECT_EQ(ungated.layer.activation, Activation::relu2_no_mul);
  EXPECT_TRUE(model_with({.model_type = "qwen3_moe", .activation = "silu"}).notes.empty());
}

// MiniMax-M3: gpt-oss's formula with constants that the configuration names, gates before ups.
TEST(Model, SwigluoaiOfAnotherFamilyTakesTheConfigurationsConstants) {
  const checkpoint::ModelConfig config{.model_type = "minimax_m3_vl",
                                       .swiglu_limit = 7.0,
                                       .swiglu_alpha = 1.702,
                                       .swiglu_beta = 0.5,
                                       .activation = "swigluoai"};
  const Model model = model_with(config);
  EXPECT_EQ(model.unread_activation, "");
  EXPECT_TRUE(model.notes.empty());
  EXPECT_EQ(model.layer.activation, oracle::Activation::swigluoai_uninterleave);
  EXPECT_EQ(model.layer.swiglu_limit, 7.0);
  EXPECT_EQ(model.layer.swiglu_alpha, 1.702);
  EXPECT_EQ(model.layer.swiglu_beta, 0.5);
  EXPECT_EQ(model_with(config, checkpoint::RowOrder::interleaved).layer.activation,
            oracle::Activation::swigluoai);
  EXPECT_NE(model_with(config, checkpoint::RowOrder::single).unread_activation, "");
}

// Kimi-K3.
TEST(Model, SituTakesTheConfigurationsConstants) {
  const Model model = model_with({.model_type = "kimi_linear",
                                  .situ_beta = 4.0,
                                  .situ_linear_beta = 25.0,
                                  .activation = "situ"});
  EXPECT_EQ(model.unread_activation, "");
  EXPECT_EQ(model.layer.activation, oracle::Activation::situ);
  EXPECT_EQ(model.layer.situ_beta, 4.0);
  EXPECT_EQ(model.layer.situ_linear_beta, 25.0);
  EXPECT_EQ(model_with({.model_type = "kimi_linear"}).layer.situ_beta, std::nullopt);
}

TEST(Model, GptOssHasOneLimitForAllLayers) {
  for (const std::optional<double> alpha : {std::optional<double>(), {1.702}}) {
    const Model model = model_with({.model_type = "gpt_oss",
                                    .swiglu_limit = 7.0,
                                    .swiglu_alpha = alpha,
                                    .has_layer_limits = true,
                                    .activation = "silu"},
                                   checkpoint::RowOrder::interleaved);
    EXPECT_EQ(model.unread_activation, "");
    EXPECT_EQ(model.layer.activation, oracle::Activation::swigluoai);
    EXPECT_EQ(model.layer.swiglu_limit, 7.0);
    ASSERT_EQ(model.notes.size(), 1u);
    EXPECT_NE(model.notes[0].find("swiglu_limits is not applied"), std::string::npos);
  }
  EXPECT_TRUE(model_with({.model_type = "gpt_oss", .swiglu_alpha = 1.702},
                         checkpoint::RowOrder::interleaved)
                  .notes.empty());
}

TEST(Model, AFormatThatIsAskedForStandsInWhereTheConfigurationNamesNone) {
  const TemporaryFolder folder;
  const auto model = model_from_path(config_in(folder, ""), checkpoint::WeightFormat::nvfp4);

  ASSERT_TRUE(model) << text(model.why());
  EXPECT_EQ(model->shape.format, checkpoint::WeightFormat::nvfp4);
}

}  // namespace model_test
}  // namespace fp4moe::plan
