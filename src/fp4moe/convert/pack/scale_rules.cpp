#include "fp4moe/convert/pack/scale_rules.hpp"

#include <bit>

#include <fmt/format.h>

#include "fp4moe/formats/sm90_scale.hpp"

namespace fp4moe::convert {
namespace {

using layout::ScaleRule;

// A positive E4M3 code as (1 + fraction / 8) * 2^exponent.
struct Normal {
  int exponent = 0;
  int fraction = 0;
};
Normal normalize(int code) {
  const int exponent = code >> 3, fraction = code & 7;
  if (exponent > 0) return {exponent - 7, fraction};
  const int top =
      static_cast<int>(std::bit_width(static_cast<unsigned>(fraction))) - 1;  // fraction * 2^-9
  return {top - 9, (fraction << (3 - top)) & 7};
}

// The top eight bits below the sign of half(scale * 2^(7 + exponent)).
std::uint8_t marlin_byte(ScaleRule rule, int code, int exponent) {
  const bool is_latest = rule == ScaleRule::marlin_2026_04;
  const int magnitude = code & 0x7F;
  if (magnitude == 0 || (is_latest && code >= 0x80)) return 0;
  const Normal value = normalize(magnitude);
  const int biased = value.exponent + 7 + exponent + 15;
  if (biased >= 31) return 0xF8;  // infinity
  const int byte = biased << 3 | value.fraction;
  return static_cast<std::uint8_t>(is_latest && byte < 0x80 ? 0 : byte);
}

std::uint8_t forward(ScaleRule rule, int code, int exponent) {
  switch (rule) {
    case ScaleRule::as_is:
      break;
    case ScaleRule::plus_six:
      return static_cast<std::uint8_t>(code + 6);
    case ScaleRule::marlin_2026_01:
    case ScaleRule::marlin_2026_03:
    case ScaleRule::marlin_2026_04:
      return marlin_byte(rule, code, exponent);
    case ScaleRule::native_sm90_mxfp4:
      return static_cast<std::uint8_t>(code + 126 - exponent);
    case ScaleRule::native_sm90_nvfp4: {
      if (code == 0 || code >= 0x80) return kNativeZeroScale;
      const Normal value = normalize(code);
      return static_cast<std::uint8_t>((value.exponent + 9) << 3 | value.fraction);
    }
  }
  return static_cast<std::uint8_t>(code);
}

int largest_exponent(const ScaleExtremes& extremes) {
  if (extremes.largest == 0 || extremes.largest == 0x7E) return 0;
  const Normal value = normalize(extremes.largest);
  return value.fraction <= 6 ? 8 - value.exponent : 7 - value.exponent;
}

int smallest_exponent(const ScaleExtremes& extremes) {
  constexpr int kBySubnormal[] = {0, 3, 2, 2, 1, 1, 1, 1};
  return extremes.smallest < 8 ? kBySubnormal[extremes.smallest] : 0;
}

}  // namespace

bool needs_all_experts(ScaleRule rule) {
  return rule == ScaleRule::marlin_2026_03 || rule == ScaleRule::marlin_2026_04;
}

bool needs_extremes(ScaleRule rule) { return rule != ScaleRule::as_is; }

Result<int> common_exponent(ScaleRule rule, const ScaleExtremes& extremes,
                            tensor::DType params_type) {
  if (rule == ScaleRule::plus_six && extremes.largest > 249 &&
      extremes.smallest <= extremes.largest)
    return invalid("scale.range", "a block scale is too large for kernels with FP8 activations")
        .expects("scale bytes up to 249", fmt::format("{}", extremes.largest));
  if (rule == ScaleRule::marlin_2026_04 && params_type == tensor::DType::bf16)
    return largest_exponent(extremes);
  if (rule == ScaleRule::marlin_2026_03) return smallest_exponent(extremes);
  if (rule == ScaleRule::native_sm90_mxfp4)
    return formats::sm90_offset(extremes.smallest, extremes.largest);
  if (rule == ScaleRule::native_sm90_nvfp4)
    if (const auto fine = formats::check_sm90_sign(extremes.has_negative); !fine) return fine.why();
  return 0;
}

std::optional<ByteTable> scale_table(ScaleRule rule, int exponent) {
  if (rule == ScaleRule::as_is) return std::nullopt;
  ByteTable table{};
  for (int code = 0; code < 256; ++code)
    table[static_cast<std::size_t>(code)] = forward(rule, code, exponent);
  return table;
}

std::optional<ByteTable> inverse_scale_table(ScaleRule rule, int exponent) {
  if (rule == ScaleRule::as_is) return std::nullopt;
  ByteTable table{};
  // Codes that share a byte: the smallest positive one stands for them; see losses().
  for (int code = 255; code >= 0; --code)
    table[forward(rule, code, exponent)] = static_cast<std::uint8_t>(code);
  return table;
}

}  // namespace fp4moe::convert
