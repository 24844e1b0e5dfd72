#include "fp4moe/formats/mxfp8.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/e8m0.hpp"
#include "fp4moe/formats/mx_scale.hpp"

namespace fp4moe::formats {
namespace {

// ceil(log2(amax / 448)) with the logarithm rounded to float32: a ratio a few units in the last
// place above a power of two rounds down to it, so the scale can be one lower than ceil448's.
std::uint8_t log2_scale(float amax) {
  if (is_nan(amax)) return E8m0::kNan;
  const float ratio = std::max(amax, 0x1p-126f) / E4m3fn::kMax;
  if (is_infinite(ratio)) return E8m0::kMaxCode;
  const auto logarithm = static_cast<float>(std::log2(static_cast<double>(ratio)));
  const int code = static_cast<int>(std::ceil(logarithm)) + E8m0::kBias;
  return static_cast<std::uint8_t>(std::clamp(code, 0, int{E8m0::kMaxCode}));
}

// rcp.approx.ftz of the scale's strict value: exact for powers of two, but a subnormal input counts
// as zero and a subnormal result becomes zero.
float flushing_reciprocal(std::uint8_t scale) {
  if (scale == E8m0::kNan) return float_from_bits(kFloatNanBits);
  if (scale == 0) return float_from_bits(kFloatInfinityBits);
  return scale == E8m0::kMaxCode ? 0.0f : power_of_two(E8m0::kBias - scale);
}

float inverse(Mxfp8Rule rule, std::uint8_t scale, float amax) {
  switch (rule) {
    case Mxfp8Rule::ceil448:
    case Mxfp8Rule::flashinfer_cutedsl:
      return mx_inverse(scale);
    case Mxfp8Rule::flashinfer_cuda:
      return amax == 0.0f ? 0.0f : flushing_reciprocal(scale);
    case Mxfp8Rule::log2:
      return 1.0f / E8m0::decode(scale);
  }
  return 0.0f;
}

}  // namespace

std::optional<Mxfp8Rule> mxfp8_rule_from_name(std::string_view name) {
  for (const Mxfp8RuleRow& row : kMxfp8Rules)
    if (row.name == name) return row.rule;
  return std::nullopt;
}

std::uint8_t mxfp8_scale(Mxfp8Rule rule, float amax) {
  switch (rule) {
    case Mxfp8Rule::ceil448:
      return is_nan(amax) ? 0 : mx_scale(ScaleRule::ceil448, amax);  // the original wraps
    case Mxfp8Rule::flashinfer_cuda:
    case Mxfp8Rule::flashinfer_cutedsl:
      return E8m0::encode_up(amax * kReciprocalOf448);
    case Mxfp8Rule::log2:
      return log2_scale(amax);
  }
  return E8m0::kNan;
}

void quantize_mxfp8(Mxfp8Rule rule, std::span<const float> x, std::uint8_t& scale,
                    std::span<std::uint8_t> codes) {
  assert(x.size() <= kMxfp8Block && codes.size() == kMxfp8Block);
  std::fill(codes.begin(), codes.end(), std::uint8_t{0});
  const float amax = block_amax(x);
  scale = mxfp8_scale(rule, amax);
  const float factor = inverse(rule, scale, amax);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float scaled = x[i] * factor;
    codes[i] = rule == Mxfp8Rule::log2 ? E4m3fn::encode_or_nan(scaled) : E4m3fn::encode(scaled);
  }
}

void dequantize_mxfp8(std::uint8_t scale, std::span<const std::uint8_t> codes, std::span<float> out,
                      ScaleReading reading) {
  assert(out.size() <= kMxfp8Block && codes.size() == kMxfp8Block);
  constexpr float kLargest = std::numeric_limits<float>::max();
  const float factor =
      reading == ScaleReading::strict ? E8m0::decode(scale) : E8m0::decode_shifted(scale);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float value = E4m3fn::decode(codes[i]) * factor;
    out[i] = is_nan(value) ? value : std::clamp(value, -kLargest, kLargest);
  }
}

Result<Done> quantize_mxfp8_rows(Mxfp8Rule rule, Rows<const float> x,
                                 std::span<std::uint8_t> scales, std::span<std::uint8_t> codes) {
  if (Result<Done> fits = check_rows(kMxfp8Shape, x, scales, codes); !fits) return fits;
  for_each_block(kMxfp8Shape, x, [&](std::span<const float> values, std::size_t block) {
    quantize_mxfp8(rule, values, scales[block], codes.subspan(block * kMxfp8Block, kMxfp8Block));
  });
  return Done{};
}

Result<Done> dequantize_mxfp8_rows(std::span<const std::uint8_t> scales,
                                   std::span<const std::uint8_t> codes, Rows<float> out,
                                   ScaleReading reading) {
  const Rows<const float> shape{out.values, out.columns};
  if (Result<Done> fits = check_rows(kMxfp8Shape, shape, scales, codes); !fits) return fits;
  for_each_block(kMxfp8Shape, out, [&](std::span<float> values, std::size_t block) {
    dequantize_mxfp8(scales[block], codes.subspan(block * kMxfp8Block, kMxfp8Block), values,
                     reading);
  });
  return Done{};
}

}  // namespace fp4moe::formats
