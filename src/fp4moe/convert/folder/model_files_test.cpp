#include "fp4moe/convert/folder/model_files.hpp"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/convert/folder/unconvert.hpp"
#include "fp4moe/convert/folder/verify.hpp"
#include "support/converted_folder.hpp"

namespace fp4moe::convert {
namespace model_files_test {

namespace fs = std::filesystem;
using checkpoint::WeightFormat;
using testing::convert;
using testing::expect_same_files;
using testing::make_checkpoint;
using testing::recipe_of;
using testing::TemporaryFolder;

Json parsed(std::string_view text) {
  const auto json = parse_json(text);
  EXPECT_TRUE(json) << fp4moe::text(json.why()) << "\n" << text;
  return json ? *json : Json();
}

Json method_of(std::string_view config, std::string_view beside = {}) {
  const auto result = config_for_fp4moe(config, beside);
  EXPECT_TRUE(result);
  return result ? parsed(*result)["quantization_config"] : Json();
}

TEST(ModelFiles, PutTheMethodInThePlaceOfTheOneBefore) {
  const Json found = method_of(R"({"a": {"quantization_config": 1}, "quantization_config" :
      {"quant_method": "mxfp4", "x": ["}", {"y": "\"{"}]} , "b": [1, 2]})");
  EXPECT_EQ(found["quant_method"], "fp4moe");
  EXPECT_EQ(found["source"]["quant_method"], "mxfp4");
  EXPECT_EQ(found["source"]["x"][0], "}");
}

TEST(ModelFiles, LeaveEveryOtherByteOfTheConfiguration) {
  const std::string before = R"({ "x": Infinity, "quantization_config": {}, "y": 1e+05 })";
  EXPECT_EQ(config_for_fp4moe(before), R"({ "x": Infinity, "quantization_config": )"
                                       R"({"quant_method": "fp4moe", "source": {}}, "y": 1e+05 })");
}

TEST(ModelFiles, AddTheMethodWhereThereWasNone) {
  EXPECT_TRUE(method_of(R"({"model_type": "gpt_oss"})")["source"].is_null());
  EXPECT_TRUE(method_of("{}")["source"].is_null());
  EXPECT_TRUE(method_of(" {\n }\n")["source"].is_null());
  EXPECT_EQ(
      method_of(
          "{}",
          R"({"quantization": {"quant_algo": "NVFP4"}})")["source"]["quantization"]["quant_algo"],
      "NVFP4");
  EXPECT_EQ(
      method_of(
          R"({"text_config": {"quantization_config": {"quant_method": "quark"}}})")["source"]
                                                                                   ["quant_method"],
      "quark");
  EXPECT_FALSE(config_for_fp4moe("[1]"));
  EXPECT_FALSE(config_for_fp4moe(""));
}

TEST(ModelFiles, KeepTheSourcesOwn) {
  const TemporaryFolder folder;
  make_checkpoint(folder / "source", WeightFormat::mxfp4);
  tensor::testing::write_text(folder / "source/tokenizer.json", "{}");
  ASSERT_TRUE(convert(folder / "source", folder / "out", recipe_of("marlin.mxfp4")));

  const Json index =
      parsed(tensor::testing::read_text(folder / "out/others.safetensors.index.json"));
  const Json& map = index["weight_map"];
  EXPECT_EQ(map["model.embed_tokens.weight"], "others-00001.safetensors");
  for (const auto& [name, file] : map.items()) EXPECT_EQ(name.find("experts."), name.npos) << name;

  const std::vector<std::string> folders{folder / "out"};
  ASSERT_TRUE(unconvert(folders, folder / "back"));
  expect_same_files(folder / "source", folder / "back");
}

TEST(ModelFiles, RanksShareTensorsAndHaveAFolderAboveThem) {
  const TemporaryFolder folder;
  make_checkpoint(folder / "source", WeightFormat::mxfp4);
  tensor::testing::write_text(folder / "source/tokenizer.json", "{}");
  std::vector<std::string> ranks;
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    Recipe recipe = recipe_of("native_sm90.mxfp4");
    recipe.slice.tensor_parallel = {rank, 2};
    ranks.push_back(folder / fmt::format("out/rank-{}", rank));
    fs::create_directories(folder / "out");
    const auto converted = convert(folder / "source", ranks.back(), recipe,
                                   {.options = {.sibling = rank == 0 ? "" : ranks[0]}});
    ASSERT_TRUE(converted) << text(converted.why());
    EXPECT_EQ(converted->linked_files, rank);
  }
  ASSERT_TRUE(write_parent(folder / "out", "rank-0"));

  EXPECT_EQ(fs::hard_link_count(ranks[0] + "/others-00001.safetensors"), 2u);
  const auto verified = verify_folder(ranks[1], {.deep = true});
  ASSERT_TRUE(verified) << text(verified.why());
  EXPECT_TRUE(verified->findings.empty());
  const Json index =
      parsed(tensor::testing::read_text(folder / "out/others.safetensors.index.json"));
  EXPECT_EQ(index["weight_map"]["model.norm.weight"], "rank-0/others-00001.safetensors");
  EXPECT_EQ(tensor::testing::read_text(folder / "out/config.json"),
            tensor::testing::read_text(ranks[0] + "/config.json"));
  EXPECT_TRUE(fs::exists(folder / "out/tokenizer.json"));
  ASSERT_TRUE(unconvert(ranks, folder / "back"));
  expect_same_files(folder / "source", folder / "back");
}

// A sibling of another source is no sibling.
TEST(ModelFiles, LinkNothingThatDiffers) {
  const TemporaryFolder folder;
  make_checkpoint(folder / "one", WeightFormat::mxfp4);
  make_checkpoint(folder / "two", WeightFormat::mxfp4, {.hidden = 256});
  const Recipe recipe = recipe_of("marlin.mxfp4");
  ASSERT_TRUE(convert(folder / "one", folder / "out-one", recipe));
  const auto converted = convert(folder / "two", folder / "out-two", recipe,
                                 {.options = {.sibling = folder / "out-one"}});
  ASSERT_TRUE(converted) << text(converted.why());
  EXPECT_EQ(converted->linked_files, 0u);
}

}  // namespace model_files_test
}  // namespace fp4moe::convert
