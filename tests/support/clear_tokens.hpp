// Tokens whose quantized activations do not depend on the order in which sums are taken.
//
// A device sums in float32. Where an activation h lies next to a border between two codes, it may
// fall to the other side of it than in the reference, and on a small layer one such code is more
// than all else that may differ. Intervals tell for which tokens this cannot happen:
//
//   sum of |x w| * error ─► gate, up as intervals ─► rounded ─► h as an interval ─► its codes
//
// With such tokens only, schemes of activations are held to the bound of all other results.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "fp4moe/moe/quantized_rows.hpp"
#include "support/tiny_layer.hpp"

namespace fp4moe::moe::cuda::testing {

using moe::testing::TestLayer;
using moe::testing::TestMatrix;
using moe::testing::TestTokens;

// The problem as a device computes it: values of FP8 with a float32 scale are rounded to bf16 for
// its products (docs/cuda.md). All others are exact in it.
inline ExpertsProblem as_on_devices(ExpertsProblem problem) {
  if (problem.quantizes == ActivationKey::fp8_block128 ||
      problem.quantizes == ActivationKey::fp8_token)
    problem.numerics.activations_in_bf16 = true;
  return problem;
}

// All values that a number may have been computed as.
struct Interval {
  double low = 0, high = 0;

  void round_to_bf16() { low = rounded_to_bf16(low), high = rounded_to_bf16(high); }
};

class ClearTokens {
 public:
  // `problem`: as on devices, an activation with a gate, weights without biases. Borrowed.
  ClearTokens(const ExpertsProblem& problem, const TestLayer& layer) : problem_(problem) {
    const auto values = [&](const TestMatrix& matrix) {
      std::vector<double> result;
      for (std::uint64_t i = 0; i < matrix.rows * matrix.k; ++i)
        result.push_back(matrix.at(problem.shape.format, i / matrix.k, i % matrix.k));
      return result;
    };
    for (const TestMatrix& matrix : layer.gate) gates_.push_back(values(matrix));
    for (const TestMatrix& matrix : layer.up) ups_.push_back(values(matrix));
  }

  // Random tokens, all of them clear.
  TestTokens make(std::uint64_t count, std::uint64_t top_k, std::uint64_t seed) const {
    const checkpoint::MoeShape& shape = problem_.shape;
    TestTokens result(0, shape.hidden, top_k, shape.experts, 0);
    for (std::uint64_t tried = 0; result.tokens < count && tried < 100 * count; ++tried) {
      const TestTokens one(1, shape.hidden, top_k, shape.experts, 1000 * seed + tried);
      if (!is_clear(one)) continue;
      ++result.tokens;
      result.x.insert(result.x.end(), one.x.begin(), one.x.end());
      result.ids.insert(result.ids.end(), one.ids.begin(), one.ids.end());
      result.weights.insert(result.weights.end(), one.weights.begin(), one.weights.end());
    }
    return result;
  }

 private:
  bool is_clear(const TestTokens& token) const {
    return std::ranges::all_of(token.ids, [&](std::int32_t id) {
      const auto expert = static_cast<std::size_t>(id);
      return has_clear_codes(hidden(token, expert), quantizer(problem_.hidden_scales, expert));
    });
  }

  RowQuantizer quantizer(const std::vector<float>& scales, std::size_t expert) const {
    const float scale = scales.empty() ? 1.0f : scales[scales.size() == 1 ? 0 : expert];
    return {.key = problem_.quantizes, .global_scale = scale};
  }

  // A row of a matrix times x. Tensor cores add 16 products at a time and round once; as much again
  // is allowed for what is multiplied afterwards.
  Interval product(std::span<const double> row, std::span<const double> x) const {
    double sum = 0, magnitudes = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double term = row[i] * x[i];
      sum += term;
      magnitudes += std::fabs(term);
    }
    const double error = magnitudes * 2 * static_cast<double>(x.size() / 16) * 0x1p-23;
    Interval result{sum - error, sum + error};
    if (problem_.numerics.first != FirstRounding::none) result.round_to_bf16();
    return result;
  }

  Interval activated(const Interval& gate, const Interval& up) const {
    constexpr double kFunctions = 0x1p-20;  // exp and a division in float32
    Interval result{INFINITY, -INFINITY};
    for (const double g : {gate.low, gate.high})
      for (const double u : {up.low, up.high}) {
        const double h = activate(problem_.activation, problem_.params, g, u);
        result.low = std::min(result.low, h - std::fabs(h) * kFunctions);
        result.high = std::max(result.high, h + std::fabs(h) * kFunctions);
      }
    if (problem_.numerics.middle != MiddleRounding::none) result.round_to_bf16();
    return result;
  }

  // What the activation gives for a token, before it is quantized.
  std::vector<Interval> hidden(const TestTokens& token, std::size_t expert) const {
    std::vector<float> row(token.hidden);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = formats::Bf16::decode(token.x[i]);
    const RowQuantizer how = quantizer(problem_.input_scales, expert);
    quantize_dequantize(how, row);
    std::vector<double> x;
    for (const float value : row)
      x.push_back(problem_.numerics.activations_in_bf16
                      ? rounded_to_bf16(double{value * shared_factor(how)})
                      : double{value} * double{shared_factor(how)});
    std::vector<Interval> result;
    const std::span<const double> gates = gates_[expert], ups = ups_[expert];
    for (std::size_t at = 0; at < gates.size(); at += x.size())
      result.push_back(activated(product(gates.subspan(at, x.size()), x),
                                 product(ups.subspan(at, x.size()), x)));
    return result;
  }

  // Whether h is the same after quantizing wherever in its intervals it lies: every value at either
  // end, with the largest of its block, which makes the scale, at either end.
  static bool has_clear_codes(const std::vector<Interval>& h, const RowQuantizer& how) {
    std::vector<std::vector<float>> rows;
    for (const bool high : {false, true})
      for (const bool largest_high : {false, true}) {
        std::vector<float>& row = rows.emplace_back();
        for (const Interval& value : h) row.push_back(end_of(value, high));
        const std::size_t block = block_of(how.key, h.size());
        for (std::size_t begin = 0; begin < h.size(); begin += block) {
          const auto first = h.begin() + static_cast<std::ptrdiff_t>(begin);
          const auto largest = std::max_element(
              first, first + static_cast<std::ptrdiff_t>(std::min(block, h.size() - begin)),
              [](const Interval& a, const Interval& b) {
                return std::fabs(end_of(a, true)) < std::fabs(end_of(b, true));
              });
          row[static_cast<std::size_t>(largest - h.begin())] = end_of(*largest, largest_high);
        }
        quantize_dequantize(how, row);
      }
    for (std::size_t i = 0; i < h.size(); ++i)
      for (const std::vector<float>& row : rows)
        if (is_another_code(rows[0][i], row[i])) return false;
    return true;
  }
  // The end of an interval of larger or smaller magnitude.
  static float end_of(const Interval& value, bool high) {
    const bool upper = (std::fabs(value.high) > std::fabs(value.low)) == high;
    return static_cast<float>(upper ? value.high : value.low);
  }
  static std::size_t block_of(ActivationKey key, std::size_t columns) {
    switch (key) {
      case ActivationKey::nvfp4:
        return 16;
      case ActivationKey::mxfp8:
      case ActivationKey::mxfp4:
        return 32;
      case ActivationKey::fp8_block128:
        return 128;
      default:
        return columns;
    }
  }
  // Codes are at least a sixteenth apart; float32 scales move values by far less.
  static bool is_another_code(float a, float b) {
    return std::fabs(a - b) > 0x1p-6f * std::max(std::fabs(a), std::fabs(b));
  }

  const ExpertsProblem& problem_;
  std::vector<std::vector<double>> gates_{}, ups_{};  // values of each expert's weights
};

}  // namespace fp4moe::moe::cuda::testing
