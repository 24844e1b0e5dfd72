// MXFP8 (rule ceil448) from bf16, f16 or f32, 32 values at a time.
#include <arm_neon.h>

#include "fp4moe/kernels/cpu/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/lanes.hpp"
#include "fp4moe/kernels/cpu/portable/block_codec.hpp"

namespace fp4moe::kernels::cpu::neon {
namespace {

constexpr std::uint32_t kInfinityBits = 0x7F800000;

// Sixteen codes. The scale leaves no magnitude above 464, so none saturates.
uint8x16_t codes_of(const uint32x4_t values[4], float32x4_t multiplier) {
  uint32x4_t codes[4];
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t magnitude = vandq_u32(values[i], vdupq_n_u32(0x7FFFFFFF));
    codes[i] = round_e4m3(vmulq_f32(vreinterpretq_f32_u32(magnitude), multiplier)).code;
  }
  const uint16x8_t low =
      vuzp1q_u16(vreinterpretq_u16_u32(codes[0]), vreinterpretq_u16_u32(codes[1]));
  const uint16x8_t high =
      vuzp1q_u16(vreinterpretq_u16_u32(codes[2]), vreinterpretq_u16_u32(codes[3]));
  const uint8x16_t magnitudes = vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
  const uint16x8_t sign_low =
      vuzp2q_u16(vreinterpretq_u16_u32(values[0]), vreinterpretq_u16_u32(values[1]));
  const uint16x8_t sign_high =
      vuzp2q_u16(vreinterpretq_u16_u32(values[2]), vreinterpretq_u16_u32(values[3]));
  const uint8x16_t signs =
      vuzp2q_u8(vreinterpretq_u8_u16(sign_low), vreinterpretq_u8_u16(sign_high));
  return vbslq_u8(vdupq_n_u8(0x80), signs, magnitudes);
}

template <class Lanes>
void quantize(const QuantizeBlocks& work) {
  constexpr std::size_t kStride = 32 * Lanes::kBytes;
  const auto* input = static_cast<const std::uint8_t*>(work.input);
  for (std::size_t i = 0; i < work.blocks; ++i, input += kStride) {
    uint32x4_t values[8];
    Lanes::load(input, values);
    Lanes::load(input + kStride / 2, values + 4);
    uint32x4_t amax = vdupq_n_u32(0);
    for (const uint32x4_t part : values)
      amax = vmaxq_u32(amax, vandq_u32(part, vdupq_n_u32(0x7FFFFFFF)));
    const std::uint32_t amax_bits = vmaxvq_u32(amax);
    if (amax_bits >= kInfinityBits) {
      QuantizeBlocks one = work;
      one.input = input;
      one.blocks = 1;
      one.codes = work.codes + 32 * i;
      one.scales = work.scales + i;
      portable::quantize_mxfp8(one);
      continue;
    }
    const std::uint32_t scale = (bits_of(float_of(amax_bits) / 448.0f) + 0x7FFFFF) >> 23;
    const float32x4_t multiplier = vdupq_n_f32(inverse_scale(scale));
    vst1q_u8(work.codes + 32 * i, codes_of(values, multiplier));
    vst1q_u8(work.codes + 32 * i + 16, codes_of(values + 4, multiplier));
    work.scales[i] = static_cast<std::uint8_t>(scale);
  }
}

}  // namespace

void quantize_mxfp8(const QuantizeBlocks& work) noexcept {
  if (!is_ceil448(work.mxfp8_rule)) return portable::quantize_mxfp8(work);
  switch (work.element) {
    case Element::bf16:
      return quantize<Bf16Lanes>(work);
    case Element::f16:
      return quantize<F16Lanes>(work);
    case Element::f32:
      return quantize<F32Lanes>(work);
  }
}

}  // namespace fp4moe::kernels::cpu::neon
