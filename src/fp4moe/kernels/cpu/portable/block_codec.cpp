// The reference of every vector codec: block after block through the functions of formats/.
#include "fp4moe/kernels/cpu/block_codec.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <span>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"
#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/formats/mxfp8.hpp"
#include "fp4moe/formats/nibbles.hpp"
#include "fp4moe/formats/nvfp4.hpp"
#include "fp4moe/kernels/cpu/portable/block_codec.hpp"

namespace fp4moe::kernels::cpu::portable {
namespace {

using formats::Bf16;
using formats::F16;

template <class T>
T load(const void* from, std::size_t index) {
  T value{};
  std::memcpy(&value, static_cast<const std::uint8_t*>(from) + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(void* to, std::size_t index, T value) {
  std::memcpy(static_cast<std::uint8_t*>(to) + index * sizeof(T), &value, sizeof(T));
}

float load_value(Element element, const void* from, std::size_t index) {
  switch (element) {
    case Element::bf16:
      return Bf16::decode(load<std::uint16_t>(from, index));
    case Element::f16:
      return F16::decode(load<std::uint16_t>(from, index));
    case Element::f32:
      break;
  }
  return load<float>(from, index);
}

enum class Overflow : std::uint8_t { largest_finite, infinity };

void store_value(Element element, Overflow overflow, void* to, std::size_t index, float value) {
  const bool finite = overflow == Overflow::largest_finite;
  switch (element) {
    case Element::bf16:
      return store(to, index, finite ? Bf16::encode_finite(value) : Bf16::encode(value));
    case Element::f16:
      return store(to, index, finite ? F16::encode_finite(value) : F16::encode(value));
    case Element::f32:
      return store(to, index, value);
  }
}

// A format's block size, and the bytes of its codes.
template <std::size_t kElements, std::size_t kBytes>
struct Blocks {
  template <class Quantize>
  static void quantize(const QuantizeBlocks& work, Quantize quantize_one) {
    std::array<float, kElements> values{};
    for (std::size_t i = 0; i < work.blocks; ++i) {
      for (std::size_t j = 0; j < kElements; ++j)
        values[j] = load_value(work.element, work.input, i * kElements + j);
      quantize_one(std::span<const float>(values), work.scales[i],
                   std::span(work.codes + i * kBytes, kBytes));
    }
  }

  template <class Dequantize>
  static void dequantize(const DequantizeBlocks& work, Overflow overflow,
                         Dequantize dequantize_one) {
    std::array<float, kElements> values{};
    for (std::size_t i = 0; i < work.blocks; ++i) {
      dequantize_one(work.scales[i], std::span(work.codes + i * kBytes, kBytes),
                     std::span<float>(values));
      for (std::size_t j = 0; j < kElements; ++j)
        store_value(work.element, overflow, work.output, i * kElements + j, values[j]);
    }
  }
};

using Mxfp4Blocks = Blocks<formats::kMxfp4Block, formats::kMxfp4Bytes>;
using Nvfp4Blocks = Blocks<formats::kNvfp4Block, formats::kNvfp4Bytes>;
using Mxfp8Blocks = Blocks<formats::kMxfp8Block, formats::kMxfp8Block>;

// Element `index` of a GGUF block of `2 * half` elements: byte j holds elements j and j + half.
constexpr std::size_t gguf_nibble(std::size_t index, std::size_t half) {
  return index < half ? 2 * index : 2 * (index - half) + 1;
}

void reorder(std::span<const std::uint8_t> canonical, std::span<std::uint8_t> gguf) {
  for (std::size_t i = 0; i < 2 * gguf.size(); ++i)
    formats::set_nibble(gguf, gguf_nibble(i, gguf.size()), formats::nibble(canonical, i));
}

void restore(std::span<const std::uint8_t> gguf, std::span<std::uint8_t> canonical) {
  for (std::size_t i = 0; i < 2 * gguf.size(); ++i)
    formats::set_nibble(canonical, i, formats::nibble(gguf, gguf_nibble(i, gguf.size())));
}

}  // namespace

void quantize_mxfp4(const QuantizeBlocks& work) noexcept {
  Mxfp4Blocks::quantize(work, [&](auto values, std::uint8_t& scale, auto codes) {
    formats::quantize_mxfp4(work.mxfp4_rule, values, scale, codes);
  });
}

void quantize_nvfp4(const QuantizeBlocks& work) noexcept {
  const formats::Nvfp4Quantizer how{.rule = work.nvfp4_rule, .global_scale = work.global_scale};
  Nvfp4Blocks::quantize(work, [&](auto values, std::uint8_t& scale, auto codes) {
    formats::quantize_nvfp4(how, values, scale, codes);
  });
}

void quantize_mxfp8(const QuantizeBlocks& work) noexcept {
  Mxfp8Blocks::quantize(work, [&](auto values, std::uint8_t& scale, auto codes) {
    formats::quantize_mxfp8(work.mxfp8_rule, values, scale, codes);
  });
}

void dequantize_mxfp4(const DequantizeBlocks& work) noexcept {
  Mxfp4Blocks::dequantize(work, Overflow::largest_finite,
                          [](std::uint8_t scale, auto codes, auto values) {
                            formats::dequantize_mxfp4(scale, codes, values);
                          });
}

void dequantize_nvfp4(const DequantizeBlocks& work) noexcept {
  const bool divide = work.global_kind == GlobalScaleUse::divisor;
  Nvfp4Blocks::dequantize(
      work, Overflow::infinity, [&](std::uint8_t scale, auto codes, auto values) {
        if (divide)
          formats::dequantize_nvfp4(scale, work.global_scale, codes, values);
        else
          formats::dequantize_nvfp4_by_multiplier(scale, work.global_scale, codes, values);
      });
}

void dequantize_mxfp8(const DequantizeBlocks& work) noexcept {
  Mxfp8Blocks::dequantize(work, Overflow::largest_finite,
                          [](std::uint8_t scale, auto codes, auto values) {
                            formats::dequantize_mxfp8(scale, codes, values);
                          });
}

float max_magnitude(const MaxMagnitude& work) noexcept {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < work.count; ++i) {
    const std::uint32_t bits = formats::magnitude_bits(load_value(work.element, work.input, i));
    if (bits > largest) largest = bits;
  }
  return formats::float_from_bits(largest > formats::kFloatInfinityBits ? formats::kFloatNanBits
                                                                        : largest);
}

void pack_gguf_mxfp4(const PackGguf& work) noexcept {
  for (std::size_t i = 0; i < work.blocks; ++i) {
    std::uint8_t* block = work.gguf + i * 17;
    block[0] = work.scales[i];
    reorder({work.codes + i * 16, 16}, {block + 1, 16});
  }
}

void pack_gguf_nvfp4(const PackGguf& work) noexcept {
  for (std::size_t i = 0; i < work.blocks; ++i) {
    std::uint8_t* block = work.gguf + i / 4 * 36;
    block[i % 4] = work.scales[i] & 0x7F;
    reorder({work.codes + i * 8, 8}, {block + 4 + i % 4 * 8, 8});
  }
}

void unpack_gguf_mxfp4(const UnpackGguf& work) noexcept {
  for (std::size_t i = 0; i < work.blocks; ++i) {
    const std::uint8_t* block = work.gguf + i * 17;
    work.scales[i] = block[0];
    restore({block + 1, 16}, {work.codes + i * 16, 16});
  }
}

void unpack_gguf_nvfp4(const UnpackGguf& work) noexcept {
  for (std::size_t i = 0; i < work.blocks; ++i) {
    const std::uint8_t* block = work.gguf + i / 4 * 36;
    work.scales[i] = block[i % 4];
    restore({block + 4 + i % 4 * 8, 8}, {work.codes + i * 8, 8});
  }
}

void e2m1_results(const DequantizeBlocks& work, Dequantize reference, std::uint8_t scale,
                  std::uint8_t* results) noexcept {
  // Sixteen bytes of codes make one MXFP4 block; NVFP4 reads the first half.
  constexpr std::uint8_t kEveryCode[16] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE};
  std::array<std::uint8_t, 32 * sizeof(float)> block{};
  DequantizeBlocks one = work;
  one.codes = kEveryCode;
  one.scales = &scale;
  one.blocks = 1;
  one.output = block.data();
  reference(one);
  std::memcpy(results, block.data(), std::size_t{16} * (work.element == Element::f32 ? 4 : 2));
}

void e2m1_planes(const DequantizeBlocks& work, Dequantize reference, std::uint8_t scale,
                 std::uint8_t* planes) noexcept {
  std::array<std::uint8_t, 16 * sizeof(float)> results{};
  e2m1_results(work, reference, scale, results.data());
  const std::size_t bytes = work.element == Element::f32 ? 4 : 2;
  for (std::size_t code = 0; code < 16; ++code)
    for (std::size_t b = 0; b < bytes; ++b) planes[16 * b + code] = results[code * bytes + b];
}

}  // namespace fp4moe::kernels::cpu::portable
