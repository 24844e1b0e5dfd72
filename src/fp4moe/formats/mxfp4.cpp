#include "fp4moe/formats/mxfp4.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "fp4moe/formats/e2m1.hpp"
#include "fp4moe/formats/e8m0.hpp"
#include "fp4moe/formats/mx_scale.hpp"
#include "fp4moe/formats/nibbles.hpp"

namespace fp4moe::formats {
namespace {

// The Triton kernel of vLLM caps the exponent where the CUDA formula subtracts 2 from infinity's.
std::uint8_t even_triton_scale(float amax) {
  const bool at_top = float_bits(amax) + 0x200000 >= kFloatInfinityBits;
  return at_top ? E8m0::kMaxCode : mx_scale(ScaleRule::even, amax);
}

// floor(log2(amax)) - 2 with the logarithm rounded to float32, as log2f gives it: just below a
// power of two it rounds up to the power. The original's conversion to a byte is undefined outside
// 0 ... 255; here it saturates.
std::uint8_t llama_cpp_scale(float amax) {
  if (!(amax > 0.0f)) return 0;
  if (is_infinite(amax)) return E8m0::kMaxCode;
  const auto logarithm = static_cast<float>(std::log2(static_cast<double>(amax)));
  const int code = static_cast<int>(std::floor(logarithm)) - 2 + E8m0::kBias;
  return static_cast<std::uint8_t>(std::clamp(code, 0, int{E8m0::kMaxCode}));
}

// NaN compares as not larger, so it is passed over.
float llama_cpp_amax(std::span<const float> x) {
  float amax = 0.0f;
  for (const float value : x) amax = std::fabs(value) > amax ? std::fabs(value) : amax;
  return amax;
}

// Doubled values and a halved scale, so that code 1 times the smallest scale is still exact.
std::uint8_t llama_cpp_code(float x, std::uint8_t scale) {
  const float half_scale = power_of_two(scale - E8m0::kBias - 1);
  std::uint8_t best = 0;
  float min = std::numeric_limits<float>::quiet_NaN();
  for (std::uint8_t code = 0; code < 16; ++code) {
    const float error = std::fabs(2.0f * E2m1::decode(code) * half_scale - x);
    if (code == 0 || error < min) {
      min = error;
      best = code;
    }
  }
  return best;
}

float flashinfer_inverse(std::uint8_t scale, float amax) {
  if (amax * kReciprocalOf6 == 0.0f) return 0.0f;
  return scale == 0 ? 1.0f : power_of_two(E8m0::kBias - scale);
}

float inverse(Mxfp4Rule rule, std::uint8_t scale, float amax) {
  return rule == Mxfp4Rule::flashinfer_rne ? flashinfer_inverse(scale, amax) : mx_inverse(scale);
}

std::uint8_t element(Mxfp4Rule rule, float scaled) {
  const bool away = rule == Mxfp4Rule::ceil6_away || rule == Mxfp4Rule::floor6_away;
  return away ? E2m1::encode_ties_away(scaled) : E2m1::encode(scaled);
}

}  // namespace

std::optional<Mxfp4Rule> mxfp4_rule_from_name(std::string_view name) {
  for (const Mxfp4RuleRow& row : kMxfp4Rules)
    if (row.name == name) return row.rule;
  return std::nullopt;
}

std::uint8_t mxfp4_scale(Mxfp4Rule rule, float amax) {
  switch (rule) {
    case Mxfp4Rule::floor4_rne:
      return mx_scale(ScaleRule::floor4, amax);
    case Mxfp4Rule::ceil6_rne:
    case Mxfp4Rule::ceil6_away:
      return is_nan(amax) ? 0 : mx_scale(ScaleRule::ceil6, amax);  // the original wraps
    case Mxfp4Rule::floor6_away:
      return mx_scale(ScaleRule::floor6, amax);
    case Mxfp4Rule::even_rne:
      return mx_scale(ScaleRule::even, amax);
    case Mxfp4Rule::even_triton_rne:
      return even_triton_scale(amax);
    case Mxfp4Rule::flashinfer_rne:
      return E8m0::encode_up(amax * kReciprocalOf6);
    case Mxfp4Rule::llama_cpp:
      return llama_cpp_scale(amax);
  }
  return E8m0::kNan;
}

void quantize_mxfp4(Mxfp4Rule rule, std::span<const float> x, std::uint8_t& scale,
                    std::span<std::uint8_t> codes) {
  assert(x.size() <= kMxfp4Block && codes.size() == kMxfp4Bytes);
  std::fill(codes.begin(), codes.end(), std::uint8_t{0});
  if (rule == Mxfp4Rule::llama_cpp) {
    scale = mxfp4_scale(rule, llama_cpp_amax(x));
    for (std::size_t i = 0; i < x.size(); ++i) set_nibble(codes, i, llama_cpp_code(x[i], scale));
    return;
  }
  const float amax = block_amax(x);
  scale = mxfp4_scale(rule, amax);
  const float factor = inverse(rule, scale, amax);
  for (std::size_t i = 0; i < x.size(); ++i) set_nibble(codes, i, element(rule, x[i] * factor));
}

void dequantize_mxfp4(std::uint8_t scale, std::span<const std::uint8_t> codes, std::span<float> out,
                      ScaleReading reading) {
  assert(out.size() <= kMxfp4Block && codes.size() == kMxfp4Bytes);
  constexpr float kLargest = std::numeric_limits<float>::max();
  const float factor =
      reading == ScaleReading::strict ? E8m0::decode(scale) : E8m0::decode_shifted(scale);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float value = E2m1::decode(nibble(codes, i)) * factor;
    out[i] = is_nan(value) ? value : std::clamp(value, -kLargest, kLargest);
  }
}

Result<Done> quantize_mxfp4_rows(Mxfp4Rule rule, Rows<const float> x,
                                 std::span<std::uint8_t> scales, std::span<std::uint8_t> codes) {
  if (Result<Done> fits = check_rows(kMxfp4Shape, x, scales, codes); !fits) return fits;
  for_each_block(kMxfp4Shape, x, [&](std::span<const float> values, std::size_t block) {
    quantize_mxfp4(rule, values, scales[block], codes.subspan(block * kMxfp4Bytes, kMxfp4Bytes));
  });
  return Done{};
}

Result<Done> dequantize_mxfp4_rows(std::span<const std::uint8_t> scales,
                                   std::span<const std::uint8_t> codes, Rows<float> out,
                                   ScaleReading reading) {
  const Rows<const float> shape{out.values, out.columns};
  if (Result<Done> fits = check_rows(kMxfp4Shape, shape, scales, codes); !fits) return fits;
  for_each_block(kMxfp4Shape, out, [&](std::span<float> values, std::size_t block) {
    dequantize_mxfp4(scales[block], codes.subspan(block * kMxfp4Bytes, kMxfp4Bytes), values,
                     reading);
  });
  return Done{};
}

}  // namespace fp4moe::formats
