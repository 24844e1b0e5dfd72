#include "fp4moe/formats/nvfp4.hpp"

#include <algorithm>
#include <cassert>
#include <limits>

#include "fp4moe/formats/e2m1.hpp"
#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/mx_scale.hpp"
#include "fp4moe/formats/nibbles.hpp"

namespace fp4moe::formats {
namespace {

// The factor of a block's values. With a scale of 0 they all become zeros.
float factor(Nvfp4Quantizer how, std::uint8_t scale) {
  const float value = E4m3fn::decode(scale);
  if (value == 0.0f) return 0.0f;
  if (how.rule == Nvfp4Rule::no_global) return 1.0f / value;
  const float reciprocal = 1.0f / how.global_scale;
  return 1.0f / (value * reciprocal);
}

}  // namespace

std::optional<Nvfp4Rule> nvfp4_rule_from_name(std::string_view name) {
  for (const Nvfp4RuleRow& row : kNvfp4Rules)
    if (row.name == name) return row.rule;
  return std::nullopt;
}

float nvfp4_global_scale(float tensor_amax) {
  if (!(tensor_amax > 0.0f) || is_infinite(tensor_amax)) return 1.0f;
  return std::min(E4m3fn::kMax * E2m1::kMax / tensor_amax, std::numeric_limits<float>::max());
}

std::uint8_t nvfp4_scale(Nvfp4Rule rule, float global_scale, float amax) {
  float ratio = 0.0f;
  switch (rule) {
    case Nvfp4Rule::reference:
      ratio = global_scale * (amax * kReciprocalOf6);
      break;
    case Nvfp4Rule::flashinfer_exact:
      if (amax != 0.0f) ratio = amax * (global_scale * kReciprocalOf6);
      break;
    case Nvfp4Rule::no_global:
      ratio = amax / 6.0f;
      break;
  }
  return E4m3fn::encode(ratio);
}

void quantize_nvfp4(Nvfp4Quantizer how, std::span<const float> x, std::uint8_t& scale,
                    std::span<std::uint8_t> codes) {
  assert(x.size() <= kNvfp4Block && codes.size() == kNvfp4Bytes);
  std::fill(codes.begin(), codes.end(), std::uint8_t{0});
  scale = nvfp4_scale(how.rule, how.global_scale, block_amax(x));
  const float multiplier = factor(how, scale);
  for (std::size_t i = 0; i < x.size(); ++i) set_nibble(codes, i, E2m1::encode(x[i] * multiplier));
}

void dequantize_nvfp4(std::uint8_t scale, float global_divisor, std::span<const std::uint8_t> codes,
                      std::span<float> out) {
  assert(out.size() <= kNvfp4Block && codes.size() == kNvfp4Bytes);
  const float value = E4m3fn::decode(scale);
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = E2m1::decode(nibble(codes, i)) * value / global_divisor;
}

void dequantize_nvfp4_by_multiplier(std::uint8_t scale, float global_multiplier,
                                    std::span<const std::uint8_t> codes, std::span<float> out) {
  assert(out.size() <= kNvfp4Block && codes.size() == kNvfp4Bytes);
  const float value = E4m3fn::decode(scale) * global_multiplier;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = E2m1::decode(nibble(codes, i)) * value;
}

Result<Done> quantize_nvfp4_rows(Nvfp4Quantizer how, Rows<const float> x,
                                 std::span<std::uint8_t> scales, std::span<std::uint8_t> codes) {
  if (Result<Done> fits = check_rows(kNvfp4Shape, x, scales, codes); !fits) return fits;
  for_each_block(kNvfp4Shape, x, [&](std::span<const float> values, std::size_t block) {
    quantize_nvfp4(how, values, scales[block], codes.subspan(block * kNvfp4Bytes, kNvfp4Bytes));
  });
  return Done{};
}

Result<Done> dequantize_nvfp4_rows(float global_divisor, std::span<const std::uint8_t> scales,
                                   std::span<const std::uint8_t> codes, Rows<float> out) {
  const Rows<const float> shape{out.values, out.columns};
  if (Result<Done> fits = check_rows(kNvfp4Shape, shape, scales, codes); !fits) return fits;
  for_each_block(kNvfp4Shape, out, [&](std::span<float> values, std::size_t block) {
    dequantize_nvfp4(scales[block], global_divisor, codes.subspan(block * kNvfp4Bytes, kNvfp4Bytes),
                     values);
  });
  return Done{};
}

}  // namespace fp4moe::formats
