#include "fp4moe/moe/activation.hpp"

#include <algorithm>
#include <cmath>

namespace fp4moe::moe {
namespace {

template <class Real>
Real sigmoid(Real x) {
  return Real{1} / (Real{1} + std::exp(-x));
}

template <class Real>
Real silu(Real x) {
  return x * sigmoid(x);
}

template <class Real>
Real gelu(Real x) {
  constexpr auto kInverseRootOf2 = static_cast<Real>(0.70710678118654752440);
  return Real{0.5} * x * (Real{1} + std::erf(x * kInverseRootOf2));
}

template <class Real>
Real gelu_tanh(Real x) {
  constexpr auto kRootOf2OverPi = static_cast<Real>(0.79788456080286535588);
  constexpr auto kCubic = static_cast<Real>(0.044715);
  return Real{0.5} * x * (Real{1} + std::tanh(kRootOf2OverPi * (x + kCubic * (x * x * x))));
}

template <class Real>
Real squared_relu(Real x) {
  const Real positive = std::max(x, Real{0});
  return positive * positive;
}

template <class Real>
Real swiglu_oai(const ActivationParams& params, Real gate, Real up) {
  return gate * sigmoid(static_cast<Real>(params.alpha) * gate) *
         (up + static_cast<Real>(params.beta));
}

template <class Real>
Real situ(const ActivationParams& params, Real gate, Real up) {
  const auto beta = static_cast<Real>(params.situ_beta);
  const auto linear = static_cast<Real>(params.situ_linear_beta);
  const Real bounded = linear > 0 ? linear * std::tanh(up / linear) : up;
  return beta * std::tanh(gate / beta) * sigmoid(gate) * bounded;
}

}  // namespace

std::optional<Activation> activation_from_name(std::string_view name) {
  for (const ActivationRow& row : kActivations)
    if (row.name == name) return row.activation;
  return std::nullopt;
}

template <class Real>
Real activate(Activation activation, const ActivationParams& params, Real gate, Real up) {
  const auto limit = static_cast<Real>(params.limit);
  const Real low_gate = std::min(gate, limit);
  const Real low_up = std::max(std::min(up, limit), -limit);
  switch (activation) {
    case Activation::swigluoai:
    case Activation::swigluoai_uninterleave:
      return swiglu_oai(params, low_gate, low_up);
    case Activation::silu:
      return silu(low_gate) * low_up;
    case Activation::gelu:
      return gelu(gate) * up;
    case Activation::gelu_tanh:
      return gelu_tanh(gate) * up;
    case Activation::swiglustep:
      return std::min(silu(gate), limit) * low_up;
    case Activation::situ:
      return situ(params, gate, up);
    case Activation::relu2_no_mul:
      return squared_relu(gate);
    case Activation::silu_no_mul:
      return silu(gate);
    case Activation::gelu_no_mul:
      return gelu(gate);
    case Activation::gelu_tanh_no_mul:
      return gelu_tanh(gate);
  }
  return std::numeric_limits<Real>::quiet_NaN();
}

template float activate<float>(Activation, const ActivationParams&, float, float);
template double activate<double>(Activation, const ActivationParams&, double, double);

}  // namespace fp4moe::moe
