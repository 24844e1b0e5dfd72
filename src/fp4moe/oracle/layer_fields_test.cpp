#include "fp4moe/oracle/layer_fields.hpp"

#include <gtest/gtest.h>

namespace fp4moe::oracle {
namespace layer_fields_test {

TEST(LayerFields, EveryFieldTakesBackWhatItShows) {
  for (const LayerField& field : layer_fields()) {
    Layer layer;
    const std::string shown = field.show(layer);
    if (shown.empty()) continue;  // unset
    EXPECT_TRUE(set_field(layer, field.key, shown)) << field.key;
    EXPECT_EQ(field.show(layer), shown) << field.key;
    EXPECT_TRUE(set_field(layer, field.option, shown)) << field.option;
  }
}

TEST(LayerFields, AnUnknownWordListsTheOthersAndTheNearest) {
  Layer layer;

  const auto set = set_field(layer, "activation", "swigluoia");

  ASSERT_FALSE(set);
  EXPECT_EQ(set.why().code, ErrorCode::usage);
  EXPECT_EQ(set.why().id, "layer.value");
  EXPECT_NE(set.why().expected.find("relu2_no_mul"), std::string::npos);
  EXPECT_EQ(set.why().remedy, "did you mean swigluoai?");
}

TEST(LayerFields, AnUnknownFieldListsTheOthersAndTheNearest) {
  Layer layer;

  const auto set = set_field(layer, "hidden_dims", "64");

  ASSERT_FALSE(set);
  EXPECT_EQ(set.why().id, "layer.field");
  EXPECT_EQ(set.why().remedy, "did you mean hidden_dim?");
}

TEST(LayerFields, SizesSwitchesAndNumbersRefuseNonsense) {
  Layer layer;
  for (const char* bad : {"", "0", "-1", "1.5", "many", "99999999999999999999"})
    EXPECT_FALSE(set_field(layer, "hidden_dim", bad)) << bad;
  EXPECT_FALSE(set_field(layer, "has_bias", "maybe"));
  EXPECT_FALSE(set_field(layer, "swiglu_limit", "seven"));
  EXPECT_FALSE(set_field(layer, "swiglu_limit", "nan"));
  EXPECT_FALSE(set_field(layer, "activation_override", "int3"));
  EXPECT_EQ(layer.hidden, Layer{}.hidden);
}

TEST(LayerFields, BackendNamesStayAsTheyAreWritten) {
  Layer layer;
  ASSERT_TRUE(set_field(layer, "moe_backend", "FlashInfer-TRTLLM"));
  EXPECT_EQ(layer.backend, "FlashInfer-TRTLLM");
}

TEST(LayerFields, AConfigurationObjectSetsFieldsAndTheParallelLayout) {
  Layer layer;
  const Json config = {
      {"activation", "gelu_pytorch_tanh"},
      {"has_bias", true},
      {"hidden_dim", 4096},
      {"swiglu_limit", 7.0},
      {"activation_quant", nullptr},
      {"parallel", {{"ep_size", 8}, {"use_ep", true}, {"all2all_backend", "mori"}}}};

  ASSERT_TRUE(set_fields(layer, config));

  EXPECT_EQ(layer.activation, Activation::gelu_tanh);
  EXPECT_TRUE(layer.has_bias);
  EXPECT_EQ(layer.hidden, 4096u);
  EXPECT_EQ(layer.swiglu_limit, 7.0);
  EXPECT_EQ(layer.parallel.ep_size, 8);
  EXPECT_TRUE(layer.parallel.use_ep);
  EXPECT_EQ(layer.parallel.all2all_backend, "mori");
}

TEST(LayerFields, ConfigurationsOfAnotherShapeAreRefused) {
  Layer layer;
  EXPECT_FALSE(set_fields(layer, Json::array()));
  EXPECT_FALSE(set_fields(layer, {{"hidden_dim", Json::array()}}));
  EXPECT_FALSE(set_fields(layer, {{"parallel", 3}}));
  EXPECT_FALSE(set_fields(layer, {{"parallel", {{"tp_size", -1}}}}));
  EXPECT_FALSE(set_fields(layer, {{"parallel", {{"use_ep", 1}}}}));
  EXPECT_FALSE(set_fields(layer, {{"parallel", {{"all2all_backend", 1}}}}));
  EXPECT_FALSE(set_fields(layer, {{"parallel", {{"cp_size", 1}}}}));
}

}  // namespace layer_fields_test
}  // namespace fp4moe::oracle
