// Two 4-bit codes in a byte: the even index is the low nibble.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace fp4moe::formats {

constexpr std::uint8_t nibble(std::span<const std::uint8_t> packed, std::size_t index) {
  return static_cast<std::uint8_t>((packed[index / 2] >> (index % 2 * 4)) & 15);
}

constexpr void set_nibble(std::span<std::uint8_t> packed, std::size_t index, std::uint8_t code) {
  const unsigned shift = index % 2 * 4;
  std::uint8_t& byte = packed[index / 2];
  byte = static_cast<std::uint8_t>((byte & ~(15u << shift)) | ((code & 15u) << shift));
}

}  // namespace fp4moe::formats
