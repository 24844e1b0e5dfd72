#include "fp4moe/formats/mx_scale.hpp"

#include <algorithm>

#include "fp4moe/formats/e8m0.hpp"
#include "fp4moe/formats/small_float.hpp"

namespace fp4moe::formats {
namespace {

std::uint8_t exponent_field(std::uint32_t bits) {
  return static_cast<std::uint8_t>((bits & kFloatInfinityBits) >> 23);
}

std::uint8_t floor_scale(float ratio) { return exponent_field(float_bits(ratio)); }
std::uint8_t ceil_scale(float ratio) { return exponent_field(float_bits(ratio) + 0x7FFFFF); }

// Half a step of E2M1's mantissa at the top of a binade: from 1.75 on the exponent is carried into.
std::uint32_t even_bits(float amax) { return (float_bits(amax) + 0x200000) & kFloatInfinityBits; }

}  // namespace

std::optional<ScaleRule> scale_rule_from_name(std::string_view name) {
  for (const ScaleRuleRow& row : kScaleRules)
    if (row.name == name) return row.rule;
  return std::nullopt;
}

std::uint8_t mx_scale(ScaleRule rule, float amax) {
  if (is_nan(amax) && rule != ScaleRule::even) return E8m0::kNan;
  switch (rule) {
    case ScaleRule::floor4:
      return floor_scale(amax / 4.0f);
    case ScaleRule::ceil6:
      return ceil_scale(amax / 6.0f);
    case ScaleRule::floor6:
      return floor_scale(amax / 6.0f);
    case ScaleRule::even:
      return static_cast<std::uint8_t>(std::max(exponent_field(even_bits(amax)) - 2, 0));
    case ScaleRule::even_div:
      return floor_scale(float_from_bits(even_bits(amax)) / 4.0f);
    case ScaleRule::ceil4:
      return ceil_scale(amax / 4.0f);
    case ScaleRule::ceil448:
      return ceil_scale(amax / 448.0f);
  }
  return E8m0::kNan;
}

float mx_inverse(std::uint8_t scale) {
  const float value = E8m0::decode_shifted(scale);
  return value == 0.0f ? 0.0f : 1.0f / value;
}

}  // namespace fp4moe::formats
