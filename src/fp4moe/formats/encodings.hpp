// Every way to round a float32 to a code of eight bits or less, by name.
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "fp4moe/formats/e2m1.hpp"
#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/e4m3fnuz.hpp"
#include "fp4moe/formats/e5m2.hpp"
#include "fp4moe/formats/e8m0.hpp"

namespace fp4moe::formats {

struct Encoding {
  std::string_view format, rule;  // as golden files spell them
  std::uint8_t (*encode)(float x);
  float (*decode)(std::uint8_t code);
};

// clang-format off
inline constexpr Encoding kEncodings[] = {
    {"e2m1",     "rne_satfinite",               E2m1::encode,                 E2m1::decode},
    {"e2m1",     "nearest_ties_away_satfinite", E2m1::encode_ties_away,       E2m1::decode},
    {"e8m0",     "toward_pos_inf_satfinite",    E8m0::encode_up,              E8m0::decode},
    {"e8m0",     "toward_zero_satfinite",       E8m0::encode_down,            E8m0::decode},
    {"e8m0",     "torch_cast",                  E8m0::encode_torch,           E8m0::decode},
    {"e4m3fn",   "rne_satfinite",               E4m3fn::encode,               E4m3fn::decode},
    {"e4m3fn",   "rne_overflow_to_nan",         E4m3fn::encode_or_nan,        E4m3fn::decode},
    {"e5m2",     "rne_satfinite",               E5m2::encode,                 E5m2::decode},
    {"e5m2",     "rne_overflow_to_inf",         E5m2::encode_or_infinity,     E5m2::decode},
    {"e4m3fnuz", "rne_satfinite",               E4m3fnuz::encode,             E4m3fnuz::decode},
    {"e4m3fnuz", "rne_overflow_to_nan",         E4m3fnuz::encode_or_nan,      E4m3fnuz::decode},
};
// clang-format on

constexpr const Encoding* find_encoding(std::string_view format, std::string_view rule) {
  const auto* found = std::ranges::find_if(
      kEncodings, [&](const Encoding& row) { return row.format == format && row.rule == rule; });
  return found == std::end(kEncodings) ? nullptr : found;
}

}  // namespace fp4moe::formats
