// MXFP8 (rule ceil448) from bf16, f16 or f32.
//
// S is a power of two, so nothing is multiplied: x is rounded where it stands. Adding 2^20 times
// its own power of two (at least that of S * 2^-6, where the subnormals of E4M3FN begin) leaves the
// mantissa bits E4M3FN keeps at the bottom of the sum. Where the exponents are too far apart for
// that, and for values that are not finite, the portable reference does the block again.
#include <arm_neon.h>

#include "fp4moe/kernels/cpu/block_codec_driver.hpp"
#include "fp4moe/kernels/cpu/neon/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/lanes.hpp"

namespace fp4moe::kernels::cpu::neon {
namespace {

// The floor of exponents, scale - 6, is not negative (a zero field still means steps of the right
// size, and with scale code 0 nothing reaches half a step); and the sum stays finite.
constexpr std::uint32_t kFirstPlainScale = 6;
constexpr std::uint32_t kLastPlainScale = 220;
constexpr std::uint16_t kUpper20 = 20 << 7;  // 2^20 as a step of the exponent, in an upper half

struct FourScales {
  uint32x4_t codes;
  uint16x4_t floors;  // scale - 6 in the exponent field of an upper half
  uint32x4_t unusual;
};

[[gnu::always_inline]] inline FourScales scales_of(uint32x4_t amax) {
  const float32x4_t quotient = vdivq_f32(vreinterpretq_f32_u32(amax), vdupq_n_f32(448.0f));
  const uint32x4_t codes =
      vshrq_n_u32(vaddq_u32(vreinterpretq_u32_f32(quotient), vdupq_n_u32(0x7FFFFF)), 23);
  const uint32x4_t exponents = vqsubq_u32(codes, vdupq_n_u32(6));
  const uint32x4_t is_odd = vcgtq_u32(vsubq_u32(codes, vdupq_n_u32(kFirstPlainScale)),
                                      vdupq_n_u32(kLastPlainScale - kFirstPlainScale));
  return {codes, vmovn_u32(vshlq_n_u32(exponents, 7)), vbicq_u32(is_odd, vceqzq_u32(codes))};
}

// Eight magnitudes: steps above their power of two plus eight times its exponent.
[[gnu::always_inline]] inline uint16x8_t round_eight(const Bf16Lanes&, const std::uint8_t* from,
                                                     uint16x8_t floor) {
  const uint16x8_t magnitude = vandq_u16(Bf16Lanes::load_upper(from), vdupq_n_u16(0x7FFF));
  const uint16x8_t exponent = vmaxq_u16(vandq_u16(magnitude, vdupq_n_u16(0x7F80)), floor);
  const uint16x8_t anchor = vaddq_u16(exponent, vdupq_n_u16(kUpper20));
  const float32x4_t low = vaddq_f32(vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(magnitude), 16)),
                                    vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(anchor), 16)));
  const float32x4_t high = vaddq_f32(vreinterpretq_f32_u32(vshll_high_n_u16(magnitude, 16)),
                                     vreinterpretq_f32_u32(vshll_high_n_u16(anchor, 16)));
  const uint16x8_t steps = vuzp1q_u16(vreinterpretq_u16_f32(low), vreinterpretq_u16_f32(high));
  return vsraq_n_u16(steps, exponent, 4);
}

// Four magnitudes, the sum in the lower half of each lane.
[[gnu::always_inline]] inline uint16x8_t round_four(uint32x4_t bits, uint32x4_t floor) {
  const uint32x4_t magnitude = vandq_u32(bits, vdupq_n_u32(0x7FFFFFFF));
  const uint32x4_t exponent = vmaxq_u32(vandq_u32(magnitude, vdupq_n_u32(0x7F800000)), floor);
  const uint32x4_t anchor = vaddq_u32(exponent, vdupq_n_u32(20u << 23));
  const float32x4_t sum =
      vaddq_f32(vreinterpretq_f32_u32(magnitude), vreinterpretq_f32_u32(anchor));
  return vreinterpretq_u16_u32(vsraq_n_u32(vreinterpretq_u32_f32(sum), exponent, 20));
}

struct Sixteen {
  uint8x16_t sums, signs;
};

[[gnu::always_inline]] inline Sixteen round_sixteen(const Bf16Lanes& lanes,
                                                    const std::uint8_t* from, uint16x8_t floor) {
  const uint16x8_t low = round_eight(lanes, from, floor);
  const uint16x8_t high = round_eight(lanes, from + 16, floor);
  return {vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high)),
          vuzp2q_u8(vld1q_u8(from), vld1q_u8(from + 16))};
}

template <class Lanes>
[[gnu::always_inline]] inline Sixteen round_sixteen(const Lanes&, const std::uint8_t* from,
                                                    uint16x8_t floor) {
  const uint32x4_t floors = vshll_n_u16(vget_low_u16(floor), 16);
  uint32x4_t values[4];
  Lanes::load(from, values);
  const uint16x8_t low = vuzp1q_u16(round_four(values[0], floors), round_four(values[1], floors));
  const uint16x8_t high = vuzp1q_u16(round_four(values[2], floors), round_four(values[3], floors));
  const uint16x8_t upper_low =
      vuzp2q_u16(vreinterpretq_u16_u32(values[0]), vreinterpretq_u16_u32(values[1]));
  const uint16x8_t upper_high =
      vuzp2q_u16(vreinterpretq_u16_u32(values[2]), vreinterpretq_u16_u32(values[3]));
  return {vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high)),
          vuzp2q_u8(vreinterpretq_u8_u16(upper_low), vreinterpretq_u8_u16(upper_high))};
}

template <class Lanes>
[[gnu::always_inline]] inline uint8x16_t codes_of(const std::uint8_t* from, uint16x8_t floor) {
  const Sixteen rounded = round_sixteen(Lanes{}, from, floor);
  // Eight times the floor's exponent is the code 0.
  const uint8x16_t zero = vreinterpretq_u8_u16(vshrq_n_u16(floor, 4));
  const uint8x16_t magnitudes = vsubq_u8(rounded.sums, vuzp1q_u8(zero, zero));
  return vbslq_u8(vdupq_n_u8(0x80), rounded.signs, magnitudes);
}

// Whole groups of four blocks, at most a chunk of them.
template <class Lanes>
void quantize_chunk(const QuantizeBlocks& work) {
  constexpr std::size_t kStride = 32 * Lanes::kBytes;
  const auto* const input = static_cast<const std::uint8_t*>(work.input);
  std::uint8_t* const codes = work.codes;
  const std::size_t blocks = work.blocks;
  std::uint16_t floors[kPassBlocks];
  std::uint8_t is_unusual[kPassBlocks];
  uint32x4_t unusual = vdupq_n_u32(0);
  for (std::size_t i = 0; i < blocks; i += 4) {
    const FourScales four = scales_of(Lanes::template max_of_four<32>(input + i * kStride));
    store_bytes(work.scales + i, four.codes);
    vst1_u16(floors + i, four.floors);
    store_bytes(is_unusual + i, four.unusual);
    unusual = vorrq_u32(unusual, four.unusual);
  }
  for (std::size_t i = 0; i < blocks; ++i) {
    const uint16x8_t floor = vld1q_dup_u16(floors + i);
    const std::uint8_t* block = input + i * kStride;
    vst1q_u8(codes + 32 * i, codes_of<Lanes>(block, floor));
    vst1q_u8(codes + 32 * i + 16, codes_of<Lanes>(block + kStride / 2, floor));
  }
  if (any(unusual)) redo_marked<Mxfp8Blocks, Lanes>(work, is_unusual);
}

}  // namespace

void quantize_mxfp8(const QuantizeBlocks& work) noexcept {
  if (!is_ceil448(work.mxfp8_rule)) return portable::quantize_mxfp8(work);
  with_lanes<Bf16Lanes, F16Lanes, F32Lanes>(work.element, [&]<class Lanes>(const Lanes&) {
    quantize_chunks<Mxfp8Blocks, Lanes, 4>(
        work, [&](const QuantizeBlocks& part) { quantize_chunk<Lanes>(part); });
  });
}

}  // namespace fp4moe::kernels::cpu::neon
