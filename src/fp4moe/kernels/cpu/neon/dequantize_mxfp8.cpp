// MXFP8 to bf16 or f32. The fields of E4M3FN, moved into those of an f16, read as the value times
// 2^-8, so the f16 conversion does the work and the factor goes into the scale.
#include <arm_neon.h>

#include "fp4moe/kernels/cpu/block_codec_driver.hpp"
#include "fp4moe/kernels/cpu/neon/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/lanes.hpp"

namespace fp4moe::kernels::cpu::neon {
namespace {

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

[[gnu::always_inline]] inline void store_eight(Eight values, std::uint8_t* to, std::uint16_t) {
  const uint16x8_t upper =
      vuzp2q_u16(vreinterpretq_u16_f32(values.low), vreinterpretq_u16_f32(values.high));
  vst1q_u8(to, vreinterpretq_u8_u16(upper));
}

[[gnu::always_inline]] inline void store_eight(Eight values, std::uint8_t* to, float) {
  vst1q_u8(to, vreinterpretq_u8_f32(values.low));
  vst1q_u8(to + 16, vreinterpretq_u8_f32(values.high));
}

struct Decoder {
  struct Codes {
    uint8x16_t a, b;
  };
  [[gnu::always_inline]] static inline Codes load(const std::uint8_t* codes) {
    return {vld1q_u8(codes), vld1q_u8(codes + 16)};
  }
  [[gnu::always_inline]] static inline bool has_nan(const Codes& codes) {
    const uint8x16_t magnitude = vmaxq_u8(vshlq_n_u8(codes.a, 1), vshlq_n_u8(codes.b, 1));
    return vmaxvq_u8(magnitude) == 0xFE;
  }
  template <class Stored>
  [[gnu::always_inline]] static inline void store(const Codes& codes, std::uint32_t scale,
                                                  std::uint8_t* to, Stored stored) {
    constexpr std::size_t kEight = 8 * sizeof(Stored);
    const float32x4_t factor = vdupq_n_f32(float_of(scale));
    store_eight(decode(vget_low_u8(codes.a), factor), to, stored);
    store_eight(decode(vget_high_u8(codes.a), factor), to + kEight, stored);
    store_eight(decode(vget_low_u8(codes.b), factor), to + 2 * kEight, stored);
    store_eight(decode(vget_high_u8(codes.b), factor), to + 3 * kEight, stored);
  }
};

}  // namespace

void dequantize_mxfp8(const DequantizeBlocks& work) noexcept { decode_mxfp8<Decoder>(work); }

}  // namespace fp4moe::kernels::cpu::neon
