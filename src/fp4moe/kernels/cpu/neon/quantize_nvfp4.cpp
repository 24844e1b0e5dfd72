// NVFP4 from bf16, f16 or f32. Each float32 operation is the one of formats/nvfp4.cpp, in its
// order.
#include <arm_neon.h>

#include "fp4moe/kernels/cpu/block_codec_driver.hpp"
#include "fp4moe/kernels/cpu/neon/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/lanes.hpp"

namespace fp4moe::kernels::cpu::neon {
namespace {

struct FourScales {
  uint32x4_t codes;
  float32x4_t multipliers;
  uint32x4_t unusual;
};

// E4M3FN of g * (amax / 6) and 1 / (its value / g).
[[gnu::always_inline]] inline FourScales scales_of(uint32x4_t amax, float global,
                                                   float reciprocal) {
  const float32x4_t sixth = vmulq_n_f32(vreinterpretq_f32_u32(amax), float_of(0x3E2AAAAB));
  const float32x4_t ratio = vminq_f32(vmulq_n_f32(sixth, global), vdupq_n_f32(448.0f));
  const RoundedE4m3 rounded = round_e4m3(ratio);
  const float32x4_t multiplier =
      vdivq_f32(vdupq_n_f32(1.0f), vmulq_n_f32(rounded.value, reciprocal));
  const float32x4_t used = vbslq_f32(vceqzq_f32(rounded.value), vdupq_n_f32(0.0f), multiplier);
  // Neither the maximum nor the factor may be infinite: 0 times infinity would be NaN.
  const uint32x4_t largest = vmaxq_u32(amax, vreinterpretq_u32_f32(used));
  return {rounded.code, used, vcgeq_u32(largest, vdupq_n_u32(0x7F800000))};
}

// Sixteen codes, one per byte.
template <class Lanes>
[[gnu::always_inline]] inline uint8x16_t codes_of(const E2m1Tables& tables,
                                                  const std::uint8_t* from,
                                                  const float* multiplier) {
  const float32x4_t factor = vld1q_dup_f32(multiplier);
  uint32x4_t values[4];
  Lanes::load(from, values);
  for (int i = 0; i < 4; ++i)
    values[i] = vreinterpretq_u32_f32(vmulq_f32(vreinterpretq_f32_u32(values[i]), factor));
  return e2m1_codes<false>(tables, {halves(values[0], values[1]), halves(values[2], values[3])},
                           vdupq_n_s16(kUnitBase));
}

// Whole groups of four blocks, at most a chunk of them.
template <class Lanes>
void quantize_chunk(const QuantizeBlocks& work, float reciprocal, const E2m1Tables& tables) {
  constexpr std::size_t kStride = 16 * Lanes::kBytes;
  const auto* const input = static_cast<const std::uint8_t*>(work.input);
  std::uint8_t* const codes = work.codes;
  const std::size_t blocks = work.blocks;
  const float global = work.global_scale;
  float multipliers[kPassBlocks];
  std::uint8_t is_unusual[kPassBlocks];
  uint32x4_t unusual = vdupq_n_u32(0);
  for (std::size_t i = 0; i < blocks; i += 4) {
    const FourScales four =
        scales_of(Lanes::template max_of_four<16>(input + i * kStride), global, reciprocal);
    store_bytes(work.scales + i, four.codes);
    vst1q_f32(multipliers + i, four.multipliers);
    store_bytes(is_unusual + i, four.unusual);
    unusual = vorrq_u32(unusual, four.unusual);
  }
  for (std::size_t i = 0; i < blocks; i += 2) {
    const std::uint8_t* block = input + i * kStride;
    const uint8x16_t first = codes_of<Lanes>(tables, block, multipliers + i);
    const uint8x16_t second = codes_of<Lanes>(tables, block + kStride, multipliers + i + 1);
    vst1q_u8(codes + 8 * i, pack_nibbles(first, second));
  }
  if (any(unusual)) redo_marked<Nvfp4Blocks, Lanes>(work, is_unusual);
}

}  // namespace

void quantize_nvfp4(const QuantizeBlocks& work) noexcept {
  if (!is_usual(work)) return portable::quantize_nvfp4(work);
  const E2m1Tables tables = e2m1_tables(false);
  const float reciprocal = 1.0f / work.global_scale;
  with_lanes<Bf16Lanes, F16Lanes, F32Lanes>(work.element, [&]<class Lanes>(const Lanes&) {
    quantize_chunks<Nvfp4Blocks, Lanes, 4>(
        work, [&](const QuantizeBlocks& part) { quantize_chunk<Lanes>(part, reciprocal, tables); });
  });
}

}  // namespace fp4moe::kernels::cpu::neon
