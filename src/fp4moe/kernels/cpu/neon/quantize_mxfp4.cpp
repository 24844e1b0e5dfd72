// MXFP4 from bf16, f16 or f32.
//
// S is a power of two, so x/S only moves the exponent: instead of multiplying, the thresholds of
// E2M1 are moved by the scale code and compared with the stored exponent and mantissa. Blocks where
// that does not hold (values that are not finite; scales so small that subnormal inputs matter) are
// done again by the portable reference.
#include <arm_neon.h>

#include "fp4moe/kernels/cpu/block_codec_driver.hpp"
#include "fp4moe/kernels/cpu/neon/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/lanes.hpp"

namespace fp4moe::kernels::cpu::neon {
namespace {

// Below this scale code a subnormal input can still reach 0.25 * S.
constexpr std::uint32_t kFirstPlainScale = 3;

struct FourScales {
  uint32x4_t codes;
  int16x4_t bases;  // what the thresholds of E2M1 are moved by
  uint32x4_t unusual;
};

[[gnu::always_inline]] inline FourScales scales_of(uint32x4_t amax, const Mxfp4Recipe& recipe) {
  const uint32x4_t quotient =
      vreinterpretq_u32_f32(vdivq_f32(vreinterpretq_f32_u32(amax), vdupq_n_f32(recipe.divisor)));
  const uint32x4_t exponent = vshrq_n_u32(vaddq_u32(quotient, vdupq_n_u32(recipe.bits_added)), 23);
  const uint32x4_t codes = vqsubq_u32(exponent, vdupq_n_u32(recipe.exponent_lowered));
  // A zero scale code stands for S = 0: every code is a zero, out of reach of any threshold.
  const int32x4_t moved =
      vaddq_s32(vreinterpretq_s32_u32(vshlq_n_u32(codes, 7)), vdupq_n_s32(kUnitBase - 127 * 128));
  const int32x4_t bases = vbslq_s32(vceqzq_u32(codes), vdupq_n_s32(0x7FFF), moved);
  const uint32x4_t is_small =  // 1 or 2
      vcltq_u32(vsubq_u32(codes, vdupq_n_u32(1)), vdupq_n_u32(kFirstPlainScale - 1));
  const uint32x4_t is_not_finite = vcgeq_u32(amax, vdupq_n_u32(0x7F800000));
  return {codes, vmovn_s32(bases), vorrq_u32(is_small, is_not_finite)};
}

// Whole groups of four blocks, at most a chunk of them.
template <class Lanes>
void quantize_chunk(const QuantizeBlocks& work, const Mxfp4Recipe& recipe,
                    const E2m1Tables& tables) {
  constexpr std::size_t kStride = 32 * Lanes::kBytes;
  const auto* const input = static_cast<const std::uint8_t*>(work.input);
  std::uint8_t* const codes = work.codes;
  const std::size_t blocks = work.blocks;
  std::int16_t bases[kPassBlocks];
  std::uint8_t is_unusual[kPassBlocks];
  uint32x4_t unusual = vdupq_n_u32(0);
  for (std::size_t i = 0; i < blocks; i += 4) {
    const FourScales four = scales_of(Lanes::template max_of_four<32>(input + i * kStride), recipe);
    store_bytes(work.scales + i, four.codes);
    vst1_s16(bases + i, four.bases);
    store_bytes(is_unusual + i, four.unusual);
    unusual = vorrq_u32(unusual, four.unusual);
  }
  for (std::size_t i = 0; i < blocks; ++i) {
    const int16x8_t base = vld1q_dup_s16(bases + i);
    const std::uint8_t* block = input + i * kStride;
    const uint8x16_t first = e2m1_codes<true>(tables, load_halves(Lanes{}, block), base);
    const uint8x16_t second =
        e2m1_codes<true>(tables, load_halves(Lanes{}, block + kStride / 2), base);
    vst1q_u8(codes + 16 * i, pack_nibbles(first, second));
  }
  if (any(unusual)) redo_marked<Mxfp4Blocks, Lanes>(work, is_unusual);
}

}  // namespace

void quantize_mxfp4(const QuantizeBlocks& work) noexcept {
  const Mxfp4Recipe* recipe = mxfp4_recipe(work.mxfp4_rule);
  if (recipe == nullptr) return portable::quantize_mxfp4(work);
  const E2m1Tables tables = e2m1_tables(recipe->ties_away);
  with_lanes<Bf16Lanes, F16Lanes, F32Lanes>(work.element, [&]<class Lanes>(const Lanes&) {
    quantize_chunks<Mxfp4Blocks, Lanes, 4>(
        work, [&](const QuantizeBlocks& part) { quantize_chunk<Lanes>(part, *recipe, tables); });
  });
}

}  // namespace fp4moe::kernels::cpu::neon
