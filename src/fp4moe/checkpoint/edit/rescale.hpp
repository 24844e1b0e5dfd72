// E4M3 block scales expressed under another global scale.
#pragma once
#include <cmath>
#include <cstdint>
#include <span>

#include "fp4moe/formats/e4m3fn.hpp"

namespace fp4moe::checkpoint {

struct Rescaled {
  std::uint64_t rounded = 0;  // scales whose new value is not exactly old * ratio
  double worst = 0;           // the largest |new - old * ratio| / |old * ratio|
};

// Each scale becomes the E4M3 value nearest to scale * ratio, ratio in (0, 1]: never above 448, and
// small ones may become subnormal or zero. Powers of two keep all others exact.
inline Rescaled rescale_e4m3(std::span<std::byte> scales, double ratio) {
  Rescaled result;
  // 256 answers, each computed once.
  std::uint8_t table[256];
  double change[256];
  for (unsigned code = 0; code < 256; ++code) {
    const auto old = static_cast<std::uint8_t>(code);
    const double wanted = static_cast<double>(formats::E4m3fn::decode(old)) * ratio;
    table[code] = formats::E4m3fn::encode(static_cast<float>(wanted));
    const double got = static_cast<double>(formats::E4m3fn::decode(table[code]));
    change[code] =
        wanted == 0 || std::isnan(wanted) ? 0 : std::abs(got - wanted) / std::abs(wanted);
  }
  for (std::byte& scale : scales) {
    const auto code = std::to_integer<std::uint8_t>(scale);
    scale = static_cast<std::byte>(table[code]);
    if (change[code] == 0) continue;
    ++result.rounded;
    result.worst = std::max(result.worst, change[code]);
  }
  return result;
}

}  // namespace fp4moe::checkpoint
