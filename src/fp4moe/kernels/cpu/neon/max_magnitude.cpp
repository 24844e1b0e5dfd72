#include <arm_neon.h>

#include "fp4moe/kernels/cpu/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/lanes.hpp"
#include "fp4moe/kernels/cpu/portable/block_codec.hpp"

namespace fp4moe::kernels::cpu::neon {
namespace {

// Magnitudes order as their bits do in every format here, so f16 is compared before it is widened.
std::uint32_t largest16(const std::uint8_t* from, std::size_t groups) {
  const uint16x8_t mask = vdupq_n_u16(0x7FFF);
  uint16x8_t largest[4] = {vdupq_n_u16(0), vdupq_n_u16(0), vdupq_n_u16(0), vdupq_n_u16(0)};
  for (std::size_t i = 0; i < groups; ++i, from += 64)
    for (std::size_t j = 0; j < 4; ++j)
      largest[j] =
          vmaxq_u16(largest[j], vandq_u16(vreinterpretq_u16_u8(vld1q_u8(from + 16 * j)), mask));
  return vmaxvq_u16(
      vmaxq_u16(vmaxq_u16(largest[0], largest[1]), vmaxq_u16(largest[2], largest[3])));
}

std::uint32_t largest32(const std::uint8_t* from, std::size_t groups) {
  const uint32x4_t mask = vdupq_n_u32(0x7FFFFFFF);
  uint32x4_t largest[4] = {vdupq_n_u32(0), vdupq_n_u32(0), vdupq_n_u32(0), vdupq_n_u32(0)};
  for (std::size_t i = 0; i < groups; ++i, from += 64)
    for (std::size_t j = 0; j < 4; ++j)
      largest[j] =
          vmaxq_u32(largest[j], vandq_u32(vreinterpretq_u32_u8(vld1q_u8(from + 16 * j)), mask));
  return vmaxvq_u32(
      vmaxq_u32(vmaxq_u32(largest[0], largest[1]), vmaxq_u32(largest[2], largest[3])));
}

// The largest of a group's value and the rest's, with NaN in one form.
float larger(std::uint32_t bits, float rest) {
  const std::uint32_t rest_bits = bits_of(rest);
  const std::uint32_t largest = bits > rest_bits ? bits : rest_bits;
  return float_of(largest > 0x7F800000 ? 0x7FC00000 : largest);
}

}  // namespace

float max_magnitude(const MaxMagnitude& work) noexcept {
  const std::size_t per_group = work.element == Element::f32 ? 16 : 32;
  const std::size_t groups = work.count / per_group;
  const auto* input = static_cast<const std::uint8_t*>(work.input);
  MaxMagnitude rest = work;
  rest.input = input + 64 * groups;
  rest.count = work.count - groups * per_group;
  const float of_rest = portable::max_magnitude(rest);
  if (work.element == Element::f32) return larger(largest32(input, groups), of_rest);
  const std::uint32_t bits = largest16(input, groups);
  if (work.element == Element::bf16) return larger(bits << 16, of_rest);
  const auto code = static_cast<std::uint16_t>(bits);
  const float value =
      portable::max_magnitude({.input = &code, .element = Element::f16, .count = 1});
  return larger(bits_of(value), of_rest);
}

}  // namespace fp4moe::kernels::cpu::neon
