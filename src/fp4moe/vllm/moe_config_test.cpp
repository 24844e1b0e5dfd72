#include "fp4moe/vllm/moe_config.hpp"

#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/oracle/layer_fields.hpp"

namespace fp4moe::vllm {
namespace moe_config_test {

// A value of the field that its default is not; empty: it takes anything.
std::string another_value(const oracle::LayerField& field) {
  const std::string shown = field.show({});
  for (const std::string word :
       {"false", "true", "2", "256", "0.5", "silu", "DeepSeekV3", "float32", "mxfp8", "marlin"}) {
    oracle::Layer layer;
    if (word != shown && field.set(layer, word) && field.show(layer) != shown) return word;
  }
  return {};
}

TEST(MoeConfig, HasEveryFieldOfALayer) {
  for (const oracle::LayerField& field : oracle::layer_fields()) {
    oracle::Layer layer;
    const std::string value = another_value(field);
    ASSERT_FALSE(value.empty()) << field.key;
    ASSERT_TRUE(field.set(layer, value)) << field.key;
    EXPECT_EQ(field.show(layer_of(config_of(layer))), field.show(layer)) << field.key;
  }
  oracle::Layer layer;
  layer.parallel = oracle::derive({.tp_size = 2, .dp_size = 2, .enable_expert_parallel = true});
  EXPECT_EQ(layer_of(config_of(layer)).parallel.ep_size, 4);
}

TEST(MoeConfig, IsGptOssByDefault) {
  const oracle::Layer expected, found = layer_of(MoeConfig{});
  for (const oracle::LayerField& field : oracle::layer_fields())
    EXPECT_EQ(field.show(found), field.show(expected)) << field.key;
}

TEST(Context, MeansTheNewestPolicyOfTheReference) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const auto newest = policy_of({}, format);
    ASSERT_TRUE(newest) << text(newest.why());
    for (const oracle::Policy& other : backends::policies()) {
      if (other.format != format || other.policy_date == oracle::PolicyDate::native) continue;
      EXPECT_LE(other.policy_date, (*newest)->policy_date) << other.name;
    }
    EXPECT_FALSE((*newest)->is_generic);
  }
}

TEST(Context, RefusesAPolicyThatThereIsNot) {
  const auto found = policy_of({.policy = "2025-01-01"}, WeightFormat::mxfp4);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.why().id, "policy.unknown");
}

TEST(Context, OfThisMachineHasADevice) {
  const auto here = current_context();
  ASSERT_TRUE(here) << text(here.why());
  EXPECT_FALSE(here->device.name.empty());
}

}  // namespace moe_config_test
}  // namespace fp4moe::vllm
