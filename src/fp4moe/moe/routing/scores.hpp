// Cheap approximations of the scores, in forms that compilers vectorize, and their error bounds.
// scores_test.cpp checks the bounds.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "fp4moe/moe/routing/method.hpp"
#include "fp4moe/moe/routing/select_largest.hpp"

namespace fp4moe::moe::routing {

// Compared as integers: compilers make no vector code of comparisons that could raise
// floating-point flags.
inline float clamped(float x, float low, float high) noexcept {
  return from_ordered(std::clamp(ordered(x), ordered(low), ordered(high)));
}

// exp(x) for x in [-87, 88], relative error below 3e-7.
inline float tame_exp(float x) noexcept {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float shifted = x * 1.44269504f + kRound;
  const float whole = shifted - kRound;
  const float r = (x - whole * 0.693145752f) - whole * 1.42860677e-6f;  // log 2 in two parts
  float p = 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // The low bits of `shifted` are the whole number: into the exponent with them.
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) +
                              (std::bit_cast<std::uint32_t>(shifted) << 23));
}

inline float tame_sigmoid(float x) noexcept { return 1.0f / (1.0f + tame_exp(-x)); }

// log(1 + exp(x)) = max(x, 0) + 2 artanh(u / (2 + u)) with u = exp(-|x|).
inline float tame_softplus(float x) noexcept {
  const float u = tame_exp(std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) | 0x80000000u));
  const float z = u / (2.0f + u), y = z * z;
  float p = 1.0f / 15;
  p = p * y + 1.0f / 13;
  p = p * y + 1.0f / 11;
  p = p * y + 1.0f / 9;
  p = p * y + 1.0f / 7;
  p = p * y + 1.0f / 5;
  p = p * y + 1.0f / 3;
  p = p * y + 1.0f;
  return from_ordered(std::max(ordered(x), 0)) + 2.0f * z * p;
}

// Its root, by three of Newton's steps towards 1 / sqrt: a call of sqrt could set errno and would
// keep the loop from becoming vector code. Softplus is at least 1e-38 here.
inline float tame_sqrt_softplus(float x) noexcept {
  const float s = tame_softplus(x), half = 0.5f * s;
  float r = std::bit_cast<float>(0x5F375A86u - (std::bit_cast<std::uint32_t>(s) >> 1));
  r = r * (1.5f - half * r * r);
  r = r * (1.5f - half * r * r);
  r = r * (1.5f - half * r * r);
  return s * r;
}

// The same of any number: what lies beyond the range counts as its border.
inline float fast_exp(float x) noexcept { return tame_exp(clamped(x, -87.0f, 88.0f)); }
inline float fast_sigmoid(float x) noexcept { return tame_sigmoid(clamped(x, -87.0f, 87.0f)); }

// Relative error of the approximations for logits between -75 and 75 (softmax: that far below the
// row's largest; its bound covers the rounding of the difference and of the sum).
constexpr float error_bound(Score score) noexcept {
  return score == Score::softmax ? 8e-6f : score == Score::logit ? 0.0f : 6e-7f;
}
inline constexpr float kTamest = 75.0f;

}  // namespace fp4moe::moe::routing
