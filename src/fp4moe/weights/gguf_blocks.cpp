#include "fp4moe/weights/gguf_blocks.hpp"

#include <cassert>
#include <cstring>

namespace fp4moe::weights {
namespace {

constexpr std::byte kLow{0x0F}, kHigh{0xF0};

// A group of 4 * Quarter elements: neighbours apart to halves apart, and back.
template <std::size_t Quarter>
void to_halves(const std::byte* from, std::byte* to) {
  for (std::size_t i = 0; i < Quarter; ++i) {
    const std::byte a = from[i], b = from[Quarter + i];
    to[2 * i] = (a & kLow) | (b << 4);
    to[2 * i + 1] = (a >> 4) | (b & kHigh);
  }
}

template <std::size_t Quarter>
void to_neighbours(const std::byte* from, std::byte* to) {
  for (std::size_t i = 0; i < Quarter; ++i) {
    const std::byte a = from[2 * i], b = from[2 * i + 1];
    to[i] = (a & kLow) | (b << 4);
    to[Quarter + i] = (a >> 4) | (b & kHigh);
  }
}

}  // namespace

void pack_gguf_row(WeightFormat format, std::span<const std::byte> codes,
                   std::span<const std::byte> scales, std::span<std::byte> blocks) {
  const std::byte* code = codes.data();
  std::byte* out = blocks.data();
  if (format == WeightFormat::mxfp4) {
    assert(codes.size() == scales.size() * 16 && blocks.size() == scales.size() * 17);
    for (const std::byte scale : scales) {
      out[0] = scale;
      to_halves<8>(code, out + 1);
      code += 16, out += 17;
    }
    return;
  }
  assert(codes.size() == scales.size() * 8 && blocks.size() == scales.size() * 9);
  for (std::size_t s = 0; s + 4 <= scales.size(); s += 4) {
    std::memcpy(out, scales.data() + s, 4);
    for (std::size_t group = 0; group < 4; ++group)
      to_halves<4>(code + 8 * group, out + 4 + 8 * group);
    code += 32, out += 36;
  }
}

void unpack_gguf_row(WeightFormat format, std::span<const std::byte> blocks,
                     std::span<std::byte> codes, std::span<std::byte> scales) {
  const std::byte* from = blocks.data();
  std::byte* code = codes.data();
  if (format == WeightFormat::mxfp4) {
    assert(codes.size() == scales.size() * 16 && blocks.size() == scales.size() * 17);
    for (std::byte& scale : scales) {
      scale = from[0];
      to_neighbours<8>(from + 1, code);
      code += 16, from += 17;
    }
    return;
  }
  assert(codes.size() == scales.size() * 8 && blocks.size() == scales.size() * 9);
  for (std::size_t s = 0; s + 4 <= scales.size(); s += 4) {
    std::memcpy(scales.data() + s, from, 4);
    for (std::size_t group = 0; group < 4; ++group)
      to_neighbours<4>(from + 4 + 8 * group, code + 8 * group);
    code += 32, from += 36;
  }
}

}  // namespace fp4moe::weights
