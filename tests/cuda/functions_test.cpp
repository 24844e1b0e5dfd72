// Device code's functions against the ones the other engines use.
#include "functions.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "fp4moe/formats/block.hpp"
#include "fp4moe/moe/activation.hpp"
#include "fp4moe/moe/cpu/epilogue.hpp"
#include "fp4moe/moe/quantised_rows.hpp"
#include "kernels.hpp"
#include "test_device.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace functions_test {

using moe::ActivationKey;

static_assert(static_cast<int>(Quantise::fp8_token) == static_cast<int>(ActivationKey::fp8_token));
static_assert(static_cast<int>(Act::gelu_tanh_no_mul) ==
              static_cast<int>(moe::Activation::gelu_tanh_no_mul));
static_assert(static_cast<int>(First::steps) == static_cast<int>(moe::FirstRounding::steps));
static_assert(static_cast<int>(Second::steps) == static_cast<int>(moe::SecondRounding::steps));

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Functions : public OnDevice {
 protected:
  Result<std::shared_ptr<const Device>> open() const override { return test_device(); }

  std::vector<float> compute(Tested which, const Layer& layer,
                             const std::array<std::vector<float>, 3>& arguments) {
    const std::size_t count = arguments[0].size();
    const Memory a = upload(arguments[0]), b = upload(arguments[1]), c = upload(arguments[2]);
    const Memory to = room<float>(count);
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
  std::vector<float> made;
  for (int exponent = -149; exponent < 128; exponent += 3)
    for (std::size_t c = 0; c < columns; ++c)
      made.push_back(std::ldexp(2 * random.unit() - 1, exponent - static_cast<int>(c % 16)));
  for (const float only : {0.0f, -0.0f, kInfinity, -kInfinity, std::nanf(""), 3.4e38f, 1e-45f}) {
    for (std::size_t c = 0; c < columns; ++c) made.push_back(2 * random.unit() - 1);
    made.back() = only;
    made.insert(made.end(), columns, only);
  }
  // Halves of all steps of E2M1 and E4M3.
  for (std::size_t c = 0; c < 8 * columns; ++c)
    made.push_back(static_cast<float>(c % 97) * (c % 2 == 0 ? 0.25f : -4.5f));
  return made;
}

bool is_same(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b);
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

TEST_F(Functions, QuantiseToTheBitsOfTheHost) {
  struct Kind {
    Quantise kind;
    std::size_t block;
  };
  for (const auto& [kind, block] :
       {Kind{Quantise::mxfp8, 32}, Kind{Quantise::mxfp4, 32}, Kind{Quantise::nvfp4, 16},
        Kind{Quantise::fp8_static, 32}, Kind{Quantise::fp8_block128, 128},
        Kind{Quantise::fp8_token, 64}})
    for (const float global : {1.0f, 0.037f, 2688.0f, 1e-6f, 3e7f}) {
      SCOPED_TRACE(fmt::format("kind {}, scale {}", static_cast<int>(kind), global));
      const std::vector<float> values = awkward_rows(block);
      std::vector<float> wanted = values, maxima;
      for (std::size_t at = 0; at < values.size(); at += block) {
        const auto row = std::span(wanted).subspan(at, block);
        maxima.insert(maxima.end(), block, formats::block_amax(row));
        moe::quantise_dequantise({static_cast<ActivationKey>(kind), global}, row);
      }
      const std::vector<float> made =
          compute(Tested::quantised, {.quantise = kind},
                  {values, maxima, std::vector<float>(values.size(), global)});
      for (std::size_t i = 0; i < made.size(); ++i)
        ASSERT_TRUE(is_same(made[i], wanted[i])) << values[i] << " of a block with " << maxima[i]
                                                 << " became " << made[i] << ", not " << wanted[i];
    }
}

TEST_F(Functions, ActivateWithinAMillionth) {
  std::vector<float> gates = random_values(4000, 1, 12), ups = random_values(4000, 2, 12);
  for (const float x : {0.0f, -0.0f, 1e-30f, -1e-30f, 7.0f, -7.0f, 30.0f, -30.0f}) {
    gates.push_back(x);
    ups.push_back(x);
  }
  for (std::uint32_t act = 0; act <= static_cast<std::uint32_t>(Act::gelu_tanh_no_mul); ++act)
    for (const double limit : {7.0, 2.5, static_cast<double>(kInfinity)}) {
      SCOPED_TRACE(fmt::format("activation {}, limit {}", act, limit));
      const moe::ActivationParams params{
          .alpha = 1.702, .beta = 1, .limit = limit, .situ_beta = 3, .situ_linear_beta = 2};
      const Layer layer{.act = static_cast<Act>(act),
                        .alpha = 1.702f,
                        .beta = 1,
                        .limit = static_cast<float>(limit),
                        .situ_beta = 3,
                        .situ_linear_beta = 2};
      const std::vector<float> made = compute(Tested::activated, layer, {gates, ups, gates});
      for (std::size_t i = 0; i < made.size(); ++i) {
        const double wanted =
            moe::activate(static_cast<moe::Activation>(act), params, static_cast<double>(gates[i]),
                          static_cast<double>(ups[i]));
        // Rounding the argument of exp counts as often as that is large: the gate, and in gelu a
        // square or cube of it. Where the host adds 1 to what is nearly -1, it errs itself.
        const double size = std::abs(static_cast<double>(gates[i]));
        const double within = 1e-6 + 1e-7 * (size + size * size * size / 10);
        ASSERT_NEAR(made[i], wanted, within * std::abs(wanted) + 1e-13)
            << "gate " << gates[i] << ", up " << ups[i];
      }
    }
}

TEST_F(Functions, RoundBetweenGateAndUpWhereTheKernelDoes) {
  const std::vector<float> gates = random_values(1000, 1, 4), ups = random_values(1000, 2, 4);
  for (const Middle middle : {Middle::result, Middle::gate_and_result})
    for (const Act act : {Act::silu, Act::swigluoai}) {
      const Layer layer{.act = act, .limit = 7, .middle = middle};
      const Layer plain{.act = act, .limit = 7};
      const std::vector<float> ones(gates.size(), act == Act::silu ? 1.0f : 1.0f);
      const auto made = compute(Tested::activated, layer, {gates, ups, gates});
      const auto halves = compute(Tested::activated, plain, {gates, ones, gates});
      const auto exact = compute(Tested::activated, plain, {gates, ups, gates});
      for (std::size_t i = 0; i < made.size(); ++i) {
        const bool is_apart = middle == Middle::gate_and_result && act == Act::silu;
        const float product = is_apart ? as_stored(Type::bf16, halves[i]) * ups[i] : exact[i];
        ASSERT_EQ(made[i], as_stored(Type::bf16, product)) << gates[i] << ", " << ups[i];
      }
    }
}

TEST_F(Functions, FinishSumsAsTheCpuEngineDoes) {
  constexpr std::size_t kCount = kernels::cpu::kChunk;
  const std::vector<float> sums = random_values(kCount, 1, 3), bias = random_values(kCount, 2);
  const std::vector<float> weights(kCount, 0.3f);
  for (const First first : {First::none, First::sum, First::steps}) {
    moe::cpu::FirstChunk wanted;
    moe::cpu::finish_first({.rounding = static_cast<moe::FirstRounding>(first),
                            .is_gated = false,
                            .up_bias = bias.data()},
                           sums.data(), wanted);
    const auto made = compute(Tested::finish_first, {.first = first}, {sums, bias, weights});
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(made[i], wanted.gates[i]);
  }
  for (const Second second : {Second::none, Second::weighted, Second::unweighted, Second::steps}) {
    std::vector<float> wanted = sums;
    moe::cpu::finish_second(
        {.rounding = static_cast<moe::SecondRounding>(second), .bias = bias.data()}, 0.3f, kCount,
        wanted.data());
    if (second == Second::unweighted)
      for (float& value : wanted) value *= 0.3f;
    const auto made = compute(Tested::finish_second, {.second = second}, {sums, bias, weights});
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(made[i], wanted[i]);
  }
}

}  // namespace functions_test
}  // namespace fp4moe::kernels::cuda::sm90
