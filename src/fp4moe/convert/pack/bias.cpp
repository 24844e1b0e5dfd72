#include "fp4moe/convert/pack/bias.hpp"

#include <bit>
#include <cstring>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"

namespace fp4moe::convert {
namespace {

using tensor::DType;

template <class T>
T load(const std::byte* from) {
  T value{};
  std::memcpy(&value, from, sizeof value);
  return value;
}

float decode(const std::byte* from, DType dtype) {
  if (dtype == DType::bf16) return formats::Bf16::decode(load<std::uint16_t>(from));
  if (dtype == DType::f16) return formats::F16::decode(load<std::uint16_t>(from));
  return load<float>(from);
}

}  // namespace

DType stored_bias(layout::BiasType type, DType loaded) {
  if (type == layout::BiasType::bf16) return DType::bf16;
  return type == layout::BiasType::f32 ? DType::f32 : loaded;
}

float get_float(std::span<const std::byte> bytes, DType dtype, std::uint64_t index) {
  return decode(bytes.data() + index * tensor::row(dtype).block_bytes, dtype);
}

bool put_float(float value, const BiasStore& to, std::uint64_t index) {
  std::byte* target = to.bytes.data() + index * tensor::row(to.dtype).block_bytes;
  if (to.dtype == DType::f32) {
    std::memcpy(target, &value, sizeof value);
    return true;
  }
  const std::uint16_t code =
      to.dtype == DType::bf16 ? formats::Bf16::encode(value) : formats::F16::encode(value);
  std::memcpy(target, &code, sizeof code);
  return std::bit_cast<std::uint32_t>(decode(target, to.dtype)) ==
         std::bit_cast<std::uint32_t>(value);
}

bool put_bias(const checkpoint::BiasView& bias, std::uint64_t from, const BiasStore& to,
              std::uint64_t index) {
  if (bias.size == 0) return true;
  return put_float(decode(bias.data + from * bias.stride, bias.dtype), to, index);
}

}  // namespace fp4moe::convert
