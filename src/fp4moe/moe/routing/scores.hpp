// Cheap approximations of the scores, in forms that compilers turn into vector code, and how far
// they may be off. scores_test.cpp holds them to it.
#pragma once
#include <bit>
#include <cstdint>

#include "fp4moe/moe/routing/method.hpp"

namespace fp4moe::moe::routing {

// exp(x), relative error below 3e-7; x is first brought into [-87, 88].
inline float fast_exp(float x) noexcept {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504f + kRound;
  const float whole = shifted - kRound;
  const float r = (x - whole * 0.693145752f) - whole * 1.42860677e-6f;  // log 2 in two parts
  float p = 1.98412698e-4f;
  p = p * r + 1.38888889e-3f;
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

inline float fast_sigmoid(float x) noexcept { return 1.0f / (1.0f + fast_exp(-x)); }

// log(1 + exp(x)) = max(x, 0) + 2 artanh(u / (2 + u)) with u = exp(-|x|).
inline float fast_softplus(float x) noexcept {
  const float u = fast_exp(x < 0 ? x : -x);
  const float z = u / (2.0f + u), y = z * z;
  float p = 1.0f / 15;
  p = p * y + 1.0f / 13;
  p = p * y + 1.0f / 11;
  p = p * y + 1.0f / 9;
  p = p * y + 1.0f / 7;
  p = p * y + 1.0f / 5;
  p = p * y + 1.0f / 3;
  p = p * y + 1.0f;
  return (x > 0 ? x : 0.0f) + 2.0f * z * p;
}

// Its root, by three of Newton's steps towards 1 / sqrt: a call of sqrt could set errno and would
// keep the loop from becoming vector code. Softplus is at least 1e-38 here.
inline float fast_sqrt_softplus(float x) noexcept {
  const float s = fast_softplus(x), half = 0.5f * s;
  float r = std::bit_cast<float>(0x5F375A86u - (std::bit_cast<std::uint32_t>(s) >> 1));
  r = r * (1.5f - half * r * r);
  r = r * (1.5f - half * r * r);
  r = r * (1.5f - half * r * r);
  return s * r;
}

// Relative error of the approximations for logits between -75 and 75 (softmax: that far below the
// row's largest; its bound covers the rounding of the difference and of the sum).
constexpr float error_bound(Score score) noexcept {
  return score == Score::softmax ? 8e-6f : score == Score::logit ? 0.0f : 6e-7f;
}
inline constexpr float kTamest = 75.0f;

}  // namespace fp4moe::moe::routing
