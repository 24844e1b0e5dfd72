#include "fp4moe/checkpoint/write/convert_vector.hpp"

#include <cstring>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"

namespace fp4moe::checkpoint {
namespace {

using tensor::DType;

float widened(DType half, std::uint16_t code) {
  return half == DType::bf16 ? formats::Bf16::decode(code) : formats::F16::decode(code);
}
std::uint16_t narrowed(DType half, float value) {
  return half == DType::bf16 ? formats::Bf16::encode(value) : formats::F16::encode(value);
}

}  // namespace

bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

std::uint64_t converted_bytes(DType from, DType to, std::uint64_t bytes) {
  if (from == to) return bytes;
  return is_half(from) ? bytes * 2 : bytes / 2;
}

void convert_vector(DType from, DType to, std::span<const std::byte> in,
                    std::vector<std::byte>& out) {
  out.resize(converted_bytes(from, to, in.size()));
  const bool widens = is_half(from);
  const std::size_t count = in.size() / (widens ? 2 : 4);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t code = 0;
    float value = 0;
    if (widens) {
      std::memcpy(&code, &in[2 * i], 2);
      value = widened(from, code);
      std::memcpy(&out[4 * i], &value, 4);
    } else {
      std::memcpy(&value, &in[4 * i], 4);
      code = narrowed(to, value);
      std::memcpy(&out[2 * i], &code, 2);
    }
  }
}

bool fits_half(DType half, std::span<const std::byte> in) {
  for (std::size_t i = 0; i + 4 <= in.size(); i += 4) {
    float value = 0;
    std::memcpy(&value, &in[i], 4);
    const float back = widened(half, narrowed(half, value));
    if (std::memcmp(&back, &value, 4) != 0) return false;
  }
  return true;
}

}  // namespace fp4moe::checkpoint
