#include "fp4moe/checkpoint/write/copy_checkpoint.hpp"

#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/gguf_fields.hpp"
#include "fp4moe/checkpoint/origin.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "fp4moe/checkpoint/write/quant_config.hpp"
#include "support/files.hpp"

namespace fp4moe::checkpoint {
namespace copy_checkpoint_test {

using tensor::testing::TemporaryFolder;

SynthOptions tiny() {
  return {.model = "qwen3-30b-a3b", .experts = 2, .hidden = 64, .intermediate = 64, .shards = 2};
}

TEST(CopyCheckpoint, KeepsReplacesAddsAndRemoves) {
  const TemporaryFolder folder;
  ASSERT_TRUE(synth(tiny(), folder / "a"));
  tensor::testing::write_text(folder / "a/tokenizer.json", "{}");
  const Result<tensor::Store> before = tensor::Store::open(folder / "a");
  ASSERT_TRUE(before);
  CheckpointEdits edits;
  edits.put.push_back({{"lm_head.weight", tensor::DType::u8, {3}}, std::vector<std::byte>(3)});
  edits.put.push_back({{"new", tensor::DType::f32, {}}, std::vector<std::byte>(4)});
  edits.remove = {"model.norm.weight"};
  edits.documents.emplace_back("config.json", Json{{"model_type", "other"}});

  const Result<Done> done = copy_checkpoint(*before, folder / "b", edits);

  ASSERT_TRUE(done) << text(done.why());
  const Result<tensor::Store> after = tensor::Store::open(folder / "b");
  ASSERT_TRUE(after) << text(after.why());
  EXPECT_EQ(after->tensors().size(), before->tensors().size());
  EXPECT_EQ(after->find("model.norm.weight"), nullptr);
  ASSERT_NE(after->find("new"), nullptr);
  EXPECT_EQ(after->find("lm_head.weight")->entry.shape, tensor::Shape{3});
  const std::string name = "model.layers.0.mlp.experts.1.up_proj.weight";
  const auto x = before->bytes(*before->find(name)), y = after->bytes(*after->find(name));
  EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size()), 0);
  EXPECT_EQ(tensor::testing::read_text(folder / "b/tokenizer.json"), "{}");
  EXPECT_EQ((*read_json_file(folder / "b/config.json"))["model_type"], "other");
}

TEST(CopyCheckpoint, CopiesGgufWithItsMetadata) {
  const TemporaryFolder folder;
  SynthOptions options = tiny();
  options.dialect = Dialect::gguf;
  ASSERT_TRUE(synth(options, folder / "a.gguf"));
  const Result<tensor::Store> before = tensor::Store::open(folder / "a.gguf");
  ASSERT_TRUE(before);

  ASSERT_TRUE(copy_checkpoint(*before, folder / "b.gguf", {.remove = {"output.weight"}}));

  const Result<tensor::Store> after = tensor::Store::open(folder / "b.gguf");
  ASSERT_TRUE(after);
  EXPECT_EQ(after->tensors().size() + 1, before->tensors().size());
  EXPECT_EQ(after->gguf_fields().size(), before->gguf_fields().size());
  EXPECT_TRUE(Checkpoint::open(folder / "b.gguf"));
}

TEST(CopyCheckpoint, RefusesEditsThatCannotBe) {
  const TemporaryFolder folder;
  ASSERT_TRUE(synth(tiny(), folder / "a"));
  const Result<tensor::Store> store = tensor::Store::open(folder / "a");
  ASSERT_TRUE(store);

  const auto absent = copy_checkpoint(*store, folder / "b", {.remove = {"nobody"}});
  const auto short_of = copy_checkpoint(
      *store, folder / "b", {.put = {{{"x", tensor::DType::f32, {2}}, std::vector<std::byte>(4)}}});

  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.why().id, "copy.missing");
  ASSERT_FALSE(short_of);
  EXPECT_EQ(short_of.why().id, "copy.size");
  EXPECT_FALSE(std::filesystem::exists(folder / "b"));
}

TEST(CopyCheckpoint, AFileThatVanishesStopsTheCopyAndLeavesNothing) {
  const TemporaryFolder folder;
  ASSERT_TRUE(synth(tiny(), folder / "a"));
  const Result<tensor::Store> store = tensor::Store::open(folder / "a");
  ASSERT_TRUE(store);
  std::filesystem::create_symlink(folder / "nowhere", folder / "a/notes.txt");

  // A dangling link is no regular file and is passed over.
  EXPECT_TRUE(copy_checkpoint(*store, folder / "b", {}));
  EXPECT_FALSE(std::filesystem::exists(folder / "b/notes.txt"));
}

TEST(CompanionFiles, DoNotPublishWhatLinksLeadTo) {
  const TemporaryFolder folder;
  ASSERT_TRUE(synth(tiny(), folder / "a"));
  tensor::testing::write_text(folder / "private", "secret");
  tensor::testing::write_text(folder / "a/license.txt", "free");
  std::filesystem::create_symlink("license.txt", folder / "a/LICENSE");
  const Result<tensor::Store> store = tensor::Store::open(folder / "a");
  ASSERT_TRUE(store);
  ASSERT_TRUE(copy_checkpoint(*store, folder / "b", {})) << "links inside are copied";
  EXPECT_EQ(tensor::testing::read_text(folder / "b/LICENSE"), "free");

  std::filesystem::create_symlink("../private", folder / "a/notes.txt");
  const Result<Done> copied = copy_checkpoint(*store, folder / "c", {});
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.why().id, "store.link");
  EXPECT_EQ(copied.why().path, folder / "a/notes.txt");
  EXPECT_FALSE(std::filesystem::exists(folder / "c"));
}

TEST(CompanionFiles, BesideAFileThatTheUserNamedForeignLinksAreLeftOut) {
  const TemporaryFolder folder;
  SynthOptions options = tiny();
  options.shards = 1;
  ASSERT_TRUE(synth(options, folder / "a"));
  tensor::testing::write_text(folder / "private", "secret");
  std::filesystem::create_symlink("../private", folder / "a/notes.txt");
  const Result<tensor::Store> store = tensor::Store::open(folder / "a/model.safetensors");
  ASSERT_TRUE(store);
  const auto files = companion_files(*store, {});
  ASSERT_TRUE(files) << text(files.why());
  EXPECT_EQ(std::ranges::find(*files, "notes.txt", &FileCopy::name), files->end());
  EXPECT_NE(std::ranges::find(*files, "config.json", &FileCopy::name), files->end());
}

TEST(CompanionFiles, OfAHuggingFaceCacheAreCopied) {
  const TemporaryFolder folder;
  const std::string snapshot = folder / "models--x/snapshots/abc",
                    blobs = folder / "models--x/blobs";
  std::filesystem::create_directories(snapshot);
  ASSERT_TRUE(synth(tiny(), blobs));
  tensor::testing::write_text(blobs + "/tokenizer.json", "{}");
  for (const auto& entry : std::filesystem::directory_iterator(blobs))
    std::filesystem::create_symlink("../../blobs/" + entry.path().filename().string(),
                                    snapshot + "/" + entry.path().filename().string());
  const Result<tensor::Store> store = tensor::Store::open(snapshot);
  ASSERT_TRUE(store) << text(store.why());
  ASSERT_TRUE(copy_checkpoint(*store, folder / "b", {}));
  EXPECT_EQ(tensor::testing::read_text(folder / "b/tokenizer.json"), "{}");
  EXPECT_TRUE(Checkpoint::open(snapshot));
}

TEST(TensorSink, RefusesTensorsThatDoNotFillBlocksBeforeCreatingAnything) {
  const TemporaryFolder folder;
  const SpecList odd{.count = 1, .at = [](std::size_t) {
                       return tensor::TensorSpec{"x", tensor::DType::f4, {3}};
                     }};

  const Result<TensorSink> sink = TensorSink::create(folder / "out", odd, {});

  ASSERT_FALSE(sink);
  EXPECT_EQ(sink.why().id, "write.size");
  EXPECT_TRUE(folder.names().empty());
}

TEST(TensorSink, FinishRefusesWhatIsIncomplete) {
  const TemporaryFolder folder;
  {
    const SpecList one{.count = 1, .at = [](std::size_t) {
                         return tensor::TensorSpec{"x", tensor::DType::u8, {3}};
                       }};
    Result<TensorSink> sink = TensorSink::create(folder / "out", one, {});
    ASSERT_TRUE(sink);
    const std::vector<std::byte> two(2);
    ASSERT_TRUE(sink->write(0, 0, two));

    const Result<Done> done = sink->finish();

    ASSERT_FALSE(done);
    EXPECT_EQ(done.why().id, "tensor.incomplete");
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(GgufFields, ConfigurationComesBackFromForeignFilesByLlamaCppsKeys) {
  const std::vector<tensor::GgufField> fields{
      {"general.architecture", tensor::GgufType::string, std::string("qwen3moe")},
      {"qwen3moe.block_count", tensor::GgufType::u32, std::uint64_t{48}},
      {"qwen3moe.expert_count", tensor::GgufType::u32, std::uint64_t{128}},
      {"qwen3moe.expert_used_count", tensor::GgufType::u32, std::uint64_t{8}},
      {"qwen3moe.embedding_length", tensor::GgufType::u32, std::uint64_t{2048}},
      {"qwen3moe.expert_feed_forward_length", tensor::GgufType::u32, std::uint64_t{768}},
      {"qwen3moe.attention.head_count", tensor::GgufType::u32, std::uint64_t{32}},
      {"qwen3moe.rope.freq_base", tensor::GgufType::f32, 1e6}};

  const Json config = config_from_gguf(fields);

  EXPECT_EQ(config["model_type"], "qwen3_moe");
  EXPECT_EQ(config["num_experts"], 128);
  EXPECT_EQ(config["moe_intermediate_size"], 768);
  EXPECT_EQ(config["num_hidden_layers"], 48);
  EXPECT_EQ(config["num_attention_heads"], 32);
  EXPECT_EQ(config["rope_theta"], 1e6);
}

// The number, text or truth of a field; -1 where it is not there.
double number_of_field(const std::vector<tensor::GgufField>& fields, std::string_view key) {
  for (const tensor::GgufField& field : fields) {
    if (field.key != key) continue;
    if (const auto* count = std::get_if<std::uint64_t>(&field.value))
      return static_cast<double>(*count);
    if (const auto* truth = std::get_if<bool>(&field.value)) return *truth ? 1 : 0;
    if (const auto* real = std::get_if<double>(&field.value)) return *real;
  }
  return -1;
}

TEST(GgufFields, HoldWhatLlamaCppsLoaderAsksFor) {
  const auto fields =
      gguf_fields({.model_type = "glm4_moe",
                   .config = *parse_json(R"({"intermediate_size": 512, "num_attention_heads": 4,
          "first_k_dense_replace": 1, "n_shared_experts": 2, "routed_scaling_factor": 2.5,
          "norm_topk_prob": true, "n_group": 1, "head_dim": 32, "rope_theta": 10000})"),
                   .shape = {.experts = 8, .hidden = 128, .intermediate = 64},
                   .layers = 3,
                   .top_k = 2,
                   .vocabulary = 100,
                   .next_layers = 1});
  const auto of = [&](const char* key) {
    return number_of_field(fields, std::string("glm4moe.") + key);
  };
  EXPECT_EQ(of("block_count"), 3);
  EXPECT_EQ(of("nextn_predict_layers"), 1);
  EXPECT_EQ(of("feed_forward_length"), 512);
  EXPECT_EQ(of("expert_feed_forward_length"), 64);
  EXPECT_EQ(of("vocab_size"), 100);
  EXPECT_EQ(of("attention.value_length"), 32);
  EXPECT_EQ(of("leading_dense_block_count"), 1);
  EXPECT_EQ(of("expert_shared_count"), 2);
  EXPECT_EQ(of("expert_weights_scale"), 2.5);
  EXPECT_EQ(of("expert_weights_norm"), 1);
  EXPECT_EQ(of("expert_gating_func"), 2);
  EXPECT_EQ(of("rope.dimension_count"), 16);
  EXPECT_EQ(of("rope.freq_base"), 10000);
}

TEST(GgufFields, ReadRotationsFromOldNewAndOpenAisConfigurations) {
  const char* yarn =
      R"("rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
         "original_max_position_embeddings": 4096)";
  for (const std::string& config :
       {std::string(
            R"({"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 150000,
          "rope_scaling": {)") +
            yarn + "}}",
        std::string(R"({"max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
          "rope_parameters": {"rope_theta": 150000.0, )") +
            yarn + "}}",
        std::string(R"({"rope_theta": 150000.0, "rope_scaling_factor": 32.0, "rope_ntk_alpha": 1.0,
          "rope_ntk_beta": 32.0, "initial_context_length": 4096})")}) {
    const auto fields = gguf_fields({.model_type = "gpt_oss", .config = *parse_json(config)});
    const auto of = [&](const char* key) {
      return number_of_field(fields, std::string("gpt-oss.") + key);
    };
    EXPECT_EQ(of("context_length"), 131072) << config;
    EXPECT_EQ(of("attention.layer_norm_rms_epsilon"), 1e-5) << config;
    EXPECT_EQ(of("rope.freq_base"), 150000) << config;
    EXPECT_EQ(of("rope.scaling.factor"), 32) << config;
    EXPECT_EQ(of("rope.scaling.original_context_length"), 4096) << config;
    EXPECT_EQ(of("rope.scaling.yarn_beta_fast"), 32) << config;
    EXPECT_EQ(of("rope.scaling.yarn_beta_slow"), 1) << config;
  }
}

TEST(GgufFields, UnknownFamiliesGetAnArchitectureOfTheirOwnName) {
  EXPECT_EQ(gguf_architecture("gpt_oss"), "gpt-oss");
  EXPECT_EQ(gguf_architecture("my_new_moe"), "my-new-moe");
  EXPECT_EQ(gguf_architecture(""), "unknown");
  EXPECT_EQ(config_from_gguf({})["model_type"], "");
}

TEST(QuantConfig, KeepsEveryOtherKeyInItsPlace) {
  const Json config{{"a", 1}, {"quantization_config", {{"old", true}}}, {"b", 2}};
  const DialectRow& row = *find_row(Dialect::quark, WeightFormat::mxfp4);

  const Json changed = with_quantization(config, row, {.ignore = {"lm_head"}});

  std::vector<std::string> keys;
  for (const auto& [key, value] : changed.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"a", "quantization_config", "b"}));
  EXPECT_EQ(changed["quantization_config"]["exclude"], Json::array({"lm_head"}));
  EXPECT_FALSE(changed["quantization_config"].contains("old"));
}

TEST(QuantConfig, SaysWhetherActivationsHaveScales) {
  const DialectRow& row = *find_row(Dialect::compressed_tensors, WeightFormat::nvfp4);

  const Json with = quantization_config(row, {.has_input_scale = true});
  const Json without = quantization_config(row, {.has_input_scale = false});

  EXPECT_TRUE(with["config_groups"]["group_0"]["input_activations"].is_object());
  EXPECT_TRUE(without["config_groups"]["group_0"]["input_activations"].is_null());
  EXPECT_EQ(hf_quant_config(row, {.has_input_scale = true})["quantization"]["quant_algo"], "NVFP4");
  EXPECT_EQ(hf_quant_config(row, {})["quantization"]["quant_algo"], "W4A16_NVFP4");
}

TEST(QuantConfig, DialectsWithoutOneLoseTheOldOne) {
  const DialectRow& row = *find_row(Dialect::openai, WeightFormat::mxfp4);

  const Json changed = with_quantization({{"quantization_config", 1}, {"b", 2}}, row, {});

  EXPECT_FALSE(changed.contains("quantization_config"));
  EXPECT_EQ(changed["b"], 2);
}

TEST(Origin, TextKeepsWhatIsKnown) {
  EXPECT_EQ(to_text({}), "{}");
  EXPECT_EQ(to_text({.prefix = "model.layers.{}.mlp.", .bias_dtype = "BF16"}),
            R"({"prefix":"model.layers.{}.mlp.","bias_dtype":"BF16"})");
}

}  // namespace copy_checkpoint_test
}  // namespace fp4moe::checkpoint
