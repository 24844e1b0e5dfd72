// Calls on device pointers and a stream, through C.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/c_api.hpp"
#include "support/c_weights.hpp"
#include "support/device.hpp"

namespace fp4moe::capi {
namespace call_gpu_test {

using namespace testing;
using checkpoint::WeightFormat;
using moe::cuda::testing::download;
using moe::cuda::testing::error_of;
using moe::cuda::testing::kMaxError;
using moe::cuda::testing::upload;

constexpr std::uint64_t kTokens = 5;

std::vector<double> doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

class CApiOnDevice : public moe::cuda::testing::OnDevice {
 protected:
  // A layer from weights in memory on an engine, and the same tokens for all.
  static fp4moe_layer* layer_on(const char* engine, WeightFormat format) {
    auto options = layer_options();
    options.engine = engine;
    options.device = "auto";
    options.numerics = "exact";
    const std::string& path = format == WeightFormat::mxfp4 ? model_path() : nvfp4_path();
    return layer_of(CWeights(path), Description(format), options);
  }
  const std::vector<float> x = seeded(kTokens * kHidden, 1), logits = seeded(kTokens * kExperts, 2);
  const std::vector<std::int32_t> ids{0, 5, 3, -1, 2, 2, 4, 1, 0, 3};
  const std::vector<float> weights = seeded(kTokens * 2, 3);
};

TEST_F(CApiOnDevice, GivesTheNumbersOfTheHost) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    fp4moe_layer* host = layer_on("reference", format);
    fp4moe_layer* gpu = layer_on("cuda", format);
    const auto stream = device->make_stream();
    ASSERT_TRUE(stream) << text(stream.why());
    const auto on_device_x = upload(*device, x), on_device_logits = upload(*device, logits);
    const auto on_device_ids = upload(*device, ids), on_device_weights = upload(*device, weights);
    const auto result = upload(*device, std::vector<float>(kTokens * kHidden));
    ASSERT_EQ(fp4moe_layer_reserve(gpu, kTokens, 0), FP4MOE_OK) << fp4moe_last_error();
    for (const bool routes : {true, false})
      for (const std::uint64_t trusted : {0u, 1u}) {
        std::vector<float> expected(kTokens * kHidden);
        fp4moe_rows in = rows_of(x, kHidden), scores = rows_of(logits, kExperts);
        fp4moe_output out = output_of(expected, kHidden);
        fp4moe_routes chosen{sizeof chosen, ids.data(), weights.data(), kTokens, 2};
        fp4moe_call call{};
        call.size = sizeof call;
        call.x = &in;
        call.out = &out;
        call.routes = routes ? &chosen : nullptr;
        call.logits = routes ? nullptr : &scores;
        ASSERT_EQ(fp4moe_layer_call(host, &call), FP4MOE_OK) << fp4moe_last_error();

        ASSERT_TRUE(device->clear(result.data(), 0xFF, result.size(), nullptr));
        ASSERT_TRUE(device->wait(nullptr));
        in.data = on_device_x.data();
        scores.data = on_device_logits.data();
        out.data = result.data();
        chosen.ids = on_device_ids.as<const std::int32_t>();
        chosen.weights = on_device_weights.as<const float>();
        call.on_device = 1;
        call.stream = *stream;
        call.trusted = trusted;
        ASSERT_EQ(fp4moe_layer_call(gpu, &call), FP4MOE_OK) << fp4moe_last_error();
        ASSERT_TRUE(device->wait(*stream));
        const auto found = download<float>(*device, result.data(), expected.size());
        EXPECT_LT(error_of(doubles(expected), doubles(found)), kMaxError);
      }
    device->drop_stream(*stream);
    fp4moe_layer_destroy(host);
    fp4moe_layer_destroy(gpu);
  }
}

TEST_F(CApiOnDevice, RefusesAddressesThatAreNotTheDevices) {
  fp4moe_layer* gpu = layer_on("cuda", WeightFormat::mxfp4);
  std::vector<float> result(kTokens * kHidden);
  const fp4moe_rows in = rows_of(x, kHidden), scores = rows_of(logits, kExperts);
  const fp4moe_output out = output_of(result, kHidden);
  fp4moe_call call{};
  call.size = sizeof call;
  call.x = &in;
  call.out = &out;
  call.logits = &scores;
  EXPECT_EQ(fp4moe_layer_call(gpu, &call), FP4MOE_OK) << "tokens on the host";
  call.on_device = 1;
  EXPECT_EQ(fp4moe_layer_call(gpu, &call), FP4MOE_USAGE);
  EXPECT_STREQ(fp4moe_last_error_id(), "cuda.pointer");
  EXPECT_NE(fp4moe_layer_reserve(gpu, UINT64_MAX, 0), FP4MOE_OK);
  fp4moe_layer_destroy(gpu);
}

TEST_F(CApiOnDevice, FollowsAReload) {
  fp4moe_layer* gpu = layer_on("cuda", WeightFormat::mxfp4);
  CWeights other(model_path());
  for (std::byte& byte : other.memory.w2.codes) byte ^= std::byte{0x21};
  const auto on_device_x = upload(*device, x), on_device_logits = upload(*device, logits);
  const auto result = upload(*device, std::vector<float>(kTokens * kHidden));
  fp4moe_rows in = rows_of(x, kHidden), scores = rows_of(logits, kExperts);
  in.data = on_device_x.data();
  scores.data = on_device_logits.data();
  const fp4moe_output out{sizeof out, result.data(), FP4MOE_F32, kTokens, kHidden, 0};
  fp4moe_call call{};
  call.size = sizeof call;
  call.x = &in;
  call.out = &out;
  call.logits = &scores;
  call.on_device = 1;
  const auto run = [&] {
    EXPECT_EQ(fp4moe_layer_call(gpu, &call), FP4MOE_OK) << fp4moe_last_error();
    EXPECT_TRUE(device->wait(nullptr));
    return download<float>(*device, result.data(), kTokens * kHidden);
  };
  const std::vector<float> before = run();
  const fp4moe_weights given = other.given();
  ASSERT_EQ(fp4moe_layer_load_weights(gpu, &given), FP4MOE_OK) << fp4moe_last_error();
  ASSERT_EQ(fp4moe_layer_process(gpu), FP4MOE_OK) << fp4moe_last_error();
  EXPECT_NE(run(), before);
  fp4moe_layer_destroy(gpu);
}

}  // namespace call_gpu_test
}  // namespace fp4moe::capi
