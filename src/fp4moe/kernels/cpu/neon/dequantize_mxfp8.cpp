// MXFP8 to bf16 or f32. The fields of E4M3FN, moved into those of an f16, read as the value times
// 2^-8, so the f16 conversion does the work and the factor goes into the scale.
#include <arm_neon.h>

#include "fp4moe/kernels/cpu/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/lanes.hpp"
#include "fp4moe/kernels/cpu/portable/block_codec.hpp"

namespace fp4moe::kernels::cpu::neon {
namespace {

// From 3 on every result is exact in bf16 even where it is subnormal; up to 246 none overflows and
// the scale times 2^8 is a float.
constexpr std::uint8_t kFirstPlainScale = 3;
constexpr std::uint8_t kLastPlainScale = 246;

[[gnu::always_inline]] inline bool has_nan(uint8x16_t a, uint8x16_t b) {
  const uint8x16_t magnitude = vmaxq_u8(vshlq_n_u8(a, 1), vshlq_n_u8(b, 1));
  return vmaxvq_u8(magnitude) == 0xFE;
}

struct Eight {
  float32x4_t low, high;
};

[[gnu::always_inline]] inline Eight decode(uint8x8_t codes, float32x4_t scale) {
  const int16x8_t widened = vshll_n_s8(vreinterpret_s8_u8(codes), 7);
  const uint16x8_t fields = vandq_u16(vreinterpretq_u16_s16(widened), vdupq_n_u16(0xBF80));
  const float16x8_t values = vreinterpretq_f16_u16(fields);
  return {vmulq_f32(vcvt_f32_f16(vget_low_f16(values)), scale),
          vmulq_f32(vcvt_high_f32_f16(values), scale)};
}

[[gnu::always_inline]] inline void store(Eight values, std::uint8_t* to, std::uint16_t) {
  const uint16x8_t upper =
      vuzp2q_u16(vreinterpretq_u16_f32(values.low), vreinterpretq_u16_f32(values.high));
  vst1q_u8(to, vreinterpretq_u8_u16(upper));
}

[[gnu::always_inline]] inline void store(Eight values, std::uint8_t* to, float) {
  vst1q_u8(to, vreinterpretq_u8_f32(values.low));
  vst1q_u8(to + 16, vreinterpretq_u8_f32(values.high));
}

template <class Stored>
void dequantize(const DequantizeBlocks& work) {
  auto* output = static_cast<std::uint8_t*>(work.output);
  constexpr std::size_t kEight = 8 * sizeof(Stored);
  for (std::size_t i = 0; i < work.blocks; ++i, output += 4 * kEight) {
    const uint8x16_t a = vld1q_u8(work.codes + 32 * i);
    const uint8x16_t b = vld1q_u8(work.codes + 32 * i + 16);
    const std::uint8_t scale = work.scales[i];
    if (scale < kFirstPlainScale || scale > kLastPlainScale || has_nan(a, b)) {
      DequantizeBlocks one = work;
      one.codes = work.codes + 32 * i;
      one.scales = work.scales + i;
      one.blocks = 1;
      one.output = output;
      portable::dequantize_mxfp8(one);
      continue;
    }
    const float32x4_t factor = vdupq_n_f32(float_of((std::uint32_t{scale} + 8) << 23));
    store(decode(vget_low_u8(a), factor), output, Stored{});
    store(decode(vget_high_u8(a), factor), output + kEight, Stored{});
    store(decode(vget_low_u8(b), factor), output + 2 * kEight, Stored{});
    store(decode(vget_high_u8(b), factor), output + 3 * kEight, Stored{});
  }
}

}  // namespace

void dequantize_mxfp8(const DequantizeBlocks& work) noexcept {
  switch (work.element) {
    case Element::bf16:
      return dequantize<std::uint16_t>(work);
    case Element::f16:
      return portable::dequantize_mxfp8(work);
    case Element::f32:
      return dequantize<float>(work);
  }
}

}  // namespace fp4moe::kernels::cpu::neon
