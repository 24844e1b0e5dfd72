// The activation between GEMM1 and GEMM2 of an expert, on one gate value g and one up value
// u. sigmoid(x) = 1 / (1 + exp(-x)).
//
//   swigluoai, swigluoai_uninterleave   g' sigmoid(alpha g') (u' + beta)
//   silu                                g' sigmoid(g') u'
//   gelu                                g (1 + erf(g / sqrt 2)) / 2 * u
//   gelu_tanh                           g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) / 2 * u
//   swiglustep                          min(g sigmoid(g), limit) u'
//   situ                                b tanh(g / b) sigmoid(g) * (l tanh(u / l) if l > 0, else u)
//   relu2_no_mul                        max(g, 0)^2
//   *_no_mul                            the same without the up value
//
// where g' = min(g, limit) and u' = clamp(u, -limit, limit): the gate is clamped above only.
// The formulas run in the scalar they are given, each operation rounded once: double is the
// reference, float what the kernels compute in.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "fp4moe/kernels/enums.hpp"

namespace fp4moe::moe {

using kernels::Activation;

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

struct ActivationParams {
  double alpha = 1.0;
  double beta = 0.0;
  double limit = kNoLimit;
  double situ_beta = 1.0;         // b, not 0
  double situ_linear_beta = 0.0;  // l; 0 or less: the up value as it is
};

// The columns in which GEMM1 puts gate and up: in alternating columns, in two halves, or there is only one value.
enum class GateColumns : std::uint8_t { alternating, halves, none };

struct ActivationRow {
  Activation activation;
  std::string_view name;  // as vLLM and the checkpoints spell it
  GateColumns columns;
  ActivationParams params;  // what holds when nothing else is configured
};

// vLLM's enumeration has "relu2" with a multiplication too, but its activation function refuses it.
// clang-format off
inline constexpr std::array<ActivationRow, 11> kActivations{{
    {Activation::swigluoai,              "swigluoai",              GateColumns::alternating, {.alpha = 1.702, .beta = 1.0, .limit = 7.0}},
    {Activation::swigluoai_uninterleave, "swigluoai_uninterleave", GateColumns::halves,      {}},
    {Activation::silu,                   "silu",                   GateColumns::halves,      {}},
    {Activation::gelu,                   "gelu",                   GateColumns::halves,      {}},
    {Activation::gelu_tanh,              "gelu_tanh",              GateColumns::halves,      {}},
    {Activation::swiglustep,             "swiglustep",             GateColumns::halves,      {.limit = 7.0}},
    {Activation::situ,                   "situ",                   GateColumns::halves,      {}},
    {Activation::relu2_no_mul,           "relu2_no_mul",           GateColumns::none,        {}},
    {Activation::silu_no_mul,            "silu_no_mul",            GateColumns::none,        {}},
    {Activation::gelu_no_mul,            "gelu_no_mul",            GateColumns::none,        {}},
    {Activation::gelu_tanh_no_mul,       "gelu_tanh_no_mul",       GateColumns::none,        {}},
}};
// clang-format on

constexpr const ActivationRow& row(Activation activation) {
  return kActivations[static_cast<std::size_t>(activation)];
}
constexpr std::string_view name(Activation activation) { return row(activation).name; }
constexpr bool is_gated(Activation activation) {
  return row(activation).columns != GateColumns::none;
}
std::optional<Activation> activation_from_name(std::string_view name);

// The activated value: activate_gate(gate), times up_factor(up) where there is a gate. Real is
// float or double.
template <class Real>
Real activate(Activation activation, const ActivationParams& params, Real gate, Real up);
// Its two halves, for kernels that round between them.
template <class Real>
Real activate_gate(Activation activation, const ActivationParams& params, Real gate);
template <class Real>
Real up_factor(Activation activation, const ActivationParams& params, Real up);

extern template float activate<float>(Activation, const ActivationParams&, float, float);
extern template double activate<double>(Activation, const ActivationParams&, double, double);
extern template float activate_gate<float>(Activation, const ActivationParams&, float);
extern template double activate_gate<double>(Activation, const ActivationParams&, double);
extern template float up_factor<float>(Activation, const ActivationParams&, float);
extern template double up_factor<double>(Activation, const ActivationParams&, double);

}  // namespace fp4moe::moe
