// Searches through scale bytes at memory speed, eight at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "fp4moe/weights/moe_shape.hpp"

namespace fp4moe::weights {

inline constexpr std::size_t kNoScale = ~std::size_t{0};

// The first byte for which ((byte | set) & mask) == 0xFF & mask, kNoScale if there is none.
inline std::size_t find_masked(std::span<const std::byte> bytes, std::uint8_t set,
                               std::uint8_t mask) {
  constexpr std::uint64_t kOnes = 0x0101010101010101u, kHighs = 0x8080808080808080u;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    // A byte we look for becomes zero; then the classic test for a zero byte.
    const std::uint64_t inverse = ~(word | set * kOnes) & (mask * kOnes);
    if (((inverse - kOnes) & ~inverse & kHighs) != 0) break;
  }
  for (; i < bytes.size(); ++i) {
    const auto byte = std::to_integer<std::uint8_t>(bytes[i]);
    if ((static_cast<std::uint8_t>(~(byte | set)) & mask) == 0) return i;
  }
  return kNoScale;
}

// NaN: 255 in E8M0 (MXFP4); 0x7F and 0xFF in E4M3 (NVFP4).
inline std::size_t find_nan_scale(WeightFormat format, std::span<const std::byte> scales) {
  return find_masked(scales, format == WeightFormat::nvfp4 ? 0x80 : 0, 0xFF);
}

// A set sign bit, which E4M3 scales have and no scale should use.
inline std::size_t find_negative_scale(std::span<const std::byte> e4m3) {
  return find_masked(e4m3, 0, 0x80);
}

}  // namespace fp4moe::weights
