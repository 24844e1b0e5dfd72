// MXFP4 from bf16, f16 or f32, 32 values at a time.
//
// S is a power of two, so x/S only moves the exponent: instead of multiplying, the thresholds of
// E2M1 are moved by the scale code and compared with the stored exponent and mantissa. Blocks where
// that does not hold (values that are not finite; scales so small that subnormal inputs matter) go
// to the portable twin one at a time.
#include <arm_neon.h>

#include "fp4moe/kernels/cpu/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/lanes.hpp"
#include "fp4moe/kernels/cpu/portable/block_codec.hpp"

namespace fp4moe::kernels::cpu::neon {
namespace {

constexpr std::uint32_t kInfinityBits = 0x7F800000;
// Below this scale code a subnormal input can still reach 0.25 * S.
constexpr std::uint32_t kFirstPlainScale = 4;

std::uint32_t scale_code(const Mxfp4Recipe& recipe, std::uint32_t amax_bits) {
  const std::uint32_t quotient = bits_of(float_of(amax_bits) / recipe.divisor);
  const std::uint32_t exponent = (quotient + recipe.bits_added) >> 23;
  return exponent > recipe.exponent_lowered ? exponent - recipe.exponent_lowered : 0;
}

struct Block {
  Halves part[4];
  std::uint32_t amax_bits;
};

// bf16 has no lower half: it is zero in every lane.
Block load(const Bf16Lanes&, const std::uint8_t* from) {
  Block block;
  const uint16x8_t magnitude = vdupq_n_u16(0x7FFF);
  uint16x8_t amax = vdupq_n_u16(0);
  for (int i = 0; i < 4; ++i) {
    const uint16x8_t values = vreinterpretq_u16_u8(vld1q_u8(from + 16 * i));
    block.part[i] = {values, vdupq_n_s16(-1)};
    amax = vmaxq_u16(amax, vandq_u16(values, magnitude));
  }
  block.amax_bits = std::uint32_t{vmaxvq_u16(amax)} << 16;
  return block;
}

template <class Lanes>
Block load(const Lanes&, const std::uint8_t* from) {
  Block block;
  uint32x4_t values[8];
  Lanes::load(from, values);
  Lanes::load(from + 16 * Lanes::kBytes, values + 4);
  uint32x4_t amax = vdupq_n_u32(0);
  for (int i = 0; i < 8; ++i) amax = vmaxq_u32(amax, vandq_u32(values[i], vdupq_n_u32(0x7FFFFFFF)));
  for (int i = 0; i < 4; ++i) block.part[i] = halves(values[2 * i], values[2 * i + 1]);
  block.amax_bits = vmaxvq_u32(amax);
  return block;
}

template <class Lanes>
void quantize(const QuantizeBlocks& work, const Mxfp4Recipe& recipe) {
  constexpr std::size_t kStride = 32 * Lanes::kBytes;
  const E2m1Tables tables = e2m1_tables(recipe.ties_away);
  const auto* input = static_cast<const std::uint8_t*>(work.input);
  for (std::size_t i = 0; i < work.blocks; ++i, input += kStride) {
    const Block block = load(Lanes{}, input);
    const std::uint32_t scale = scale_code(recipe, block.amax_bits);
    if (block.amax_bits >= kInfinityBits || (scale != 0 && scale < kFirstPlainScale)) {
      QuantizeBlocks one = work;
      one.input = input;
      one.blocks = 1;
      one.codes = work.codes + 16 * i;
      one.scales = work.scales + i;
      portable::quantize_mxfp4(one);
      continue;
    }
    // A zero scale code stands for S = 0: every code is a zero, out of reach of any threshold.
    const auto base = static_cast<std::int16_t>(
        scale == 0 ? 0x7FFF : (static_cast<int>(scale) - 127) * 128 + kUnitBase);
    const int16x8_t bases = vdupq_n_s16(base);
    const uint8x16_t first = e2m1_codes(tables, block.part[0], block.part[1], bases);
    const uint8x16_t second = e2m1_codes(tables, block.part[2], block.part[3], bases);
    vst1q_u8(work.codes + 16 * i, pack_nibbles(first, second));
    work.scales[i] = static_cast<std::uint8_t>(scale);
  }
}

}  // namespace

void quantize_mxfp4(const QuantizeBlocks& work) noexcept {
  const Mxfp4Recipe* recipe = mxfp4_recipe(work.mxfp4_rule);
  if (recipe == nullptr) return portable::quantize_mxfp4(work);
  switch (work.element) {
    case Element::bf16:
      return quantize<Bf16Lanes>(work, *recipe);
    case Element::f16:
      return quantize<F16Lanes>(work, *recipe);
    case Element::f32:
      return quantize<F32Lanes>(work, *recipe);
  }
}

}  // namespace fp4moe::kernels::cpu::neon
