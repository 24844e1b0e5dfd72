// Layers on a device that is none: a library stands in for the driver, whose memory is the host's
// and whose kernels do nothing (tests/cuda/fake_driver).
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "cuda/fake_driver.hpp"
#include "fp4moe/moe/cuda/device_layer.hpp"
#include "support/tiny_layer.hpp"

namespace fp4moe::moe::cuda::testing {

using checkpoint::WeightFormat;
using kernels::cuda::Cubin;
using kernels::cuda::Device;
using kernels::cuda::FakeDriver;
using kernels::cuda::Memory;
using moe::testing::TestLayer;

class FakeDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_ = kernels::cuda::open_fake_driver(FP4MOE_FAKE_DRIVER);
    ASSERT_NE(fake_, nullptr) << dlerror();
    *fake_ = FakeDriver{};
    fake_->memory_bytes = std::size_t{64} << 20;
    for (const std::string_view kernel : kernels::cuda::kKernels)
      codes_.push_back(std::string(kernels::cuda::kFakeCode) + "fp4moe_sm90_" +
                       std::string(kernel));
    for (const std::string& code : codes_)
      cubins_.push_back({"fake", std::as_bytes(std::span(code.data(), code.size() + 1))});
    auto device = Device::open(0, {.library = FP4MOE_FAKE_DRIVER, .kernels = cubins_});
    ASSERT_TRUE(device) << text(device.why());
    device_ = std::move(*device);
  }
  void TearDown() override { EXPECT_EQ(fake_->unknown_kernels, 0); }

  static TestLayer weights(WeightFormat format = WeightFormat::mxfp4) {
    return TestLayer({.format = format,
                      .experts = 4,
                      .hidden = 96,
                      .intermediate = 64,
                      .order = checkpoint::RowOrder::halves,
                      .has_bias = format == WeightFormat::mxfp4},
                     Activation::silu, 3);
  }
  static ExpertsProblem problem(const TestLayer& layer, std::string_view numerics = "exact") {
    return {.shape = layer.shape,
            .activation = layer.activation,
            .params = layer.params,
            .numerics = **require_numerics(numerics)};
  }
  Result<DeviceLayer> make(const TestLayer& layer, std::string_view numerics = "exact") const {
    return DeviceLayer::make(device_, problem(layer, numerics), layer.source());
  }
  // Memory that the driver knows as the device's.
  const void* known(std::size_t bytes) {
    Result<Memory> memory = device_->allocate(bytes);
    EXPECT_TRUE(memory);
    const void* at = memory->data();
    fake_->pointers[at] = {.type = 2, .ordinal = 0};
    memory_.push_back(std::move(*memory));
    return at;
  }
  DeviceCall call(std::uint64_t tokens, std::uint64_t hidden = 96, std::uint64_t top_k = 2) {
    const auto* x = static_cast<const std::byte*>(known(tokens * hidden * 2 + 64));
    const void* out = known(tokens * hidden * 4 + 64);
    const auto* ids = static_cast<const std::int32_t*>(known(tokens * top_k * 4 + 64));
    return {.in = {{.x = {x, DType::bf16, tokens, hidden, hidden * 2},
                    .top_k = top_k,
                    .ids = {ids, tokens * top_k}}},
            .out = {memory_of(out), DType::f32, tokens, hidden, hidden * 4}};
  }
  std::byte* memory_of(const void* at) const {
    const auto found = std::ranges::find(memory_, at, [](const Memory& m) { return m.data(); });
    return found->data();
  }
  std::vector<std::string> launched() {
    std::vector<std::string> names;
    for (const auto& launch : fake_->launches)
      names.push_back(launch.kernel.substr(std::string_view("fp4moe_sm90_").size()));
    fake_->launches.clear();
    return names;
  }

  FakeDriver* fake_ = nullptr;
  std::vector<std::string> codes_{};
  std::vector<Cubin> cubins_{};
  std::shared_ptr<const Device> device_{};
  std::vector<Memory> memory_{};
};

}  // namespace fp4moe::moe::cuda::testing
