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

// situ's bounded value: b tanh(x / b).
template <class Real>
Real bounded(double bound, Real x) {
  const auto b = static_cast<Real>(bound);
  return b * std::tanh(x / b);
}

}  // namespace

std::optional<Activation> activation_from_name(std::string_view name) {
  for (const ActivationRow& row : kActivations)
    if (row.name == name) return row.activation;
  return std::nullopt;
}

template <class Real>
Real activate_gate(Activation activation, const ActivationParams& params, Real gate) {
  const auto limit = static_cast<Real>(params.limit);
  const Real low = std::min(gate, limit);
  switch (activation) {
    case Activation::swigluoai:
    case Activation::swigluoai_uninterleave:
      return low * sigmoid(static_cast<Real>(params.alpha) * low);
    case Activation::silu:
      return silu(low);
    case Activation::swiglustep:
      return std::min(silu(gate), limit);
    case Activation::situ:
      return bounded(params.situ_beta, gate) * sigmoid(gate);
    case Activation::relu2_no_mul:
      return squared_relu(gate);
    case Activation::silu_no_mul:
      return silu(gate);
    case Activation::gelu:
    case Activation::gelu_no_mul:
      return gelu(gate);
    case Activation::gelu_tanh:
    case Activation::gelu_tanh_no_mul:
      return gelu_tanh(gate);
  }
  return std::numeric_limits<Real>::quiet_NaN();
}

template <class Real>
Real up_factor(Activation activation, const ActivationParams& params, Real up) {
  const auto limit = static_cast<Real>(params.limit);
  const Real low = std::max(std::min(up, limit), -limit);
  switch (activation) {
    case Activation::swigluoai:
    case Activation::swigluoai_uninterleave:
      return low + static_cast<Real>(params.beta);
    case Activation::silu:
    case Activation::swiglustep:
      return low;
    case Activation::situ:
      return params.situ_linear_beta > 0 ? bounded(params.situ_linear_beta, up) : up;
    default:
      return up;
  }
}

template <class Real>
Real activate(Activation activation, const ActivationParams& params, Real gate, Real up) {
  const Real activated = activate_gate(activation, params, gate);
  return is_gated(activation) ? activated * up_factor(activation, params, up) : activated;
}

template float activate_gate<float>(Activation, const ActivationParams&, float);
template double activate_gate<double>(Activation, const ActivationParams&, double);
template float up_factor<float>(Activation, const ActivationParams&, float);
template double up_factor<double>(Activation, const ActivationParams&, double);
template float activate<float>(Activation, const ActivationParams&, float, float);
template double activate<double>(Activation, const ActivationParams&, double, double);

}  // namespace fp4moe::moe
