#include <arm_neon.h>

#include "fp4moe/kernels/cpu/block_codec_driver.hpp"
#include "fp4moe/kernels/cpu/neon/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/lanes.hpp"

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

}  // namespace

float max_magnitude(const MaxMagnitude& work) noexcept {
  return drive_max_magnitude(work, largest16, largest32);
}

}  // namespace fp4moe::kernels::cpu::neon
