#include "fp4moe/moe/cpu/epilogue.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/kernels/cpu/elementwise_list.hpp"
#include "fp4moe/kernels/cpu/gemm.hpp"

namespace fp4moe::moe::cpu {
namespace epilogue_test {

TEST(Epilogue, ActivationsAreCloseToFloat64Everywhere) {
  for (const ActivationRow& asked : kActivations) {
    ActivationParams params = asked.params;
    params.situ_linear_beta = 1.5;
    const MiddleEpilogue how{.functions = *kernels::cpu::elementwise_kernels().back().functions,
                             .activation = asked.activation,
                             .params = params};
    FirstChunk chunk;
    float values[kernels::cpu::kChunk];
    for (double start = -120; start < 120; start += 0.64) {
      for (std::size_t i = 0; i < kernels::cpu::kChunk; ++i) {
        chunk.gates[i] = static_cast<float>(start + 0.01 * static_cast<double>(i));
        chunk.ups[i] = 0.75f;
      }
      activate_chunk(how, chunk, values);
      for (std::size_t i = 0; i < kernels::cpu::kChunk; ++i) {
        const double exact =
            activate(asked.activation, params, double{chunk.gates[i]}, double{chunk.ups[i]});
        const double tolerance = 1e-6 * std::fmax(1.0, std::fabs(exact));
        ASSERT_NEAR(values[i], exact, tolerance) << asked.name << " of " << chunk.gates[i];
      }
    }
  }
}

TEST(Epilogue, RoundsToBf16AsTheFormatDoes) {
  std::vector<float> values{1.00390625f, 1.01171875f, -3.4e38f, 1e-40f, 0.0f, NAN, INFINITY};
  const std::vector<float> given = values;
  round_values(values.data(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float expected = formats::Bf16::decode(formats::Bf16::encode(given[i]));
    EXPECT_TRUE(values[i] == expected || (std::isnan(values[i]) && std::isnan(expected))) << i;
  }
}

}  // namespace epilogue_test
}  // namespace fp4moe::moe::cpu
