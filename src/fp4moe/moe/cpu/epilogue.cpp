#include "fp4moe/moe/cpu/epilogue.hpp"

#include <bit>
#include <cstdint>
#include <cstring>

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

// Comparisons that let NaN through.
inline float at_most(float value, float limit) { return limit < value ? limit : value; }
inline float at_least(float value, float limit) { return value < limit ? limit : value; }

// x = n ln 2 + r with |r| <= 0.35: `power` is 2^n, `rest` is exp(r) - 1.
struct Split {
  float power = 1.0f, rest = 0.0f;
};
inline Split split(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  const float held = at_least(at_most(x, 88.0f), -87.0f);
  const float shifted = held * kLog2E + kMagic;
  const float whole = shifted - kMagic;
  const float r = (held - whole * kLn2High) - whole * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const std::uint32_t biased = (std::bit_cast<std::uint32_t>(shifted) + 127u) << 23;
  return {std::bit_cast<float>(biased), p * r * r + r};
}
inline float exponential(float x) {
  const Split parts = split(x);
  return parts.power * parts.rest + parts.power;
}

inline float sigmoid_of(float x) { return 1.0f / (1.0f + exponential(-x)); }

// (exp(2x) - 1) / (exp(2x) + 1), without cancellation near zero.
inline float tanh_of(float x) {
  const Split parts = split(at_least(at_most(2.0f * x, 30.0f), -30.0f));
  const float less_one = parts.power * parts.rest + (parts.power - 1.0f);
  return less_one / (less_one + 2.0f);
}

// The normal distribution's integral, by Abramowitz and Stegun 7.1.26: within 1.5e-7 / 2.
inline float normal_integral(float x) {
  constexpr float kInverseRootOf2 = 0.707106781f;
  const float z = x * kInverseRootOf2;
  const float size = z < 0.0f ? -z : z;
  const float t = 1.0f / (1.0f + 0.3275911f * size);
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const float tail = 0.5f * (p * t) * exponential(-(z * z));
  return z < 0.0f ? tail : 1.0f - tail;
}

inline float gelu_tanh_of(float x) {
  constexpr float kTwiceRootOf2OverPi = 1.59576912f, kCubic = 0.044715f;
  return x * sigmoid_of(kTwiceRootOf2OverPi * (x + kCubic * (x * x * x)));
}

// By way of an array that nothing else can point to, or compilers would have to check.
template <class Make>
inline void each(const float* from, float* to, const Make& make) {
  float result[kChunk];
  for (std::size_t i = 0; i < kChunk; ++i) result[i] = make(from[i]);
  std::memcpy(to, result, sizeof result);
}
template <class Make>
inline void each_times(const float* from, float* to, const Make& make) {
  float result[kChunk];
  for (std::size_t i = 0; i < kChunk; ++i) result[i] = to[i] * make(from[i]);
  std::memcpy(to, result, sizeof result);
}

void activate_gates(const MiddleEpilogue& how, const float* gates, float* to) {
  const auto limit = static_cast<float>(how.params.limit);
  const auto alpha = static_cast<float>(how.params.alpha);
  const auto bound = static_cast<float>(how.params.situ_beta);
  switch (how.activation) {
    case Activation::swigluoai:
    case Activation::swigluoai_uninterleave:
      return each(gates, to, [=](float g) {
        const float low = at_most(g, limit);
        return low * sigmoid_of(alpha * low);
      });
    case Activation::silu:
      return each(gates, to, [=](float g) {
        const float low = at_most(g, limit);
        return low * sigmoid_of(low);
      });
    case Activation::swiglustep:
      return each(gates, to, [=](float g) { return at_most(g * sigmoid_of(g), limit); });
    case Activation::situ:
      return each(gates, to, [=](float g) { return bound * tanh_of(g / bound) * sigmoid_of(g); });
    case Activation::relu2_no_mul:
      return each(gates, to, [](float g) {
        const float positive = at_least(g, 0.0f);
        return positive * positive;
      });
    case Activation::silu_no_mul:
      return each(gates, to, [](float g) { return g * sigmoid_of(g); });
    case Activation::gelu:
    case Activation::gelu_no_mul:
      return each(gates, to, [](float g) { return g * normal_integral(g); });
    case Activation::gelu_tanh:
    case Activation::gelu_tanh_no_mul:
      return each(gates, to, [](float g) { return gelu_tanh_of(g); });
  }
}

void multiply_ups(const MiddleEpilogue& how, const float* ups, float* to) {
  const auto limit = static_cast<float>(how.params.limit);
  const auto beta = static_cast<float>(how.params.beta);
  const auto bound = static_cast<float>(how.params.situ_linear_beta);
  switch (how.activation) {
    case Activation::swigluoai:
    case Activation::swigluoai_uninterleave:
      return each_times(ups, to,
                        [=](float u) { return at_least(at_most(u, limit), -limit) + beta; });
    case Activation::silu:
    case Activation::swiglustep:
      return each_times(ups, to, [=](float u) { return at_least(at_most(u, limit), -limit); });
    case Activation::situ:
      if (bound > 0.0f)
        return each_times(ups, to, [=](float u) { return bound * tanh_of(u / bound); });
      [[fallthrough]];
    default:
      return each_times(ups, to, [](float u) { return u; });
  }
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
  const Term ups{how.rounding, how.up_factor, how.up_bias};
  if (!how.is_gated) return scale_and_bias<1>(sums, ups, to.gates);
  scale_and_bias<2>(sums, {how.rounding, how.gate_factor, how.gate_bias}, to.gates);
  scale_and_bias<2>(sums + 1, ups, to.ups);
}

void activate_chunk(const MiddleEpilogue& how, const FirstChunk& from, float* to) {
  activate_gates(how, from.gates, to);
  const bool is_apart =
      how.activation == Activation::silu || how.activation == Activation::swigluoai_uninterleave;
  if (how.rounding == MiddleRounding::gate_and_result && is_apart) round_values(to, kChunk);
  if (is_gated(how.activation)) multiply_ups(how, from.ups, to);
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

void add_scaled(const float* from, float factor, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] += factor * from[i];
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
