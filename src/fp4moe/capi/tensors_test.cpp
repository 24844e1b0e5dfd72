// fp4moe_model_from_tensors as C calls it.
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/c_api.hpp"

namespace fp4moe::capi {
namespace tensors_test {

using namespace testing;

std::vector<float> computed(fp4moe_layer* layer) {
  std::vector<float> x(3 * kHidden), logits(3 * kExperts), y(3 * kHidden);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3.0f;
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 5);
  const fp4moe_rows in = rows_of(x, kHidden), scores = rows_of(logits, kExperts);
  const fp4moe_output out = output_of(y, kHidden);
  EXPECT_EQ(fp4moe_layer_run(layer, &in, &scores, &out), FP4MOE_OK) << fp4moe_last_error();
  return y;
}

fp4moe_layer* ready(fp4moe_model* model) {
  const fp4moe_layer_options options = layer_options();
  fp4moe_layer* layer = nullptr;
  EXPECT_EQ(fp4moe_layer_create(model, 0, &options, &layer), FP4MOE_OK) << fp4moe_last_error();
  EXPECT_EQ(fp4moe_layer_load(layer), FP4MOE_OK) << fp4moe_last_error();
  EXPECT_EQ(fp4moe_layer_process(layer), FP4MOE_OK) << fp4moe_last_error();
  return layer;
}

TEST(CApiTensors, GiveTheLayersOfTheFilesAndFollowChanges) {
  ReadTensors read;
  const fp4moe_tensors tensors = read.tensors();
  fp4moe_model* model = nullptr;
  ASSERT_EQ(fp4moe_model_from_tensors(&tensors, &model), FP4MOE_OK) << fp4moe_last_error();
  fp4moe_layer* layer = ready(model);
  fp4moe_layer* of_files = ready_layer();
  const std::vector<float> before = computed(layer);
  EXPECT_EQ(before, computed(of_files));
  for (std::size_t i = 0; i < read.memory.size(); ++i)
    if (read.entries[i].name.find("down_proj_blocks") != std::string::npos)
      for (std::byte& byte : read.memory[i]) byte ^= std::byte{0x31};
  ASSERT_EQ(fp4moe_layer_load(layer), FP4MOE_OK);
  ASSERT_EQ(fp4moe_layer_process(layer), FP4MOE_OK);
  EXPECT_NE(computed(layer), before);
  fp4moe_layer_destroy(of_files);
  fp4moe_layer_destroy(layer);
  fp4moe_model_close(model);
}

TEST(CApiTensors, MayBeStructsOfANewerProgram) {
  struct Newer {
    fp4moe_tensor known;
    std::uint64_t unknown;
  };
  const ReadTensors read;
  std::vector<Newer> longer;
  for (fp4moe_tensor each : read.all) {
    each.size = sizeof(Newer);
    longer.push_back({each, 0});
  }
  fp4moe_tensors tensors = read.tensors();
  tensors.tensors = &longer[0].known;
  fp4moe_model* model = nullptr;
  EXPECT_EQ(fp4moe_model_from_tensors(&tensors, &model), FP4MOE_OK) << fp4moe_last_error();
  fp4moe_model_close(model);
  longer.back().unknown = 1;
  EXPECT_EQ(fp4moe_model_from_tensors(&tensors, &model), FP4MOE_USAGE);
  EXPECT_STREQ(fp4moe_last_error_id(), "struct.tail");
  EXPECT_EQ(model, nullptr);
}

TEST(CApiTensors, AreRefusedWithTheirNames) {
  const ReadTensors read;
  const auto id_with = [&](auto change) -> std::string {
    std::vector<fp4moe_tensor> all = read.all;
    fp4moe_tensors tensors = read.tensors();
    tensors.tensors = all.data();
    change(tensors, all[0]);
    fp4moe_model* model = nullptr;
    const fp4moe_status status = fp4moe_model_from_tensors(&tensors, &model);
    fp4moe_model_close(model);
    return status == FP4MOE_OK ? "ok" : fp4moe_last_error_id();
  };
  using All = fp4moe_tensors&;
  using One = fp4moe_tensor&;
  EXPECT_EQ(id_with([](All, One) {}), "ok");
  EXPECT_EQ(id_with([](All, One one) { one.name = nullptr; }), "argument.null");
  EXPECT_EQ(id_with([](All, One one) { one.name = ""; }), "argument.empty");
  EXPECT_EQ(id_with([](All, One one) { one.dtype = nullptr; }), "tensors.type");
  EXPECT_EQ(id_with([](All, One one) { one.dtype = "MXFP4"; }), "tensors.type");
  EXPECT_EQ(id_with([](All, One one) { one.dimensions = 99; }), "tensors.shape");
  EXPECT_EQ(id_with([](All, One one) { one.shape = nullptr; }), "argument.null");
  EXPECT_EQ(id_with([](All, One one) { one.data = nullptr; }), "argument.null");
  EXPECT_EQ(id_with([](All, One one) { one.bytes -= 1; }), "store.shape");
  EXPECT_EQ(id_with([](All, One one) { one.size = 0; }), "struct.size");
  EXPECT_EQ(id_with([&](All, One one) { one.name = read.all[1].name; }), "store.duplicate");
  EXPECT_EQ(id_with([](All all, One) { all.tensors = nullptr; }), "argument.null");
  EXPECT_EQ(id_with([](All all, One) { all.count = UINT64_MAX; }), "tensors.count");
  EXPECT_EQ(id_with([](All all, One) { all.count = 0; }), "dialect.unknown");
  EXPECT_EQ(id_with([](All all, One) { all.size = 0; }), "struct.size");
  EXPECT_EQ(id_with([](All all, One) { all.config = R"({"model_type": 1})"; }), "config.type");
  EXPECT_EQ(id_with([](All all, One) { all.quant_config = "["; }), "json.syntax");
  fp4moe_tensors tensors = read.tensors();
  EXPECT_EQ(fp4moe_model_from_tensors(&tensors, nullptr), FP4MOE_USAGE);
}

}  // namespace tensors_test
}  // namespace fp4moe::capi
