#include "fp4moe/moe/activation.hpp"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "support/files.hpp"

namespace fp4moe::moe {
namespace activation_test {

double with_defaults(Activation activation, double gate, double up) {
  return activate(activation, row(activation).params, gate, up);
}

TEST(Activation, NamesAndRowsAreTheSameTableBothWays) {
  for (const ActivationRow& row : kActivations) {
    EXPECT_EQ(&moe::row(row.activation), &row);
    EXPECT_EQ(name(row.activation), row.name);
    EXPECT_EQ(activation_from_name(row.name), row.activation);
    EXPECT_EQ(is_gated(row.activation), !row.name.ends_with("_no_mul"));
  }
  EXPECT_EQ(activation_from_name("relu2"), std::nullopt);
  EXPECT_EQ(activation_from_name(""), std::nullopt);
}

TEST(Activation, EveryOneStandsInItsPage) {
  const std::string page = tensor::testing::read_text(FP4MOE_TESTDATA "/../docs/run.md");
  const std::size_t begin = page.find("## Activations");
  ASSERT_NE(begin, std::string::npos);
  for (const ActivationRow& row : kActivations)
    EXPECT_NE(page.find("`" + std::string(row.name) + "`", begin), std::string::npos) << row.name;
}

TEST(Activation, ValuesWorkedOutByHand) {
  const double half = 0.5, sigmoid_1 = 0.73105857863000487925;
  EXPECT_DOUBLE_EQ(with_defaults(Activation::silu, 1, 3), 3 * sigmoid_1);
  EXPECT_DOUBLE_EQ(with_defaults(Activation::silu_no_mul, 1, 3), sigmoid_1);
  EXPECT_DOUBLE_EQ(with_defaults(Activation::gelu, 1, 2), 2 * 0.84134474606854294859);
  EXPECT_DOUBLE_EQ(with_defaults(Activation::gelu_no_mul, 1, 2), 0.84134474606854294859);
  EXPECT_DOUBLE_EQ(with_defaults(Activation::gelu_tanh, 1, 2), 2 * 0.84119199060827676);
  EXPECT_DOUBLE_EQ(with_defaults(Activation::gelu_tanh_no_mul, 1, 2), 0.84119199060827676);
  EXPECT_DOUBLE_EQ(with_defaults(Activation::relu2_no_mul, 3, 9), 9);
  EXPECT_DOUBLE_EQ(with_defaults(Activation::relu2_no_mul, -3, 9), 0);
  EXPECT_DOUBLE_EQ(with_defaults(Activation::swigluoai, 0, 5), 0);
  EXPECT_DOUBLE_EQ(activate(Activation::swigluoai_uninterleave,
                            {.alpha = 0.0, .beta = 4.0, .limit = 7.0}, 2.0, 1.0),
                   2 * half * 5);
}

TEST(Activation, TheGateIsClampedAboveOnlyAndTheUpValueOnBothSides) {
  const ActivationParams limited{.alpha = 1.702, .beta = 1.0, .limit = 7.0};
  for (const Activation a : {Activation::swigluoai, Activation::silu}) {
    EXPECT_EQ(activate(a, limited, 100.0, 1.0), activate(a, limited, 7.0, 1.0));
    EXPECT_EQ(activate(a, limited, 1.0, 100.0), activate(a, limited, 1.0, 7.0));
    EXPECT_EQ(activate(a, limited, 1.0, -100.0), activate(a, limited, 1.0, -7.0));
    EXPECT_NE(activate(a, limited, -8.0, 1.0), activate(a, limited, -7.0, 1.0));
  }
  EXPECT_EQ(with_defaults(Activation::silu, 1, 100), 100 * with_defaults(Activation::silu, 1, 1));
}

TEST(Activation, SwigluStepClampsAfterTheSigmoid) {
  EXPECT_EQ(with_defaults(Activation::swiglustep, 100, 9), 49.0);
  EXPECT_EQ(with_defaults(Activation::swiglustep, 7, 1),
            with_defaults(Activation::silu_no_mul, 7, 0));  // 6.99 stays below the limit
}

TEST(Activation, SituBoundsBothFactors) {
  const ActivationParams both{.situ_beta = 2.0, .situ_linear_beta = 3.0};
  const ActivationParams gate_only{.situ_beta = 2.0};
  const double gate = 2 * std::tanh(0.5) / (1 + std::exp(-1.0));
  EXPECT_DOUBLE_EQ(activate(Activation::situ, both, 1.0, 6.0), gate * 3 * std::tanh(2.0));
  EXPECT_DOUBLE_EQ(activate(Activation::situ, gate_only, 1.0, 6.0), gate * 6);
}

// Each operation is rounded once, so a result is off by a few units of 2^-24 of it; an exponential
// multiplies the error of its argument x by |x|, and the GELU forms lose what 1 + erf cancels,
// which is relative to |g u| instead of the result.
TEST(Activation, Float32StaysWithinItsRoundingOfFloat64) {
  for (const ActivationRow& row : kActivations) {
    const bool cancels = row.name.starts_with("gelu");
    for (int i = -64; i <= 64; ++i)
      for (const float up : {-7.5f, -0.3f, 0.0f, 1.0f, 6.25f}) {
        const float gate = 0.25f * static_cast<float>(i);
        const double exact = activate(row.activation, row.params, double{gate}, double{up});
        const double found = activate(row.activation, row.params, gate, up);
        const double scale = cancels ? std::fabs(gate) * (1 + std::fabs(up)) : std::fabs(exact);
        const double argument = 2.0 * std::fabs(gate);
        EXPECT_NEAR(found, exact, 0x1p-24 * (8 + argument) * scale)
            << row.name << " of " << gate << " and " << up;
      }
  }
}

TEST(Activation, FarNegativeGatesGoToZeroWithoutNan) {
  for (const ActivationRow& row : kActivations) {
    EXPECT_NEAR(activate(row.activation, row.params, -1000.0f, 2.0f), 0.0f, 1e-30f) << row.name;
    EXPECT_NEAR(activate(row.activation, row.params, -5000.0, 2.0), 0.0, 1e-300) << row.name;
  }
}

}  // namespace activation_test
}  // namespace fp4moe::moe
