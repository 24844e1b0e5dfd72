// Device code's functions against the ones the other engines use.
#include "functions.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "fp4moe/formats/block.hpp"
#include "fp4moe/kernels/cpu/elementwise_list.hpp"
#include "fp4moe/moe/activation.hpp"
#include "fp4moe/moe/cpu/epilogue.hpp"
#include "fp4moe/moe/quantized_rows.hpp"
#include "kernels.hpp"
#include "test_device.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace functions_test {

using moe::ActivationKey;

static_assert(static_cast<int>(Quantization::fp8_token) ==
              static_cast<int>(ActivationKey::fp8_token));

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Functions : public OnDevice {
 protected:
  Result<std::shared_ptr<const Device>> open() const override { return test_device(); }

  std::vector<float> compute(Tested which, const LayerParams& layer,
                             const std::array<std::vector<float>, 3>& arguments) {
    const std::size_t count = arguments[0].size();
    const Memory a = upload(arguments[0]), b = upload(arguments[1]), c = upload(arguments[2]);
    const Memory to = buffer<float>(count);
    const FunctionParams params{.layer = layer,
                                .which = which,
                                .count = static_cast<std::uint32_t>(count),
                                .a = a.as<float>(),
                                .b = b.as<float>(),
                                .c = c.as<float>(),
                                .to = to.as<float>()};
    run("fp4moe_test_functions", params, {4, 128});
    return download<float>(to, count);
  }
};

// Rows of every size of number, and some with none.
std::vector<float> awkward_rows(std::size_t columns) {
  SplitMix64 random(4);
  std::vector<float> result;
  for (int exponent = -149; exponent < 128; exponent += 3)
    for (std::size_t c = 0; c < columns; ++c)
      result.push_back(std::ldexp(2 * random.unit() - 1, exponent - static_cast<int>(c % 16)));
  for (const float only : {0.0f, -0.0f, kInfinity, -kInfinity, std::nanf(""), 3.4e38f, 1e-45f}) {
    for (std::size_t c = 0; c < columns; ++c) result.push_back(2 * random.unit() - 1);
    result.back() = only;
    result.insert(result.end(), columns, only);
  }
  // Halves of all steps of E2M1 and E4M3.
  for (std::size_t c = 0; c < 8 * columns; ++c)
    result.push_back(static_cast<float>(c % 97) * (c % 2 == 0 ? 0.25f : -4.5f));
  return result;
}

bool is_same(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b);
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

TEST_F(Functions, QuantizeToTheBitsOfTheHost) {
  struct QuantizationTag {
    Quantization kind;
    std::size_t block;
  };
  for (const auto& [kind, block] :
       {QuantizationTag{Quantization::mxfp8, 32}, QuantizationTag{Quantization::mxfp4, 32},
        QuantizationTag{Quantization::nvfp4, 16},
        QuantizationTag{Quantization::fp8_static_tensor, 32},
        QuantizationTag{Quantization::fp8_block128, 128},
        QuantizationTag{Quantization::fp8_token, 64}})
    for (const float global : {1.0f, 0.037f, 2688.0f, 1e-6f, 3e7f}) {
      SCOPED_TRACE(fmt::format("kind {}, scale {}", static_cast<int>(kind), global));
      const std::vector<float> values = awkward_rows(block);
      std::vector<float> wanted = values, maxima;
      for (std::size_t at = 0; at < values.size(); at += block) {
        const auto row = std::span(wanted).subspan(at, block);
        maxima.insert(maxima.end(), block, formats::block_amax(row));
        moe::quantize_dequantize({static_cast<ActivationKey>(kind), global}, row);
      }
      const std::vector<float> result =
          compute(Tested::quantize_dequantize, {.quantization = kind},
                  {values, maxima, std::vector<float>(values.size(), global)});
      for (std::size_t i = 0; i < result.size(); ++i)
        ASSERT_TRUE(is_same(result[i], wanted[i]))
            << values[i] << " of a block with " << maxima[i] << " became " << result[i] << ", not "
            << wanted[i];
    }
}

TEST_F(Functions, ActivateWithinAMillionth) {
  std::vector<float> gates = random_values(4000, 1, 12), ups = random_values(4000, 2, 12);
  for (const float x : {0.0f, -0.0f, 1e-30f, -1e-30f, 7.0f, -7.0f, 30.0f, -30.0f}) {
    gates.push_back(x);
    ups.push_back(x);
  }
  for (std::uint32_t act = 0; act <= static_cast<std::uint32_t>(Activation::gelu_tanh_no_mul);
       ++act)
    for (const double limit : {7.0, 2.5, static_cast<double>(kInfinity)}) {
      SCOPED_TRACE(fmt::format("activation {}, limit {}", act, limit));
      const moe::ActivationParams params{
          .alpha = 1.702, .beta = 1, .limit = limit, .situ_beta = 3, .situ_linear_beta = 2};
      const LayerParams layer{.act = static_cast<Activation>(act),
                              .alpha = 1.702f,
                              .beta = 1,
                              .limit = static_cast<float>(limit),
                              .situ_beta = 3,
                              .situ_linear_beta = 2};
      const std::vector<float> result = compute(Tested::activated, layer, {gates, ups, gates});
      for (std::size_t i = 0; i < result.size(); ++i) {
        const double wanted = moe::activate(layer.act, params, static_cast<double>(gates[i]),
                                            static_cast<double>(ups[i]));
        // Rounding the argument of exp counts as often as that is large: the gate, and in gelu a
        // square or cube of it. Where the host adds 1 to what is nearly -1, it errs itself.
        const double size = std::abs(static_cast<double>(gates[i]));
        const double within = 1e-6 + 1e-7 * (size + size * size * size / 10);
        ASSERT_NEAR(result[i], wanted, within * std::abs(wanted) + 1e-13)
            << "gate " << gates[i] << ", up " << ups[i];
      }
    }
}

TEST_F(Functions, RoundBetweenGateAndUpWhereTheKernelDoes) {
  const std::vector<float> gates = random_values(1000, 1, 4), ups = random_values(1000, 2, 4);
  for (const MiddleRounding middle : {MiddleRounding::result, MiddleRounding::gate_and_result})
    for (const Activation act : {Activation::silu, Activation::swigluoai}) {
      const LayerParams layer{.act = act, .limit = 7, .middle = middle};
      const LayerParams plain{.act = act, .limit = 7};
      const std::vector<float> ones(gates.size(), act == Activation::silu ? 1.0f : 1.0f);
      const auto result = compute(Tested::activated, layer, {gates, ups, gates});
      const auto halves = compute(Tested::activated, plain, {gates, ones, gates});
      const auto exact = compute(Tested::activated, plain, {gates, ups, gates});
      for (std::size_t i = 0; i < result.size(); ++i) {
        const bool is_apart = middle == MiddleRounding::gate_and_result && act == Activation::silu;
        const float product =
            is_apart ? as_stored(ElementType::bf16, halves[i]) * ups[i] : exact[i];
        ASSERT_EQ(result[i], as_stored(ElementType::bf16, product)) << gates[i] << ", " << ups[i];
      }
    }
}

TEST_F(Functions, FinishSumsAsTheCpuEngineDoes) {
  constexpr std::size_t kCount = kernels::cpu::kChunk;
  const std::vector<float> sums = random_values(kCount, 1, 3), bias = random_values(kCount, 2);
  const std::vector<float> weights(kCount, 0.3f);
  for (const FirstRounding first :
       {FirstRounding::none, FirstRounding::sum, FirstRounding::steps}) {
    moe::cpu::FirstChunk wanted;
    moe::cpu::finish_first({.functions = *kernels::cpu::elementwise_kernels().back().functions,
                            .rounding = first,
                            .is_gated = false,
                            .up_bias = bias.data()},
                           sums.data(), wanted);
    const auto result = compute(Tested::finish_gemm1, {.first = first}, {sums, bias, weights});
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(result[i], wanted.gates[i]);
  }
  for (const SecondRounding second : {SecondRounding::none, SecondRounding::weighted,
                                      SecondRounding::unweighted, SecondRounding::steps}) {
    std::vector<float> wanted = sums;
    moe::cpu::finish_second({.rounding = second, .bias = bias.data()}, 0.3f, kCount, wanted.data());
    if (second == SecondRounding::unweighted)
      for (float& value : wanted) value *= 0.3f;
    const auto result = compute(Tested::finish_gemm2, {.second = second}, {sums, bias, weights});
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(result[i], wanted[i]);
  }
}

}  // namespace functions_test
}  // namespace fp4moe::kernels::cuda::sm90
