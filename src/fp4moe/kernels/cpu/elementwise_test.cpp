#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/kernels/cpu/elementwise_list.hpp"
#include "fp4moe/kernels/cpu/gemm.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"

namespace fp4moe::kernels::cpu {
namespace elementwise_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Values of every size and sign, infinities and NaN.
std::vector<float> all_sizes() {
  std::vector<float> result{0.0f, -0.0f, kInfinity, -kInfinity, NAN, 1e-45f, -1e-45f, 3e38f};
  for (std::uint32_t bits = 0x00000001; bits < 0x7F800000; bits += 0x0000F0F1) {
    result.push_back(std::bit_cast<float>(bits));
    result.push_back(std::bit_cast<float>(bits | 0x80000000));
  }
  for (float x = -130.0f; x < 130.0f; x += 0.37f) result.push_back(x);
  result.resize(result.size() / kChunk * kChunk);
  return result;
}

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

TEST(Elementwise, EveryInstructionSetGivesTheBitsOfThePortableReference) {
  const std::vector<float> values = all_sizes();
  const ElementwiseFunctions& reference = *elementwise_kernels().back().functions;
  for (const ElementwiseKernel& kernel : elementwise_kernels()) {
    if (!machine_features().contains_all(kernel.needs)) continue;
    for (std::size_t f = 0; f <= static_cast<std::size_t>(GateFunction::gelu_tanh); ++f)
      for (std::size_t at = 0; at < values.size(); at += kChunk) {
        float expected[kChunk], found[kChunk];
        ActivateGates call{.function = static_cast<GateFunction>(f),
                           .alpha = 1.702f,
                           .limit = 7.0f,
                           .bound = 1.5f,
                           .gates = values.data() + at,
                           .to = expected};
        reference.gates(call);
        call.to = found;
        kernel.functions->gates(call);
        for (std::size_t i = 0; i < kChunk; ++i)
          ASSERT_TRUE(same(expected[i], found[i]))
              << kernel.name << ", function " << f << " of " << values[at + i];
      }
    for (std::size_t f = 0; f <= static_cast<std::size_t>(UpFunction::situ); ++f)
      for (std::size_t at = 0; at < values.size(); at += kChunk) {
        float expected[kChunk], found[kChunk];
        for (std::size_t i = 0; i < kChunk; ++i)
          expected[i] = found[i] = static_cast<float>(i) - 31.7f;
        MultiplyUps call{.function = static_cast<UpFunction>(f),
                         .beta = 1.0f,
                         .limit = 7.0f,
                         .bound = 1.5f,
                         .ups = values.data() + at,
                         .to = expected};
        reference.ups(call);
        call.to = found;
        kernel.functions->ups(call);
        for (std::size_t i = 0; i < kChunk; ++i)
          ASSERT_TRUE(same(expected[i], found[i]))
              << kernel.name << ", function " << f << " of " << values[at + i];
      }
  }
}

TEST(Elementwise, ScalesRoundsAndAddsTheSameEverywhere) {
  const std::vector<float> values = all_sizes();
  const ElementwiseFunctions& reference = *elementwise_kernels().back().functions;
  for (const ElementwiseKernel& kernel : elementwise_kernels()) {
    if (!machine_features().contains_all(kernel.needs)) continue;
    for (std::size_t at = 0; at + 2 * kChunk <= values.size(); at += kChunk)
      for (const float* bias : {static_cast<const float*>(nullptr), values.data()}) {
        float expected[4 * kChunk], found[4 * kChunk];
        for (float* to : {expected, found}) {
          const ElementwiseFunctions& functions = to == expected ? reference : *kernel.functions;
          functions.split({.sums = values.data() + at,
                           .gate_factor = 0.3f,
                           .up_factor = 1.7f,
                           .gate_bias = bias,
                           .up_bias = bias,
                           .gates = to,
                           .ups = to + kChunk});
          functions.weigh({.sums = values.data() + at,
                           .count = 2 * kChunk - 3,  // rows need not fill vectors
                           .factor = 0.3f,
                           .weight = 0.7f,
                           .bias = bias,
                           .to = to + 2 * kChunk});
          functions.add(values.data() + at, 2 * kChunk - 5, to + 2 * kChunk);
        }
        for (std::size_t i = 0; i < 4 * kChunk - 3; ++i)
          ASSERT_TRUE(same(expected[i], found[i])) << kernel.name << " at " << at + i;
        for (const int limit : {127, 32639}) {
          std::int16_t rounded[2][kChunk];
          float half_steps[2];
          reference.round({values.data() + at, kChunk, limit, rounded[0], half_steps});
          kernel.functions->round({values.data() + at, kChunk, limit, rounded[1], half_steps + 1});
          EXPECT_TRUE(same(half_steps[0], half_steps[1])) << kernel.name;
          ASSERT_EQ(std::memcmp(rounded[0], rounded[1], sizeof rounded[0]), 0) << kernel.name;
        }
      }
  }
}

TEST(Elementwise, AnyLengthIsComputedAndNothingBehindIt) {
  const std::vector<float> values = all_sizes();
  constexpr float kUntouched = -3.0f;
  for (const ElementwiseKernel& kernel : elementwise_kernels()) {
    if (!machine_features().contains_all(kernel.needs)) continue;
    for (const std::size_t count : {0u, 1u, 3u, 7u, 8u, 9u, 15u, 16u, 17u, 31u, 33u, 63u, 65u}) {
      std::vector<float> found(80, kUntouched);
      kernel.functions->weigh({.sums = values.data() + 1,
                               .count = count,
                               .factor = 0.3f,
                               .weight = 0.7f,
                               .bias = values.data() + 65,
                               .to = found.data() + 1});
      kernel.functions->add(values.data() + 33, count, found.data() + 1);
      for (std::size_t i = 0; i < found.size(); ++i) {
        const float expected = i == 0 || i > count
                                   ? kUntouched
                                   : (values[i] * 0.3f + values[64 + i]) * 0.7f + values[32 + i];
        ASSERT_TRUE(same(expected, found[i])) << kernel.name << ", " << count << " at " << i;
      }
    }
  }
}

TEST(Elementwise, RoundsManyChunksTheSameEverywhere) {
  constexpr std::size_t kChunks = 5;
  const std::vector<float> values = all_sizes();
  ASSERT_GE(values.size(), kChunks * kChunk);
  const ElementwiseFunctions& reference = *elementwise_kernels().back().functions;
  for (const ElementwiseKernel& kernel : elementwise_kernels()) {
    if (!machine_features().contains_all(kernel.needs)) continue;
    std::vector<std::int16_t> expected(kChunks * kChunk), found(kChunks * kChunk);
    float expected_steps[kChunks], found_steps[kChunks];
    reference.round({values.data(), kChunks * kChunk, 32639, expected.data(), expected_steps});
    kernel.functions->round({values.data(), kChunks * kChunk, 32639, found.data(), found_steps});
    EXPECT_EQ(expected, found) << kernel.name;
    for (std::size_t c = 0; c < kChunks; ++c)
      EXPECT_TRUE(same(expected_steps[c], found_steps[c])) << kernel.name;
  }
}

// A sigmoid that vanishes leaves a product that is tiny or 0, but not subnormal: such numbers cost
// more than a hundred cycles each.
TEST(Elementwise, SaturatedGatesAreNotSubnormal) {
  for (const ElementwiseKernel& kernel : elementwise_kernels()) {
    if (!machine_features().contains_all(kernel.needs)) continue;
    float gates[kChunk], result[kChunk];
    for (std::size_t i = 0; i < kChunk; ++i) gates[i] = -30.0f - 10.0f * static_cast<float>(i);
    kernel.functions->gates({.function = GateFunction::swish,
                             .alpha = 1.702f,
                             .limit = 7.0f,
                             .gates = gates,
                             .to = result});
    for (const float value : result) {
      EXPECT_TRUE(value == 0 || std::isnormal(value)) << kernel.name << ": " << value;
      EXPECT_LT(std::fabs(value), 1e-20f) << kernel.name;
    }
  }
}

}  // namespace elementwise_test
}  // namespace fp4moe::kernels::cpu
