#include "fp4moe/moe/cpu/epilogue.hpp"

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

namespace fp4moe::moe::cpu {
namespace {

using kernels::cpu::kChunk;

// NaN stays NaN, its lower payload is lost.
inline float to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000u;
  const std::uint32_t quiet = (bits & 0xFFFF0000u) | 0x00400000u;
  return std::bit_cast<float>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : nearest);
}

using kernels::cpu::GateFunction;
using kernels::cpu::UpFunction;

// An activation as the kernels have it.
struct GateAndUp {
  GateFunction gate = GateFunction::swish;
  UpFunction up = UpFunction::plain;
  bool has_alpha = false, has_limit = false;  // of the gate; otherwise 1 and none
};
GateAndUp functions_of(const MiddleEpilogue& how) {
  switch (how.activation) {
    case Activation::swigluoai:
    case Activation::swigluoai_uninterleave:
      return {GateFunction::swish, UpFunction::clamped_plus, true, true};
    case Activation::silu:
      return {GateFunction::swish, UpFunction::clamped, false, true};
    case Activation::swiglustep:
      return {GateFunction::swish_at_most, UpFunction::clamped, false, true};
    case Activation::situ:
      return {GateFunction::situ, static_cast<float>(how.params.situ_linear_beta) > 0.0f
                                      ? UpFunction::situ
                                      : UpFunction::plain};
    case Activation::relu2_no_mul:
      return {GateFunction::squared_relu, UpFunction::plain};
    case Activation::silu_no_mul:
      return {GateFunction::swish, UpFunction::plain};
    case Activation::gelu:
    case Activation::gelu_no_mul:
      return {GateFunction::gelu, UpFunction::plain};
    case Activation::gelu_tanh:
    case Activation::gelu_tanh_no_mul:
      return {GateFunction::gelu_tanh, UpFunction::plain};
  }
  return {};
}

struct Term {
  FirstRounding rounding = FirstRounding::none;
  float factor = 1.0f;
  const float* bias = nullptr;
};
// Every `step`-th sum.
template <std::size_t step>
void scale_and_bias(const float* sums, const Term& how, float* to) {
  float values[kChunk];
  for (std::size_t i = 0; i < kChunk; ++i) values[i] = sums[i * step];
  for (std::size_t i = 0; i < kChunk; ++i) values[i] *= how.factor;
  if (how.rounding == FirstRounding::steps) round_values(values, kChunk);
  if (how.bias != nullptr)
    for (std::size_t i = 0; i < kChunk; ++i) values[i] += how.bias[i];
  if (how.rounding != FirstRounding::none) round_values(values, kChunk);
  std::memcpy(to, values, sizeof values);
}

}  // namespace

void round_values(float* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] = to_bf16(values[i]);
}

void finish_first(const FirstEpilogue& how, const float* sums, FirstChunk& to) {
  if (how.is_gated && how.rounding == FirstRounding::none)
    return how.functions.split({.sums = sums,
                                .gate_factor = how.gate_factor,
                                .up_factor = how.up_factor,
                                .gate_bias = how.gate_bias,
                                .up_bias = how.up_bias,
                                .gates = to.gates,
                                .ups = to.ups});
  const Term ups{how.rounding, how.up_factor, how.up_bias};
  if (!how.is_gated) return scale_and_bias<1>(sums, ups, to.gates);
  scale_and_bias<2>(sums, {how.rounding, how.gate_factor, how.gate_bias}, to.gates);
  scale_and_bias<2>(sums + 1, ups, to.ups);
}

void activate_chunk(const MiddleEpilogue& how, const FirstChunk& from, float* to) {
  const GateAndUp functions = functions_of(how);
  const auto limit = static_cast<float>(how.params.limit);
  how.functions.gates(
      {.function = functions.gate,
       .alpha = functions.has_alpha ? static_cast<float>(how.params.alpha) : 1.0f,
       .limit = functions.has_limit ? limit : std::numeric_limits<float>::infinity(),
       .bound = static_cast<float>(how.params.situ_beta),
       .gates = from.gates,
       .to = to});
  const bool is_apart =
      how.activation == Activation::silu || how.activation == Activation::swigluoai_uninterleave;
  if (how.rounding == MiddleRounding::gate_and_result && is_apart) round_values(to, kChunk);
  if (is_gated(how.activation))
    how.functions.ups({.function = functions.up,
                       .beta = static_cast<float>(how.params.beta),
                       .limit = limit,
                       .bound = static_cast<float>(how.params.situ_linear_beta),
                       .ups = from.ups,
                       .to = to});
  if (how.rounding != MiddleRounding::none) round_values(to, kChunk);
}

void finish_second(const SecondEpilogue& how, float weight, std::size_t count, float* sums) {
  for (std::size_t i = 0; i < count; ++i) sums[i] *= how.factor;
  const bool steps = how.rounding == SecondRounding::steps;
  if (steps) round_values(sums, count);
  if (how.bias != nullptr) {
    for (std::size_t i = 0; i < count; ++i) sums[i] += how.bias[i];
    if (steps) round_values(sums, count);
  }
  const bool is_weighted = how.is_weighted && how.rounding != SecondRounding::unweighted;
  if (is_weighted)
    for (std::size_t i = 0; i < count; ++i) sums[i] *= weight;
  if (how.rounding != SecondRounding::none) round_values(sums, count);
}

void copy_scaled(const float* from, float factor, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = factor * from[i];
}

float dot(const float* a, const float* b, std::size_t count) {
  constexpr std::size_t kLanes = 8;
  float sums[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  for (std::size_t lane = 0; i < count; ++i, ++lane) sums[lane] += a[i] * b[i];
  for (std::size_t step = kLanes / 2; step > 0; step /= 2)
    for (std::size_t lane = 0; lane < step; ++lane) sums[lane] += sums[lane + step];
  return sums[0];
}

}  // namespace fp4moe::moe::cpu
