// Whole layers on kernels of the family sm80 that run on a CPU: host code, plans, kernels, numbers.
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/emulator/device.hpp"
#include "fp4moe/moe/cuda/device_layer.hpp"
#include "fp4moe/moe/cuda/plan.hpp"
#include "support/device.hpp"

namespace fp4moe::moe::cuda {
namespace device_layer_emulated_test {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of this test alone
using emulator::Copies;
using emulator::driver;
using emulator::reset_driver;

class EmulatedLayers : public ::testing::Test {
 protected:
  void SetUp() override {
    reset_driver();
    open();
  }
  void TearDown() override { EXPECT_EQ(driver().unknown_kernels, 0); }
  void open() {
    auto opened = emulator::open_device();
    ASSERT_TRUE(opened) << text(opened.why());
    device = std::move(*opened);
  }

  std::shared_ptr<const Device> device{};
};

TEST_F(EmulatedLayers, AgreeWithTheReferenceForAnyNumberOfTokens) {
  const std::pair<WeightFormat, Sizes> shapes[] = {{WeightFormat::mxfp4, {3, 96, 160}},
                                                   {WeightFormat::nvfp4, {3, 208, 80}}};
  for (const auto& [format, sizes] : shapes) {
    const TestLayer weights = layer_of(format, sizes, Activation::swigluoai);
    const ExpertsProblem problem = problem_of(weights);
    const DeviceLayer layer = make_layer(device, problem, weights.source());
    for (const auto& [count, tile] : {std::pair{1u, 32}, std::pair{8u, 32}, std::pair{9u, 32},
                                      std::pair{60u, 64}, std::pair{100u, 128}}) {
      const TestTokens tokens(count, sizes.hidden, 2, sizes.experts, 40 + count);
      emulator::launched();
      EXPECT_LE(error_of(reference(problem, weights, tokens),
                         run(layer, tokens, OutputForm::summed, DType::bf16)),
                kMaxError)
          << formats::name(format) << ", " << count << " tokens";
      EXPECT_EQ(emulator::launched(), fmt::format("{2} grouped_gemm_n{0}_{1} grouped_gemm_n{0}_{1} "
                                                  "combine_bf16",
                                                  tile, formats::name(format),
                                                  count <= 8 ? "route_gather" : "prepare gather"));
    }
  }
}

// Shared memory decides how many stages there are; copies may be late or early, and threads of a block
// run in any order. Bits are the same.
TEST_F(EmulatedLayers, GiveTheSameBitsWhateverTheDeviceAndTheOrder) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4})
    for (const std::uint64_t count : {5u, 50u, 90u}) {
      const Sizes sizes{2, 320, 64};
      const TestLayer weights = layer_of(format, sizes);
      const TestTokens tokens(count, sizes.hidden, 2, sizes.experts, count);
      std::vector<std::byte> first;
      for (const int shared : {51, 99, 163, 227}) {
        reset_driver();
        driver().shared_bytes = shared * 1024;
        emulator::options() = {.copies = shared % 2 == 0 ? Copies::lazy : Copies::eager,
                               .seed = static_cast<std::uint64_t>(shared)};
        if (shared == 163) emulator::options().copies = Copies::lazy;
        open();
        const DeviceLayer layer = make_layer(device, problem_of(weights), weights.source());
        Upload given(*device, tokens);
        run(layer, given, {.tokens = count, .top_k = 2});
        if (first.empty()) first = given.bytes();
        EXPECT_TRUE(first == given.bytes())
            << formats::name(format) << ", " << count << " tokens, " << shared << " KiB";
      }
    }
}

// One adapter for every other token. Its matrices lie in memory of the host, as the device's does.
TEST_F(EmulatedLayers, AdaptersAreAdded) {
  const Sizes sizes{3, 96, 64};
  const TestLayer weights = layer_of(WeightFormat::nvfp4, sizes);
  const ExpertsProblem problem = problem_of(weights, "unfused");
  const std::uint64_t rank = 5, count = 9;
  SplitMix64 random(17);
  std::vector<std::vector<float>> memory;
  const auto matrix = [&](std::uint64_t rows, std::uint64_t columns) {
    std::vector<float>& values = memory.emplace_back(rows * columns);
    for (float& value : values) value = 0.25f * (random.unit() - 0.5f);
    return FloatMatrix{values.data(), rows, columns, columns};
  };
  std::vector<LoraExpert> pairs(sizes.experts);
  std::vector<kernels::cuda::DeviceLoraExpert> on_device(sizes.experts);
  const auto fill = [&](LowRank& host, kernels::cuda::DeviceLowRank& device_pair,
                        std::uint64_t inputs, std::uint64_t outputs) {
    host = {matrix(rank, inputs), matrix(outputs, rank)};
    device_pair = {host.a.data, host.b.data, static_cast<std::uint32_t>(rank), inputs, rank};
  };
  for (std::size_t e = 0; e < sizes.experts; ++e) {
    fill(pairs[e].gate, on_device[e].gate, sizes.hidden, sizes.intermediate);
    if (e != 1) fill(pairs[e].up, on_device[e].up, sizes.hidden, sizes.intermediate);
    fill(pairs[e].down, on_device[e].down, sizes.intermediate, sizes.hidden);
  }
  const TestTokens tokens(count, sizes.hidden, 2, sizes.experts, count);
  std::vector<std::int32_t> of_token;
  for (std::uint64_t t = 0; t < count; ++t)
    of_token.push_back(static_cast<std::int32_t>(t % 2) - 1);

  const reference::ReferenceEngine engine(std::make_shared<ThreadPool>(1));
  const auto experts = engine.make(problem, weights.source());
  ASSERT_TRUE(experts) << text(experts.why());
  Prepared in = tokens.prepared();
  in.adapters = of_token;
  std::vector<double> expected(count * sizes.hidden);
  ASSERT_TRUE((*experts)->compute(
      {.in = in, .lora = {.pairs = pairs, .experts = sizes.experts}}, OutputForm::summed,
      dense_rows(std::span(expected), DType::f64, count, sizes.hidden)));

  const DeviceLayer layer = make_layer(device, problem, weights.source());
  Upload given(*device, tokens);
  const Memory pairs_memory = upload(*device, std::as_bytes(std::span(on_device)));
  const Memory of_token_memory = upload(*device, of_token);
  given.call.in.adapters = {of_token_memory.as<const std::int32_t>(), of_token.size()};
  given.call.adapters = {pairs_memory.as<const kernels::cuda::DeviceLoraExpert>(), rank};
  EXPECT_LE(error_of(expected, run(layer, given, {.tokens = count, .top_k = 2, .max_rank = rank})),
            kMaxError);
}

TEST_F(EmulatedLayers, ADeviceWithTooLittleSharedMemoryIsRefused) {
  driver().shared_bytes = 32 * 1024;
  open();
  const TestLayer weights = layer_of(WeightFormat::mxfp4, {2, 64, 64});
  const auto layer = DeviceLayer::make(device, problem_of(weights), weights.source());
  ASSERT_FALSE(layer);
  EXPECT_EQ(layer.why().id, "cuda.limits");
}

}  // namespace device_layer_emulated_test

}  // namespace fp4moe::moe::cuda
