#include "fp4moe/plan/model.hpp"

#include <string>

#include <gtest/gtest.h>

#include "fp4moe/weights/synth.hpp"
#include "support/tiny_model.hpp"

namespace fp4moe::plan {
namespace model_test {

using tensor::DType;
using tensor::testing::TemporaryFolder;
using weights::testing::FileTensor;

void make(const std::string& path, weights::SynthOptions options) {
  options.experts = 4;
  options.hidden = options.intermediate = 64;
  const auto made = weights::synth(options, path);
  ASSERT_TRUE(made) << text(made.why());
}

// One gpt-oss layer of zeros.
void add_layer(std::vector<FileTensor>& tensors, std::size_t index, std::uint64_t intermediate) {
  constexpr std::uint64_t kExperts = 2, kHidden = 64;
  const std::string stem = "model.layers." + std::to_string(index) + ".mlp.experts.";
  const auto add = [&](const std::string& name, const tensor::Shape& shape) {
    std::size_t bytes = 1;
    for (const std::uint64_t extent : shape) bytes *= extent;
    tensors.push_back({stem + name, DType::u8, shape, weights::testing::Bytes(bytes)});
  };
  add("gate_up_proj_blocks", {kExperts, 2 * intermediate, kHidden / 32, 16});
  add("gate_up_proj_scales", {kExperts, 2 * intermediate, kHidden / 32});
  add("down_proj_blocks", {kExperts, kHidden, intermediate / 32, 16});
  add("down_proj_scales", {kExperts, kHidden, intermediate / 32});
}

TEST(Model, OfTheTableIsCompleteForEveryRowAndFormat) {
  for (const weights::ModelRow& row : weights::models()) {
    for (const auto format : {weights::WeightFormat::mxfp4, weights::WeightFormat::nvfp4}) {
      const Model model = model_from_row(row, format);
      EXPECT_EQ(model.layers, weights::moe_layer_count(row));
      EXPECT_EQ(model.shape.format, format);
      EXPECT_EQ(model.layer.gated, oracle::is_gated(model.layer.activation)) << row.name;
      EXPECT_TRUE(model.layer.activation == oracle::Activation::silu || row.activation != "silu");
      EXPECT_EQ(model.rule == weights::SplitRule::ceil_blocks,
                row.model_type == "gpt_oss" && format == weights::WeightFormat::mxfp4);
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
  EXPECT_EQ(gpt_oss->rule, weights::SplitRule::ceil_blocks);
  EXPECT_EQ(gpt_oss->layer.activation, oracle::Activation::swigluoai);
  EXPECT_TRUE(gpt_oss->layer.has_bias);
  EXPECT_TRUE(gpt_oss->notes.empty());

  make(folder / "packed",
       {.model = "qwen3-30b-a3b", .dialect = weights::Dialect::compressed_tensors, .layers = 1});
  const auto packed = model_from_checkpoint(folder / "packed");
  ASSERT_TRUE(packed) << text(packed.why());
  EXPECT_EQ(packed->names, oracle::BufferNames::compressed_tensors);
  EXPECT_EQ(packed->rule, weights::SplitRule::equal);
  EXPECT_EQ(packed->layer.activation, oracle::Activation::silu);
}

TEST(Model, OfAnUnknownFamilySaysWhatIsAssumed) {
  const TemporaryFolder folder;
  std::vector<FileTensor> tensors;
  add_layer(tensors, 0, 64);
  weights::testing::write_safetensors(folder / "model.safetensors", tensors);

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
  weights::testing::write_safetensors(folder / "model.safetensors", tensors);

  const auto refused = model_from_checkpoint(folder / "model.safetensors");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "plan.shapes") << text(refused.why());
  EXPECT_EQ(refused.why().code, ErrorCode::invalid_input);
}

TEST(Model, OfNoCheckpointIsTheFilesError) {
  EXPECT_FALSE(model_from_checkpoint("/nonexistent/model"));
}

}  // namespace model_test
}  // namespace fp4moe::plan
