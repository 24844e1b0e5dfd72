// MXFP4 and NVFP4 to bf16, f16 or f32. For one scale byte there are only sixteen results, so each
// scale's results are computed once per call, by the portable reference, and kept as tables of bytes
// that `tbl` looks codes up in: exact for every scale by construction.
#include <arm_neon.h>

#include "fp4moe/kernels/cpu/block_codec_driver.hpp"
#include "fp4moe/kernels/cpu/neon/block_codec.hpp"

namespace fp4moe::kernels::cpu::neon {
namespace {

// Sixteen results of two or four bytes.
[[gnu::always_inline]] inline void look_up(const std::uint8_t* planes, uint8x16_t codes,
                                           std::uint8_t* to, uint8x16x2_t) {
  const uint8x16_t low = vqtbl1q_u8(vld1q_u8(planes), codes);
  const uint8x16_t high = vqtbl1q_u8(vld1q_u8(planes + 16), codes);
  vst1q_u8(to, vzip1q_u8(low, high));
  vst1q_u8(to + 16, vzip2q_u8(low, high));
}

[[gnu::always_inline]] inline void look_up(const std::uint8_t* planes, uint8x16_t codes,
                                           std::uint8_t* to, uint8x16x4_t) {
  uint8x16_t byte[4];
  for (std::size_t b = 0; b < 4; ++b) byte[b] = vqtbl1q_u8(vld1q_u8(planes + 16 * b), codes);
  const uint16x8_t low0 = vreinterpretq_u16_u8(vzip1q_u8(byte[0], byte[1]));
  const uint16x8_t low1 = vreinterpretq_u16_u8(vzip2q_u8(byte[0], byte[1]));
  const uint16x8_t high0 = vreinterpretq_u16_u8(vzip1q_u8(byte[2], byte[3]));
  const uint16x8_t high1 = vreinterpretq_u16_u8(vzip2q_u8(byte[2], byte[3]));
  vst1q_u8(to, vreinterpretq_u8_u16(vzip1q_u16(low0, high0)));
  vst1q_u8(to + 16, vreinterpretq_u8_u16(vzip2q_u16(low0, high0)));
  vst1q_u8(to + 32, vreinterpretq_u8_u16(vzip1q_u16(low1, high1)));
  vst1q_u8(to + 48, vreinterpretq_u8_u16(vzip2q_u16(low1, high1)));
}

template <std::size_t kBytes>
struct PlanesOf {
  using Type = uint8x16x2_t;
};
template <>
struct PlanesOf<4> {
  using Type = uint8x16x4_t;
};

struct Expander {
  static constexpr auto kMakeTable = portable::e2m1_planes;

  template <std::size_t kBytes>
  [[gnu::always_inline]] static inline void expand(const std::uint8_t* first,
                                                   const std::uint8_t* second,
                                                   const std::uint8_t* codes, std::uint8_t* to) {
    const uint8x16_t packed = vld1q_u8(codes);
    using Planes = typename PlanesOf<kBytes>::Type;
    const uint8x16_t even = vandq_u8(packed, vdupq_n_u8(15));
    const uint8x16_t odd = vshrq_n_u8(packed, 4);
    look_up(first, vzip1q_u8(even, odd), to, Planes{});
    look_up(second, vzip2q_u8(even, odd), to + 16 * kBytes, Planes{});
  }
};

}  // namespace

void dequantize_mxfp4(const DequantizeBlocks& work) noexcept {
  return expand_mxfp4<Expander>(work);
}

void dequantize_nvfp4(const DequantizeBlocks& work) noexcept {
  return expand_nvfp4<Expander>(work);
}

}  // namespace fp4moe::kernels::cpu::neon
