#include "fp4moe/moe/quantized_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/formats/mxfp8.hpp"
#include "fp4moe/formats/nvfp4.hpp"

namespace fp4moe::moe {
namespace {

using formats::BlockShape;
using formats::E4m3fn;

// A block's codes and the bytes of its scale; a key without blocks has one per row.
struct Form {
  std::size_t block = 0;  // 0: the whole row
  std::size_t code_bits = 8;
  std::size_t scale_bytes = 0;
};

constexpr Form form_of(ActivationKey key) {
  switch (key) {
    case ActivationKey::none:
      return {.code_bits = 16};
    case ActivationKey::mxfp8:
      return {.block = 32, .scale_bytes = 1};
    case ActivationKey::mxfp4:
      return {.block = 32, .code_bits = 4, .scale_bytes = 1};
    case ActivationKey::nvfp4:
    case ActivationKey::nvfp4_token:  // and a scale of the row
      return {.block = 16, .code_bits = 4, .scale_bytes = 1};
    case ActivationKey::fp8_static_tensor:
      return {};
    case ActivationKey::fp8_block128:
      return {.block = 128, .scale_bytes = 4};
    case ActivationKey::fp8_token:
      return {.scale_bytes = 4};
  }
  return {};
}

struct RowParts {
  std::size_t block = 0, blocks = 0;
  std::size_t code_bytes = 0;   // of a block
  std::size_t scale_bytes = 0;  // of a block

  RowParts(ActivationKey key, std::size_t columns) {
    const Form form = form_of(key);
    block = form.block == 0 ? columns : form.block;
    blocks = block == 0 ? 0 : (columns + block - 1) / block;
    code_bytes = block * form.code_bits / 8;
    scale_bytes = form.scale_bytes;
  }
  std::size_t codes_at(std::size_t index) const { return index * code_bytes; }
  std::size_t scale_at(std::size_t index) const {
    return blocks * code_bytes + index * scale_bytes;
  }
  std::size_t bytes() const { return blocks * (code_bytes + scale_bytes); }
};

// A block of E4M3 codes with a float32 scale, amax / 448; an all-zero block has scale 1.
void encode_fp8(std::span<const float> values, float scale, std::span<std::uint8_t> codes) {
  for (std::size_t i = 0; i < values.size(); ++i) codes[i] = E4m3fn::encode(values[i] / scale);
  std::fill(codes.begin() + static_cast<std::ptrdiff_t>(values.size()), codes.end(),
            std::uint8_t{0});
}

// NVFP4 with a second scale for each row: its largest value becomes the largest product of a code
// and a scale.
float token_scale(std::span<const float> values) {
  constexpr float kLargest = E4m3fn::kMax * 6.0f;
  const float amax = formats::block_amax(values);
  return amax > 0.0f ? amax / kLargest : 1.0f;
}
RowQuantizer with_scale(float scale) {
  return {.key = ActivationKey::nvfp4, .global_scale = 1.0f / scale};
}
void multiply(std::span<float> values, float factor) {
  for (float& value : values) value *= factor;
}

float dynamic_fp8_scale(std::span<const float> values) {
  const float amax = formats::block_amax(values);
  return amax > 0.0f ? amax / E4m3fn::kMax : 1.0f;
}

void encode_block(const RowQuantizer& how, std::span<const float> values,
                  std::span<std::uint8_t> codes, std::byte* scale) {
  std::uint8_t byte = 0;
  switch (how.key) {
    case ActivationKey::none:
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint16_t code = formats::Bf16::encode(values[i]);
        std::memcpy(codes.data() + 2 * i, &code, 2);
      }
      return;
    case ActivationKey::mxfp8:
      formats::quantize_mxfp8(formats::Mxfp8Rule::ceil448, values, byte, codes);
      break;
    case ActivationKey::mxfp4:
      formats::quantize_mxfp4(formats::Mxfp4Rule::even_rne, values, byte, codes);
      break;
    case ActivationKey::nvfp4:
    case ActivationKey::nvfp4_token:
      formats::quantize_nvfp4(how.global_scale, values, byte, codes);
      break;
    case ActivationKey::fp8_static_tensor:
      return encode_fp8(values, how.global_scale, codes);
    case ActivationKey::fp8_block128:
    case ActivationKey::fp8_token: {
      const float dynamic = dynamic_fp8_scale(values);
      encode_fp8(values, dynamic, codes);
      std::memcpy(scale, &dynamic, sizeof dynamic);
      return;
    }
  }
  *scale = static_cast<std::byte>(byte);
}

void decode_fp8(std::span<const std::uint8_t> codes, float scale, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = E4m3fn::decode(codes[i]) * scale;
}

void decode_block(const RowQuantizer& how, std::span<const std::uint8_t> codes,
                  const std::byte* scale, std::span<float> values) {
  switch (how.key) {
    case ActivationKey::none:
      for (std::size_t i = 0; i < values.size(); ++i) {
        std::uint16_t code = 0;
        std::memcpy(&code, codes.data() + 2 * i, 2);
        values[i] = formats::Bf16::decode(code);
      }
      return;
    case ActivationKey::mxfp8:
      return formats::dequantize_mxfp8(static_cast<std::uint8_t>(*scale), codes, values);
    case ActivationKey::mxfp4:
      return formats::dequantize_mxfp4(static_cast<std::uint8_t>(*scale), codes, values);
    case ActivationKey::nvfp4:
    case ActivationKey::nvfp4_token:
      return formats::dequantize_nvfp4(static_cast<std::uint8_t>(*scale), 1.0f, codes, values);
    case ActivationKey::fp8_static_tensor:
      return decode_fp8(codes, 1.0f, values);
    case ActivationKey::fp8_block128:
    case ActivationKey::fp8_token: {
      float dynamic = 1.0f;
      std::memcpy(&dynamic, scale, sizeof dynamic);
      return decode_fp8(codes, dynamic, values);
    }
  }
}

}  // namespace

std::size_t encoded_bytes(ActivationKey key, std::size_t columns) {
  const bool has_scale = key == ActivationKey::nvfp4_token && columns > 0;
  const std::size_t of_row = has_scale ? sizeof(float) : 0;
  return RowParts(key, columns).bytes() + of_row;
}

void encode_row(const RowQuantizer& how, std::span<const float> values, std::span<std::byte> to) {
  if (values.empty()) return;
  const RowParts parts(how.key, values.size());
  if (how.key == ActivationKey::nvfp4_token) {
    const float scale = token_scale(values);
    encode_row(with_scale(scale), values, to.first(parts.bytes()));
    std::memcpy(to.data() + parts.bytes(), &scale, sizeof scale);
    return;
  }
  auto* codes = reinterpret_cast<std::uint8_t*>(to.data());
  for (std::size_t b = 0; b < parts.blocks; ++b) {
    const std::size_t begin = b * parts.block;
    encode_block(how, values.subspan(begin, std::min(parts.block, values.size() - begin)),
                 {codes + parts.codes_at(b), parts.code_bytes}, to.data() + parts.scale_at(b));
  }
}

void decode_row(const RowQuantizer& how, std::span<const std::byte> from, std::span<float> values) {
  if (values.empty()) return;
  const RowParts parts(how.key, values.size());
  if (how.key == ActivationKey::nvfp4_token) {
    float scale = 1.0f;
    std::memcpy(&scale, from.data() + parts.bytes(), sizeof scale);
    decode_row(with_scale(scale), from.first(parts.bytes()), values);
    return multiply(values, scale);
  }
  const auto* codes = reinterpret_cast<const std::uint8_t*>(from.data());
  for (std::size_t b = 0; b < parts.blocks; ++b) {
    const std::size_t begin = b * parts.block;
    decode_block(how, {codes + parts.codes_at(b), parts.code_bytes},
                 from.data() + parts.scale_at(b),
                 values.subspan(begin, std::min(parts.block, values.size() - begin)));
  }
}

float shared_factor(const RowQuantizer& how) {
  if (how.key == ActivationKey::nvfp4) return 1.0f / how.global_scale;
  return how.key == ActivationKey::fp8_static_tensor ? how.global_scale : 1.0f;
}

void quantize_dequantize(const RowQuantizer& how, std::span<float> values) {
  if (how.key == ActivationKey::nvfp4_token) {
    const float scale = token_scale(values);
    quantize_dequantize(with_scale(scale), values);
    return multiply(values, scale);
  }
  // Blocks are independent, so a row needs a buffer of one block only, unless a block is the row.
  const RowParts parts(how.key, values.size());
  std::array<std::uint8_t, 256> small;
  std::vector<std::uint8_t> large(parts.code_bytes > small.size() ? parts.code_bytes : 0);
  const std::span<std::uint8_t> codes =
      large.empty() ? std::span(small).first(parts.code_bytes) : std::span(large);
  std::array<std::byte, 4> scale{};
  for (std::size_t begin = 0; begin < values.size(); begin += parts.block) {
    const std::span<float> block =
        values.subspan(begin, std::min(parts.block, values.size() - begin));
    encode_block(how, block, codes, scale.data());
    decode_block(how, codes, scale.data(), block);
  }
}

}  // namespace fp4moe::moe
