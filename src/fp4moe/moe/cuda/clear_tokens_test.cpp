// Tokens chosen for a scheme of activations allow a narrow bound: float32 sums in another order are
// within it, any other arithmetic exceeds it.
#include "support/clear_tokens.hpp"

#include <fmt/format.h>

#include "support/device.hpp"

namespace fp4moe::moe::cuda {
namespace clear_tokens_test {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of this test alone

constexpr Sizes kSizes{4, 256, 128};
constexpr std::uint64_t kTokens = 16;

ExpertsProblem problem_for(const TestLayer& layer, ActivationKey key, std::string_view numerics) {
  ExpertsProblem result = problem_of(layer, numerics);
  result.quantizes = key;
  if (key == ActivationKey::nvfp4) result.input_scales = {400.0f}, result.hidden_scales = {600.0f};
  if (key == ActivationKey::fp8_static_tensor)
    result.input_scales = {0.01f}, result.hidden_scales = {0.015f};
  return as_on_devices(result);
}

// Calls use(problem, tokens, name) for every scheme under three numerics.
template <class Use>
void for_each_scheme(const TestLayer& layer, const Use& use) {
  for (const ActivationKey key :
       {ActivationKey::mxfp8, ActivationKey::mxfp4, ActivationKey::nvfp4,
        ActivationKey::fp8_static_tensor, ActivationKey::fp8_block128, ActivationKey::fp8_token})
    for (const std::string_view numerics : {"native", "grouped", "trtllm"}) {
      const ExpertsProblem problem = problem_for(layer, key, numerics);
      const TestTokens tokens = ClearTokens(problem, layer).make(kTokens, 2, 5);
      ASSERT_EQ(tokens.tokens, kTokens);
      use(problem, tokens, fmt::format("{} {}", static_cast<int>(key), numerics));
    }
}

// An expert's row with sums in float32, from the last columns to the first, 16 at a time.
class Float32Expert {
 public:
  Float32Expert(const ExpertsProblem& problem, const TestLayer& layer, std::size_t expert)
      : problem_(problem), layer_(layer), expert_(expert) {}

  std::vector<double> operator()(std::vector<float> x) const {
    quantization(problem_.input_scales, x);
    std::vector<float> h;
    for (std::uint64_t i = 0; i < problem_.shape.intermediate; ++i) {
      double gate = product(layer_.gate[expert_], i, x), up = product(layer_.up[expert_], i, x);
      if (problem_.numerics.first != FirstRounding::none)
        gate = rounded_to_bf16(gate), up = rounded_to_bf16(up);
      const double value = activate(problem_.activation, problem_.params, gate, up);
      h.push_back(static_cast<float>(
          problem_.numerics.middle == MiddleRounding::none ? value : rounded_to_bf16(value)));
    }
    quantization(problem_.hidden_scales, h);
    std::vector<double> y;
    for (std::uint64_t i = 0; i < problem_.shape.hidden; ++i) {
      const double sum = product(layer_.down[expert_], i, h);
      y.push_back(problem_.numerics.second == SecondRounding::none ? sum : rounded_to_bf16(sum));
    }
    return y;
  }

 private:
  void quantization(const std::vector<float>& scales, std::vector<float>& row) const {
    const RowQuantizer how{.key = problem_.quantizes,
                           .global_scale = scales.empty() ? 1.0f : scales[0]};
    quantize_dequantize(how, row);
    for (float& value : row) {
      value *= shared_factor(how);
      if (problem_.numerics.activations_in_bf16)
        value = static_cast<float>(rounded_to_bf16(double{value}));
    }
  }
  double product(const TestMatrix& matrix, std::uint64_t row, const std::vector<float>& x) const {
    float sum = 0;
    for (std::size_t end = x.size(); end != 0; end -= 16) {
      double part = double{sum};
      for (std::size_t i = end - 16; i < end; ++i)
        part += matrix.at(problem_.shape.format, row, i) * double{x[i]};
      sum = static_cast<float>(part);
    }
    return double{sum};
  }

  const ExpertsProblem& problem_;
  const TestLayer& layer_;
  std::size_t expert_;
};

std::vector<double> by_float32(const ExpertsProblem& problem, const TestLayer& layer,
                               const TestTokens& tokens) {
  const bool rounds_weight = problem.numerics.weight != WeightRounding::none;
  std::vector<double> out(tokens.tokens * tokens.hidden, 0.0);
  for (std::size_t assignment = 0; assignment < tokens.ids.size(); ++assignment) {
    const std::size_t at = assignment / tokens.top_k * tokens.hidden;
    std::vector<float> x;
    for (std::size_t i = 0; i < tokens.hidden; ++i)
      x.push_back(formats::Bf16::decode(tokens.x[at + i]));
    const Float32Expert expert(problem, layer, static_cast<std::size_t>(tokens.ids[assignment]));
    const double weight = double{tokens.weights[assignment]};
    const std::vector<double> y = expert(std::move(x));
    for (std::size_t i = 0; i < y.size(); ++i)
      out[at + i] += (rounds_weight ? rounded_to_bf16(weight) : weight) * y[i];
  }
  if (problem.numerics.rounds_sum)
    for (double& value : out) value = rounded_to_bf16(value);
  return out;
}

TEST(ClearTokens, GiveTheSameCodesInFloat32) {
  const TestLayer layer = layer_of(WeightFormat::nvfp4, kSizes);
  for_each_scheme(
      layer, [&](const ExpertsProblem& problem, const TestTokens& tokens, const std::string& name) {
        EXPECT_LE(error_of(reference(problem, layer, tokens), by_float32(problem, layer, tokens)),
                  kMaxError / 4)
            << name;
      });
}

TEST(ClearTokens, ShowAWrongSchemeScaleOrRounding) {
  const TestLayer layer = layer_of(WeightFormat::nvfp4, kSizes);
  for_each_scheme(layer, [&](const ExpertsProblem& problem, const TestTokens& tokens,
                             const std::string& name) {
    const std::vector<double> expected = reference(problem, layer, tokens);
    const auto is_seen = [&](const ExpertsProblem& other, const char* what) {
      EXPECT_GT(error_of(expected, reference(other, layer, tokens)), kMaxError)
          << name << ", " << what;
    };
    ExpertsProblem other = problem;
    for (const ActivationKey key : {ActivationKey::none, ActivationKey::mxfp8, ActivationKey::mxfp4,
                                    ActivationKey::fp8_block128, ActivationKey::fp8_token}) {
      other.quantizes = key;
      if (key != problem.quantizes) is_seen(other, "another scheme");
    }
    for (const std::string_view numerics : {"native", "grouped", "trtllm"}) {
      if (numerics == problem.numerics.id) continue;
      other = problem_for(layer, problem.quantizes, numerics);
      is_seen(other, "another rounding");
    }
    for (auto scales : {&ExpertsProblem::input_scales, &ExpertsProblem::hidden_scales}) {
      other = problem;
      for (float& scale : other.*scales) scale *= 1.01f;
      if (!(other.*scales).empty()) is_seen(other, "another scale");
    }
    if (problem.numerics.activations_in_bf16) {
      other = problem;
      other.numerics.activations_in_bf16 = false;
      is_seen(other, "values that are not rounded to bf16");
    }
  });
}

}  // namespace clear_tokens_test
}  // namespace fp4moe::moe::cuda
