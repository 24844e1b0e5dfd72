// Loops of fixed length that compilers turn into code for the instruction set of the file that
// includes this. In an unnamed namespace on purpose: each file gets its own, and exports nothing.
//
// exp, sigmoid, tanh, the normal integral and the activations err by less than 1e-6. Arguments of
// exp are clamped to [-60, 60], and sigmoid is 0 below -60, so that no result is subnormal: CPUs
// need a hundred cycles and more for such numbers.
#pragma once
#include <cstddef>
#include <cstdint>

#include "fp4moe/kernels/cpu/elementwise.hpp"
#include "fp4moe/kernels/cpu/gemm.hpp"

namespace fp4moe::kernels::cpu {
namespace {

// Comparisons that let NaN through.
[[gnu::always_inline]] inline float at_most(float value, float limit) {
  return limit < value ? limit : value;
}
[[gnu::always_inline]] inline float at_least(float value, float limit) {
  return value < limit ? limit : value;
}

constexpr float kMaxExponent = 60.0f;

// x = n ln 2 + r with |r| <= 0.35: `power` is 2^n, `rest` is exp(r) - 1.
struct ExpParts {
  float power = 1.0f, rest = 0.0f;
};
[[gnu::always_inline]] inline ExpParts exp_parts(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  const float held = at_least(at_most(x, kMaxExponent), -kMaxExponent);
  const float shifted = held * kLog2E + kMagic;
  const float whole = shifted - kMagic;
  const float r = (held - whole * kLn2High) - whole * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const std::uint32_t biased = (__builtin_bit_cast(std::uint32_t, shifted) + 127u) << 23;
  return {__builtin_bit_cast(float, biased), p * r * r + r};
}
[[gnu::always_inline]] inline float exponential(float x) {
  const ExpParts parts = exp_parts(x);
  return parts.power * parts.rest + parts.power;
}

// NaN stays NaN.
[[gnu::always_inline]] inline float sigmoid_of(float x) {
  const float value = 1.0f / (1.0f + exponential(-x));
  return x < -kMaxExponent ? 0.0f : value;
}

// (exp(2x) - 1) / (exp(2x) + 1), without cancellation near zero.
[[gnu::always_inline]] inline float tanh_of(float x) {
  const ExpParts parts = exp_parts(at_least(at_most(2.0f * x, 30.0f), -30.0f));
  const float less_one = parts.power * parts.rest + (parts.power - 1.0f);
  return less_one / (less_one + 2.0f);
}

// The normal distribution's integral, by Abramowitz and Stegun 7.1.26: within 1.5e-7 / 2.
[[gnu::always_inline]] inline float normal_integral(float x) {
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

[[gnu::always_inline]] inline float gelu_tanh_of(float x) {
  constexpr float kTwiceRootOf2OverPi = 1.59576912f, kCubic = 0.044715f;
  return x * sigmoid_of(kTwiceRootOf2OverPi * (x + kCubic * (x * x * x)));
}

// Through a local array: no pointer can alias it, so loops are vectorized without checks for
// overlap.
template <class Make>
[[gnu::always_inline]] inline void each(const float* from, float* to, const Make& make) {
  float result[kChunk];
  for (std::size_t i = 0; i < kChunk; ++i) result[i] = make(from[i]);
  __builtin_memcpy(to, result, sizeof result);
}
template <class Make>
[[gnu::always_inline]] inline void each_times(const float* from, float* to, const Make& make) {
  float result[kChunk];
  for (std::size_t i = 0; i < kChunk; ++i) result[i] = to[i] * make(from[i]);
  __builtin_memcpy(to, result, sizeof result);
}

void activate_gates(const ActivateGates& call) noexcept {
  const float limit = call.limit, alpha = call.alpha, bound = call.bound;
  switch (call.function) {
    case GateFunction::swish:
      return each(call.gates, call.to, [=](float g) {
        const float low = at_most(g, limit);
        return low * sigmoid_of(alpha * low);
      });
    case GateFunction::swish_at_most:
      return each(call.gates, call.to, [=](float g) { return at_most(g * sigmoid_of(g), limit); });
    case GateFunction::situ:
      return each(call.gates, call.to,
                  [=](float g) { return bound * tanh_of(g / bound) * sigmoid_of(g); });
    case GateFunction::squared_relu:
      return each(call.gates, call.to, [](float g) {
        const float positive = at_least(g, 0.0f);
        return positive * positive;
      });
    case GateFunction::gelu:
      return each(call.gates, call.to, [](float g) { return g * normal_integral(g); });
    case GateFunction::gelu_tanh:
      return each(call.gates, call.to, [](float g) { return gelu_tanh_of(g); });
  }
}

void multiply_ups(const MultiplyUps& call) noexcept {
  const float limit = call.limit, beta = call.beta, bound = call.bound;
  switch (call.function) {
    case UpFunction::plain:
      return each_times(call.ups, call.to, [](float u) { return u; });
    case UpFunction::clamped:
      return each_times(call.ups, call.to,
                        [=](float u) { return at_least(at_most(u, limit), -limit); });
    case UpFunction::clamped_plus:
      return each_times(call.ups, call.to,
                        [=](float u) { return at_least(at_most(u, limit), -limit) + beta; });
    case UpFunction::situ:
      return each_times(call.ups, call.to, [=](float u) { return bound * tanh_of(u / bound); });
  }
}

template <std::size_t kFirst>
[[gnu::always_inline]] inline void split_part(const float* sums, float factor, const float* bias,
                                              float* to) {
  float values[kChunk];
  for (std::size_t i = 0; i < kChunk; ++i) values[i] = sums[2 * i + kFirst] * factor;
  if (bias != nullptr)
    for (std::size_t i = 0; i < kChunk; ++i) values[i] += bias[i];
  __builtin_memcpy(to, values, sizeof values);
}
void split_sums(const SplitSums& call) noexcept {
  split_part<0>(call.sums, call.gate_factor, call.gate_bias, call.gates);
  split_part<1>(call.sums, call.up_factor, call.up_bias, call.ups);
}

void weigh_sums(const WeighSums& call) noexcept {
  const float* __restrict sums = call.sums;
  const float* __restrict bias = call.bias;
  float* __restrict to = call.to;
  const float factor = call.factor, weight = call.weight;
  if (bias == nullptr)
    for (std::size_t i = 0; i < call.count; ++i) to[i] = sums[i] * factor * weight;
  else
    for (std::size_t i = 0; i < call.count; ++i) to[i] = (sums[i] * factor + bias[i]) * weight;
}

void add_values(const float* __restrict from, std::size_t count, float* __restrict to) noexcept {
  for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
}

void round_chunk(const float* values, int limit, std::int16_t* rounded, float& half_step) {
  // Chunks with a smaller maximum are rounded as if it were this: limit / kMin is finite.
  constexpr float kMin = 0x1p-100f;
  // Adding 1.5 * 2^23 leaves the rounded value in the lowest bits.
  constexpr float kMagic = 12582912.0f;
  constexpr std::uint32_t kInfinity = 0x7F800000, kMagicBits = 0x4B400000;
  std::uint32_t bits[kChunk];
  __builtin_memcpy(bits, values, sizeof bits);
  std::uint32_t largest = 0;
  for (const std::uint32_t word : bits) {
    const std::uint32_t size = word & 0x7FFFFFFF;
    largest = size > largest ? size : largest;
  }
  if (largest >= kInfinity) {
    __builtin_memset(rounded, 0, kChunk * sizeof *rounded);
    half_step = __builtin_nanf("");
    return;
  }
  const float size = __builtin_bit_cast(float, largest);
  const float held = size < kMin ? kMin : size;
  const float inverse = static_cast<float>(limit) / held;
  half_step = size == 0 ? 0.0f : held / static_cast<float>(limit) * 0.5f;
  std::int16_t result[kChunk];
  for (std::size_t i = 0; i < kChunk; ++i) {
    const float shifted = values[i] * inverse + kMagic;
    result[i] = static_cast<std::int16_t>(
        static_cast<std::int32_t>(__builtin_bit_cast(std::uint32_t, shifted) - kMagicBits));
  }
  __builtin_memcpy(rounded, result, sizeof result);
}
void round_chunks(const RoundChunks& call) noexcept {
  for (std::size_t c = 0; c < call.count; c += kChunk)
    round_chunk(call.values + c, call.limit, call.rounded + c, call.half_steps[c / kChunk]);
}

constexpr ElementwiseFunctions kElementwiseLoops{split_sums,   activate_gates, multiply_ups,
                                                 round_chunks, weigh_sums,     add_values};

}  // namespace
}  // namespace fp4moe::kernels::cpu
