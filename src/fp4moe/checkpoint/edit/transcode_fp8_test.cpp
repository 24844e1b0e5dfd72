#include "fp4moe/checkpoint/edit/transcode_fp8.hpp"

#include <filesystem>

#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/config_document.hpp"
#include "fp4moe/checkpoint/edit/transcode.hpp"
#include "fp4moe/checkpoint/fp8_module.hpp"
#include "support/producers.hpp"
#include "support/tiny_model.hpp"

namespace fp4moe::checkpoint {
namespace transcode_fp8_test {

using namespace testing;             // NOLINT: the test's own words
using namespace testing::producers;  // NOLINT
using tensor::testing::TemporaryFolder;
using tensor::testing::write_text;

TEST(TranscodeFp8, ModulesAreNamedInEachDialect) {
  Tensors tensors = tensors_of(small(kMx), *find_row(Dialect::quark, kMx));
  tensors.push_back(
      {"model.layers.0.self_attn.q_proj.weight", DType::f8_e4m3, {64, 64}, Bytes(64 * 64)});
  tensors.push_back({"model.layers.0.self_attn.q_proj.weight_scale", DType::bf16, {}, Bytes(2)});
  tensors.push_back({"model.layers.0.self_attn.q_proj.input_scale", DType::bf16, {}, Bytes(2)});
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a");
  write_safetensors(folder / "a/model.safetensors", tensors);
  write_text(folder / "a/config.json", config_of("qwen3_moe", kQuarkMxfp4));
  for (const Dialect through : {Dialect::modelopt, Dialect::compressed_tensors})
    expect_back(folder / "a", through, folder / std::string(name(through)));

  const auto read = [&](std::string_view path) {
    const auto json = read_json_file(folder / std::string(path));
    EXPECT_TRUE(json) << text(json.why());
    return json ? *json : Json();
  };
  const Json modelopt = read("modelopt/config.json")["quantization_config"];
  EXPECT_EQ(modelopt["quant_algo"], "MIXED_PRECISION");
  const Json& layers = modelopt["quantized_layers"];
  EXPECT_EQ(layers["model.layers.0.self_attn.q_proj"]["quant_algo"], "FP8");
  EXPECT_EQ(layers["model.layers.0.mlp.experts.1.down_proj"]["quant_algo"], "mxfp4");
  EXPECT_EQ(layers.size(), 7u);
  EXPECT_EQ(read("modelopt/hf_quant_config.json")["quantization"]["quantized_layers"], layers);
  const Json compressed = read("compressed-tensors/config.json")["quantization_config"];
  EXPECT_EQ(compressed["format"], "mixed-precision");
  EXPECT_EQ(compressed["config_groups"]["group_1"]["targets"],
            Json::array({"model.layers.0.self_attn.q_proj"}));
  const Json quark = read("modelopt-back/config.json")["quantization_config"];
  EXPECT_EQ(quark["layer_quant_config"]["model.layers.0.self_attn.q_proj"]["weight"]["dtype"],
            "fp8_e4m3");
}

// A weight of attention in FP8 with scales of this shape, beside NVFP4 experts in
// compressed-tensors' form; `group` is what the configuration says of it, after the group `before`.
void write_fp8(const std::string& folder, const tensor::Shape& scale, std::string_view group,
               std::string_view before = "") {
  Tensors tensors = tensors_of(small(kNv), *find_row(Dialect::compressed_tensors, kNv));
  tensors.push_back(
      {"model.layers.0.self_attn.q_proj.weight", DType::f8_e4m3, {256, 64}, Bytes(256 * 64)});
  std::uint64_t bytes = 2;
  for (const std::uint64_t size : scale) bytes *= size;
  tensors.push_back(
      {"model.layers.0.self_attn.q_proj.weight_scale", DType::bf16, scale, Bytes(bytes)});
  std::filesystem::create_directory(folder);
  write_safetensors(folder + "/model.safetensors", tensors);
  write_text(folder + "/config.json",
             config_of("qwen3_moe",
                       R"({"quant_method": "compressed-tensors", "format": "mixed-precision",
         "config_groups": {
           "group_0": {"format": "nvfp4-pack-quantized", "targets": ["re:.*experts.*"],
                       "weights": {"num_bits": 4, "group_size": 16}}, )" +
                           std::string(before) + R"(
           "group_1": {"format": "float-quantized", "targets": ["re:.*self_attn\\..*proj$"], )" +
                           std::string(group) + "}}}"));
}

constexpr std::string_view kDynamic =
    R"("weights": {"num_bits": 8}, "input_activations": {"dynamic": true})";
constexpr std::string_view kWeightsAlone = R"("weights": {"num_bits": 8})";

TEST(TranscodeFp8, KeepsAScaleForEachRow) {
  const TemporaryFolder folder;
  write_fp8(folder / "a", {256, 1}, kDynamic);
  for (const Dialect through : {Dialect::modelopt, Dialect::quark})
    expect_back(folder / "a", through, folder / std::string(name(through)));
  const auto modelopt = read_json_file(folder / "modelopt/config.json");
  ASSERT_TRUE(modelopt);
  constexpr std::string_view kModule = "model.layers.0.self_attn.q_proj";
  EXPECT_EQ((*modelopt)["quantization_config"]["quantized_layers"][kModule]["quant_algo"],
            "FP8_PER_CHANNEL_PER_TOKEN");
  const auto quark = read_json_file(folder / "quark/config.json");
  ASSERT_TRUE(quark);
  const Json& layer = (*quark)["quantization_config"]["layer_quant_config"][kModule];
  EXPECT_EQ(layer["weight"]["qscheme"], "per_channel");
  EXPECT_EQ(layer["input_tensors"]["is_dynamic"], true);
  const auto store = tensor::Store::open(folder / "modelopt");
  ASSERT_TRUE(store);
  EXPECT_EQ(store->find(std::string(kModule) + ".weight_scale")->entry.shape, tensor::Shape{256});
  const auto back = read_json_file(folder / "modelopt-back/config.json");
  ASSERT_TRUE(back);
  const Json& group = (*back)["quantization_config"]["config_groups"]["group_1"];
  EXPECT_EQ(group["weights"]["strategy"], "channel");
  EXPECT_EQ(group["input_activations"]["strategy"], "token");
}

TEST(TranscodeFp8, KeepsAScaleForEachBlock) {
  const TemporaryFolder folder;
  write_fp8(folder / "a", {2, 1},
            R"("weights": {"num_bits": 8, "strategy": "block", "block_structure": [128, 128]})");
  for (const Dialect through : {Dialect::modelopt, Dialect::quark})
    expect_back(folder / "a", through, folder / std::string(name(through)));
  const auto store = tensor::Store::open(folder / "modelopt");
  ASSERT_TRUE(store);
  EXPECT_EQ(store->find("model.layers.0.self_attn.q_proj.weight_scale")->entry.shape,
            (tensor::Shape{2, 1, 1, 1}));
  const auto back = read_json_file(folder / "quark-back/config.json");
  ASSERT_TRUE(back);
  const Json& group = (*back)["quantization_config"]["config_groups"]["group_1"];
  EXPECT_EQ(group["weights"]["block_structure"], Json::array({128, 128}));
  EXPECT_TRUE(group["input_activations"].is_null());
}

// Where a weight is one block, compressed-tensors' scale is [1, 1] and ModelOpt's a scalar.
TEST(TranscodeFp8, KeepsAScaleForOneBlock) {
  const TemporaryFolder folder;
  write_fp8(folder / "a", {1, 1},
            R"("weights": {"num_bits": 8, "strategy": "block", "block_structure": [256, 128]})");
  expect_back(folder / "a", Dialect::quark, folder / "quark");
  write_fp8(folder / "b", {2, 1},
            R"("weights": {"num_bits": 8, "strategy": "block", "block_structure": [128, 128]},
               "input_activations": {"dynamic": true})");
  expect_back(folder / "b", Dialect::modelopt, folder / "modelopt");
  const auto module = [&](const std::string& path) {
    const auto store = tensor::Store::open(path);
    EXPECT_TRUE(store);
    const auto facts = read_facts(*store);
    EXPECT_TRUE(facts);
    return find_fp8_module(*store, *store->find("model.layers.0.self_attn.q_proj.weight"),
                           facts->claims);
  };
  const auto one = module(folder / "a");
  ASSERT_TRUE(one);
  EXPECT_EQ(fp8_scale_shape(Dialect::modelopt, *one, {1, 1}), tensor::Shape{});
  EXPECT_EQ(fp8_scale_shape(Dialect::quark, *one, {1, 1}), (tensor::Shape{1, 1}));
  EXPECT_EQ(module(folder / "b")->inputs, Fp8Inputs::dynamic);
  EXPECT_EQ(module(folder / "modelopt")->inputs, Fp8Inputs::none);
}

// Two groups may be the module's; they differ in its activations.
TEST(TranscodeFp8, RefusesASchemeThatAPatternDoesNotDecide) {
  const TemporaryFolder folder;
  const std::string other =
      R"("other": {"format": "float-quantized", "targets": ["re:(?<!x).*q_proj$"], )";
  write_fp8(folder / "a", {256, 1}, kDynamic, other + std::string(kWeightsAlone) + "}, ");
  write_fp8(folder / "b", {256, 1}, kDynamic, other + std::string(kDynamic) + "}, ");
  const auto checkpoint = Checkpoint::open(folder / "a");
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  const auto guessed = transcode(*checkpoint, Dialect::modelopt, folder / "c");
  ASSERT_FALSE(guessed);
  EXPECT_EQ(guessed.why().id, "transcode.mixed_precision");
  const auto same = Checkpoint::open(folder / "b");
  ASSERT_TRUE(same) << text(same.why());
  EXPECT_TRUE(transcode(*same, Dialect::modelopt, folder / "d"));
}

TEST(TranscodeFp8, RefusesModulesThatATargetCannotExpress) {
  const TemporaryFolder folder;
  write_fp8(folder / "rows", {256, 1}, kWeightsAlone);  // ModelOpt has rows with dynamic inputs
  write_fp8(folder / "tensor", {1}, kDynamic);          // and one scale with a stored one
  write_fp8(folder / "odd", {3, 5}, kDynamic);          // no block divides so
  const auto expect_refused = [&](const char* from, Dialect target, std::string_view words) {
    const auto checkpoint = Checkpoint::open(folder / from);
    ASSERT_TRUE(checkpoint) << text(checkpoint.why());
    const auto result = transcode(*checkpoint, target, folder / "b");
    ASSERT_FALSE(result) << from << " " << name(target);
    EXPECT_EQ(result.why().id, "transcode.mixed_precision");
    EXPECT_NE(text(result.why()).find(words), std::string::npos) << text(result.why());
  };
  expect_refused("rows", Dialect::modelopt, "a scale for each row, activations not quantized");
  expect_refused("rows", Dialect::gguf, "a scale for each row");
  expect_refused("tensor", Dialect::modelopt, "one scale, activations quantized dynamically");
  for (const Dialect target : {Dialect::modelopt, Dialect::quark, Dialect::gguf})
    expect_refused("odd", target, "not known");
  const auto same = Checkpoint::open(folder / "odd");
  ASSERT_TRUE(same);
  EXPECT_TRUE(transcode(*same, Dialect::compressed_tensors, folder / "c"));
}

}  // namespace transcode_fp8_test
}  // namespace fp4moe::checkpoint
