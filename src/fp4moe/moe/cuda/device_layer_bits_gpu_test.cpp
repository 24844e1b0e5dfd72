// The same call gives the same bits: on every run and replay, whichever tile a token falls into,
// and in threads side by side.
#include <thread>

#include "fp4moe/moe/cuda/device_layer.hpp"
#include "support/device.hpp"

namespace fp4moe::moe::cuda {
namespace device_layer_bits_gpu_test {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of this test alone

class DeviceLayerBits : public OnDevice {};

TEST_F(DeviceLayerBits, EveryRunAndReplayGivesTheSameBits) {
  const Sizes sizes{8, 192, 128};
  const TestLayer weights = layer_of(WeightFormat::mxfp4, sizes);
  const DeviceLayer layer = make_layer(device, problem_of(weights), weights.source());
  for (const std::uint64_t count : some_tokens({1, 16, 60, 500})) {
    const TestTokens tokens(count, sizes.hidden, 4, sizes.experts, count);
    const Upload given(*device, tokens);
    const Workspace space = reserve(layer, {.tokens = count, .top_k = 4});
    const Result<Stream> stream = device->make_stream();
    ASSERT_TRUE(stream);
    std::vector<std::byte> first;
    const auto check = [&](int round) {
      ASSERT_TRUE(device->wait(*stream));
      if (round == 0) first = given.bytes();
      EXPECT_EQ(given.bytes(), first) << count << ", run " << round;
    };
    for (int round = 0; round < 5; ++round) {
      given.poison();
      ASSERT_TRUE(layer.apply(given.call, space, *stream));
      check(round);
    }
    ASSERT_TRUE(device->begin_capture(*stream));
    // Two calls in one graph: the second begins while the first one ends.
    const auto captured = layer.apply(given.call, space, *stream);
    const auto again = layer.apply(given.call, space, *stream);
    const Result<void*> graph = device->end_capture(*stream);
    ASSERT_TRUE(captured) << text(captured.why());
    ASSERT_TRUE(again) << text(again.why());
    ASSERT_TRUE(graph) << text(graph.why());
    for (int round = 5; round < 10; ++round) {
      given.poison();
      ASSERT_TRUE(device->replay(*graph, *stream));
      check(round);
    }
    device->drop_graph(*graph);
    device->drop_stream(*stream);
  }
}

// An expert has several tiles of different sizes, for every max size of tiles, and assignments come
// in any order. The bits of a token do not depend on the tile that it falls into.
TEST_F(DeviceLayerBits, BitsDoNotDependOnTheTileThatATokenFallsInto) {
  const Sizes sizes{64, 192, 128};
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const TestLayer weights = layer_of(format, sizes);
    const ExpertsProblem problem = problem_of(weights);
    const DeviceLayer layer = make_layer(device, problem, weights.source());
    // Most tokens have the same expert as first choice. Its tiles: 24 and 16 tokens; 64 and 56; and
    // bounds of 88, 128 and 192 tokens, of which not all tiles are as large as others.
    for (const std::uint64_t count : some_tokens({42, 46, 700, 1000, 1500, 3000})) {
      TestTokens tokens(count, sizes.hidden, 4, sizes.experts, count);
      for (std::uint64_t t = 0; t < count; ++t)
        tokens.ids[4 * t] = static_cast<std::int32_t>(t % 5 == 0 ? t % sizes.experts : 3);
      const Upload given(*device, tokens);
      const Workspace space = reserve(layer, {.tokens = count, .top_k = 4});
      std::vector<std::byte> first;
      for (int round = 0; round < 12; ++round) {
        given.poison();
        ASSERT_TRUE(layer.apply(given.call, space, nullptr));
        ASSERT_TRUE(device->wait(nullptr));
        if (round == 0) first = given.bytes();
        ASSERT_EQ(given.bytes(), first)
            << formats::name(format) << ", " << count << " tokens, run " << round;
      }
    }
  }
}

TEST_F(DeviceLayerBits, ThreadsShareOneLayerWithWorkspacesOfTheirOwn) {
  const Sizes sizes{8, 128, 128};
  const TestLayer weights = layer_of(WeightFormat::nvfp4, sizes);
  const DeviceLayer layer = make_layer(device, problem_of(weights), weights.source());
  const TestTokens tokens(is_small() ? 10 : 70, sizes.hidden, 2, sizes.experts, 1);
  const std::vector<double> expected = run(layer, tokens);
  std::vector<std::vector<double>> found(4);
  std::vector<std::thread> threads;
  for (auto& mine : found)
    threads.emplace_back([&] {
      const Upload given(*device, tokens);
      const Workspace space = reserve(layer, {.tokens = tokens.tokens, .top_k = 2});
      const Result<Stream> stream = device->make_stream();
      for (int round = 0; round < 20; ++round)
        if (!layer.apply(given.call, space, *stream)) return;
      if (device->wait(*stream)) mine = given.values();
      device->drop_stream(*stream);
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : found) EXPECT_EQ(mine, expected);
}

}  // namespace device_layer_bits_gpu_test
}  // namespace fp4moe::moe::cuda
