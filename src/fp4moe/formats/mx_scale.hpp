// From a block's largest magnitude to its E8M0 scale: one row per rule that kernels use.
//
// bits(.) is the float32 pattern; divisions are float32, to nearest.
//
//   floorN    exponent field of amax / N
//   ceilN     the same, one higher when any mantissa bit is set
//   even      exponent field of bits(amax) + 2^21, less 2: 1.75 * 2^e and more counts as 2^(e+1)
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "fp4moe/formats/small_float.hpp"

namespace fp4moe::formats {

enum class ScaleRule : std::uint8_t { floor4, ceil6, floor6, even, even_div, ceil4, ceil448 };

struct ScaleRuleRow {
  ScaleRule rule;
  std::string_view name;     // as golden files spell it
  std::string_view used_by;  // where it was read
};

// clang-format off
inline constexpr std::array<ScaleRuleRow, 7> kScaleRules{{
    {ScaleRule::floor4,   "floor4",   "OCP MX 1.0; triton_kernels >= 3.6 ROUND_DOWN; AITER RoundDown"},
    {ScaleRule::ceil6,    "ceil6",    "triton_kernels ROUND_UP; AITER RoundUp"},
    {ScaleRule::floor6,   "floor6",   "triton_kernels 3.5 ROUND_DOWN"},
    {ScaleRule::even,     "even",     "Quark; vLLM's CUDA MXFP4 quantization"},
    {ScaleRule::even_div, "even_div", "AITER Even: the top of the range becomes 255"},
    {ScaleRule::ceil4,    "ceil4",    "torchao CEIL; AITER Ceil"},
    {ScaleRule::ceil448,  "ceil448",  "triton_kernels MXFP8 ROUND_UP"},
}};
// clang-format on

constexpr std::string_view name(ScaleRule rule) {
  return kScaleRules[static_cast<std::size_t>(rule)].name;
}
std::optional<ScaleRule> scale_rule_from_name(std::string_view name);

// 1/6 and 1/448 rounded to float32; also what the approximate reciprocal of NVIDIA's GPUs gives.
inline constexpr float kReciprocalOf6 = 1.0f / 6.0f;
inline constexpr float kReciprocalOf448 = 1.0f / 448.0f;
static_assert(float_bits(kReciprocalOf6) == 0x3E2AAAAB);
static_assert(float_bits(kReciprocalOf448) == 0x3B124925);

// The scale code of a block with this maximum. Infinity and NaN give 255, `even` 253.
std::uint8_t mx_scale(ScaleRule rule, float amax);

// The factor that brings a block into the element's range: 1 / S with S the shifted reading of the
// code (exact), 0 when S is 0.
float mx_inverse(std::uint8_t scale);

}  // namespace fp4moe::formats
