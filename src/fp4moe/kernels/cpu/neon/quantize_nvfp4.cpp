// NVFP4 from bf16, f16 or f32: the scales of four blocks at a time, then 16 values at a time. Each
// float32 operation is the one of formats/nvfp4.cpp, in its order.
#include <arm_neon.h>

#include "fp4moe/kernels/cpu/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/lanes.hpp"
#include "fp4moe/kernels/cpu/portable/block_codec.hpp"

namespace fp4moe::kernels::cpu::neon {
namespace {

struct Block {
  uint32x4_t values[4];

  uint32x4_t magnitudes() const {
    const uint32x4_t mask = vdupq_n_u32(0x7FFFFFFF);
    const uint32x4_t a = vmaxq_u32(vandq_u32(values[0], mask), vandq_u32(values[1], mask));
    const uint32x4_t b = vmaxq_u32(vandq_u32(values[2], mask), vandq_u32(values[3], mask));
    return vmaxq_u32(a, b);
  }
};

struct Scales {
  uint32x4_t codes;
  float32x4_t multipliers;
};

// E4M3FN of g * (amax / 6) and 1 / (its value / g) for four blocks; amax is finite.
Scales scales_of(float32x4_t amax, float32x4_t global, float32x4_t reciprocal) {
  const float32x4_t sixth = vdupq_n_f32(float_of(0x3E2AAAAB));
  const float32x4_t ratio =
      vminq_f32(vmulq_f32(global, vmulq_f32(amax, sixth)), vdupq_n_f32(448.0f));
  const RoundedE4m3 rounded = round_e4m3(ratio);
  const float32x4_t multiplier = vdivq_f32(vdupq_n_f32(1.0f), vmulq_f32(rounded.value, reciprocal));
  const uint32x4_t is_zero = vceqzq_f32(rounded.value);
  return {rounded.code, vbslq_f32(is_zero, vdupq_n_f32(0.0f), multiplier)};
}

uint8x16_t codes_of(const E2m1Tables& tables, const Block& block, float32x4_t multiplier) {
  uint32x4_t scaled[4];
  for (int i = 0; i < 4; ++i)
    scaled[i] =
        vreinterpretq_u32_f32(vmulq_f32(vreinterpretq_f32_u32(block.values[i]), multiplier));
  return e2m1_codes(tables, halves(scaled[0], scaled[1]), halves(scaled[2], scaled[3]),
                    vdupq_n_s16(kUnitBase));
}

void one_by_one(const QuantizeBlocks& work, const std::uint8_t* input, std::size_t first,
                std::size_t count) {
  QuantizeBlocks part = work;
  part.input = input;
  part.blocks = count;
  part.codes = work.codes + 8 * first;
  part.scales = work.scales + first;
  portable::quantize_nvfp4(part);
}

template <class Lanes>
void quantize(const QuantizeBlocks& work) {
  constexpr std::size_t kStride = 16 * Lanes::kBytes;
  const E2m1Tables tables = e2m1_tables(false);
  const float32x4_t global = vdupq_n_f32(work.global_scale);
  const float32x4_t reciprocal = vdupq_n_f32(1.0f / work.global_scale);
  const auto* input = static_cast<const std::uint8_t*>(work.input);
  std::size_t i = 0;
  for (; i + 4 <= work.blocks; i += 4, input += 4 * kStride) {
    Block blocks[4];
    for (std::size_t j = 0; j < 4; ++j) Lanes::load(input + j * kStride, blocks[j].values);
    const uint32x4_t amax = vpmaxq_u32(vpmaxq_u32(blocks[0].magnitudes(), blocks[1].magnitudes()),
                                       vpmaxq_u32(blocks[2].magnitudes(), blocks[3].magnitudes()));
    const Scales scales = scales_of(vreinterpretq_f32_u32(amax), global, reciprocal);
    // Not finite: the maximum, or the factor (0 times infinity would be NaN).
    const uint32x4_t largest = vmaxq_u32(amax, vreinterpretq_u32_f32(scales.multipliers));
    if (vmaxvq_u32(largest) >= 0x7F800000) {
      one_by_one(work, input, i, 4);
      continue;
    }
    const uint8x16_t codes0 = codes_of(tables, blocks[0], vdupq_laneq_f32(scales.multipliers, 0));
    const uint8x16_t codes1 = codes_of(tables, blocks[1], vdupq_laneq_f32(scales.multipliers, 1));
    const uint8x16_t codes2 = codes_of(tables, blocks[2], vdupq_laneq_f32(scales.multipliers, 2));
    const uint8x16_t codes3 = codes_of(tables, blocks[3], vdupq_laneq_f32(scales.multipliers, 3));
    vst1q_u8(work.codes + 8 * i, pack_nibbles(codes0, codes1));
    vst1q_u8(work.codes + 8 * i + 16, pack_nibbles(codes2, codes3));
    const uint16x4_t narrow = vmovn_u32(scales.codes);
    const std::uint32_t bytes =
        vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(narrow, narrow))), 0);
    __builtin_memcpy(work.scales + i, &bytes, sizeof bytes);
  }
  one_by_one(work, input, i, work.blocks - i);
}

}  // namespace

void quantize_nvfp4(const QuantizeBlocks& work) noexcept {
  const bool usual = is_reference(work.nvfp4_rule) && work.global_scale > 0.0f &&
                     bits_of(work.global_scale) < 0x7F800000;
  if (!usual) return portable::quantize_nvfp4(work);
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
