// A small layer in memory for tests, and its result by plain loops in float64 that share no code
// with the engines.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/e2m1.hpp"
#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/e8m0.hpp"
#include "fp4moe/moe/experts.hpp"

namespace fp4moe::moe::testing {

using formats::WeightFormat;

struct TestMatrix {
  std::uint64_t rows = 0, k = 0;
  std::vector<std::byte> codes{}, scales{};
  float global = 1.0f;
  std::vector<float> bias{};

  double at(WeightFormat format, std::uint64_t row, std::uint64_t column) const {
    const auto byte = static_cast<std::uint8_t>(codes[row * k / 2 + column / 2]);
    const std::uint64_t block = formats::block_size(format);
    const auto scale = static_cast<std::uint8_t>(scales[row * (k / block) + column / block]);
    const double factor = format == WeightFormat::mxfp4 ? double{formats::E8m0::decode(scale)}
                                                        : double{formats::E4m3fn::decode(scale)};
    const auto code = static_cast<std::uint8_t>(column % 2 == 0 ? byte & 15 : byte >> 4);
    return double{formats::E2m1::decode(code)} * factor * double{global};
  }
};

struct TestLayer {
  checkpoint::MoeShape shape{};
  Activation activation = Activation::silu;
  ActivationParams params{};
  std::vector<TestMatrix> gate{}, up{}, down{};

  TestLayer(checkpoint::MoeShape result, Activation chosen, std::uint64_t seed)
      : shape(result), activation(chosen), params(row(chosen).params) {
    SplitMix64 random(seed);
    const auto matrix = [&](std::uint64_t rows, std::uint64_t k) {
      TestMatrix m{.rows = rows, .k = k};
      m.codes.resize(rows * k / 2);
      m.scales.resize(rows * k / formats::block_size(shape.format));
      for (std::byte& code : m.codes) code = static_cast<std::byte>(random.next() >> 56);
      for (std::byte& scale : m.scales)
        scale =
            static_cast<std::byte>(shape.format == WeightFormat::mxfp4 ? 119 + random.next() % 5
                                                                       : 0x30 + random.next() % 16);
      if (shape.format == WeightFormat::nvfp4) m.global = 0.03125f * (1.0f + random.unit());
      if (shape.has_bias)
        for (std::uint64_t i = 0; i < rows; ++i) m.bias.push_back(exact_bf16(random.unit() - 0.5f));
      return m;
    };
    for (std::uint64_t e = 0; e < shape.experts; ++e) {
      gate.push_back(matrix(shape.gated() ? shape.intermediate : 0, shape.hidden));
      up.push_back(matrix(shape.intermediate, shape.hidden));
      up.back().global = shape.gated() ? gate.back().global : up.back().global;
      down.push_back(matrix(shape.hidden, shape.intermediate));
    }
  }

  static float exact_bf16(float value) {
    return formats::Bf16::decode(formats::Bf16::encode(value));
  }

  ExpertSource source() const {
    return {.shape = shape, .visit = [this](std::size_t e, const UseExpert& use) {
              const auto view = [&](const TestMatrix& m) {
                const std::uint64_t block = formats::block_size(shape.format);
                checkpoint::ProjectionView result;
                result.codes = {m.codes.data(), m.rows, m.k / 2, m.k / 2};
                result.scales = {m.scales.data(), m.rows, m.k / block, m.k / block};
                result.global_scale = m.global;
                if (!m.bias.empty())
                  result.bias = {reinterpret_cast<const std::byte*>(m.bias.data()), m.bias.size(),
                                 sizeof(float), tensor::DType::f32};
                return result;
              };
              checkpoint::ExpertView result{.shape = shape};
              if (shape.gated()) result.gate = view(gate[e]);
              result.up = view(up[e]);
              result.down = view(down[e]);
              return use(result);
            }};
  }

  // w2 act(w13 x + b13) + b2 of one expert.
  std::vector<double> expert(std::uint64_t e, const double* x) const {
    const auto multiply = [&](const TestMatrix& m, const double* in) {
      std::vector<double> out(m.rows, 0.0);
      for (std::uint64_t r = 0; r < m.rows; ++r) {
        for (std::uint64_t c = 0; c < m.k; ++c) out[r] += m.at(shape.format, r, c) * in[c];
        if (!m.bias.empty()) out[r] += double{m.bias[r]};
      }
      return out;
    };
    const std::vector<double> gates = multiply(gate[e], x), ups = multiply(up[e], x);
    std::vector<double> middle(shape.intermediate);
    for (std::uint64_t i = 0; i < shape.intermediate; ++i)
      middle[i] = shape.gated() ? activate(activation, params, gates[i], ups[i])
                                : activate(activation, params, ups[i], 0.0);
    return multiply(down[e], middle.data());
  }
};

// Tokens with their routes.
struct TestTokens {
  std::uint64_t tokens = 0, hidden = 0, top_k = 0;
  std::vector<std::uint16_t> x{};  // bf16
  std::vector<std::int32_t> ids{};
  std::vector<float> weights{};

  TestTokens(std::uint64_t count, std::uint64_t width, std::uint64_t k, std::uint64_t experts,
             std::uint64_t seed)
      : tokens(count), hidden(width), top_k(k) {
    SplitMix64 random(seed);
    for (std::uint64_t i = 0; i < count * width; ++i)
      x.push_back(formats::Bf16::encode(2.0f * random.unit() - 1.0f));
    for (std::uint64_t i = 0; i < count * k; ++i) {
      ids.push_back(static_cast<std::int32_t>(random.next() % experts));
      weights.push_back(0.0625f * static_cast<float>(1 + random.next() % 16));
    }
  }
  ConstRows rows() const { return dense_rows(std::span(x), DType::bf16, tokens, hidden); }
  moe::Tokens routed() const {
    return {.x = rows(), .top_k = top_k, .ids = ids, .weights = weights};
  }
  Prepared prepared() const { return {routed()}; }

  // The sum over assignments whose expert is in the layer, by plain loops.
  std::vector<double> expected(const TestLayer& layer) const {
    std::vector<double> out(tokens * hidden, 0.0), row(hidden);
    for (std::uint64_t t = 0; t < tokens; ++t)
      for (std::uint64_t j = 0; j < top_k; ++j) {
        const std::int32_t id = ids[t * top_k + j];
        if (id < 0 || static_cast<std::uint64_t>(id) >= layer.shape.experts) continue;
        for (std::uint64_t i = 0; i < hidden; ++i)
          row[i] = double{formats::Bf16::decode(x[t * hidden + i])};
        const std::vector<double> y = layer.expert(static_cast<std::uint64_t>(id), row.data());
        for (std::uint64_t i = 0; i < hidden; ++i)
          out[t * hidden + i] += double{weights[t * top_k + j]} * y[i];
      }
    return out;
  }
};

// The largest difference as a share of the largest expected value; NaN counts as infinite.
inline double distance(const std::vector<double>& expected, const std::vector<double>& found) {
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::fmax(largest, std::fabs(expected[i]));
    const double each = std::fabs(expected[i] - found[i]);
    difference = std::isnan(each) ? INFINITY : std::fmax(difference, each);
  }
  return largest == 0 ? difference : difference / largest;
}

}  // namespace fp4moe::moe::testing
