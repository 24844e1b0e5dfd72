// Nibble moves between canonical blocks and those of GGUF files.
//
// Canonical order splits a block into its even elements (low nibbles) and its odd ones (high);
// GGUF into its first and its second half. Interleaving bytes leads from one to the other.
#include <arm_neon.h>

#include "fp4moe/kernels/cpu/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/block_codec.hpp"

namespace fp4moe::kernels::cpu::neon {
namespace {

struct Codes {  // one per byte
  uint8x16_t a, b;
};

Codes low_and_high(const std::uint8_t* packed) {
  const uint8x16_t bytes = vld1q_u8(packed);
  return {vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8(bytes, 4)};
}

Codes in_order(const std::uint8_t* canonical) {
  const Codes c = low_and_high(canonical);
  return {vzip1q_u8(c.a, c.b), vzip2q_u8(c.a, c.b)};
}

void store_canonical(std::uint8_t* to, uint8x16_t first, uint8x16_t second) {
  vst1q_u8(to, vsliq_n_u8(vuzp1q_u8(first, second), vuzp2q_u8(first, second), 4));
}

uint8x16_t lower_halves(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

uint8x16_t upper_halves(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

void copy_scales_of_four(std::uint8_t* to, const std::uint8_t* from) {
  std::uint32_t scales = 0;
  __builtin_memcpy(&scales, from, sizeof scales);
  scales &= 0x7F7F7F7Fu;
  __builtin_memcpy(to, &scales, sizeof scales);
}

}  // namespace

void pack_gguf_mxfp4(const PackGguf& work) noexcept {
  for (std::size_t i = 0; i < work.blocks; ++i) {
    std::uint8_t* block = work.gguf + 17 * i;
    const Codes codes = in_order(work.codes + 16 * i);
    block[0] = work.scales[i];
    vst1q_u8(block + 1, vsliq_n_u8(codes.a, codes.b, 4));
  }
}

void unpack_gguf_mxfp4(const UnpackGguf& work) noexcept {
  for (std::size_t i = 0; i < work.blocks; ++i) {
    const std::uint8_t* block = work.gguf + 17 * i;
    const Codes codes = low_and_high(block + 1);
    work.scales[i] = block[0];
    store_canonical(work.codes + 16 * i, codes.a, codes.b);
  }
}

void pack_gguf_nvfp4(const PackGguf& work) noexcept {
  for (std::size_t i = 0; i < work.blocks; i += 4) {
    std::uint8_t* block = work.gguf + 9 * i;
    copy_scales_of_four(block, work.scales + i);
    for (std::size_t pair = 0; pair < 2; ++pair) {
      const Codes codes = in_order(work.codes + 8 * i + 16 * pair);
      const uint8x16_t packed =
          vsliq_n_u8(lower_halves(codes.a, codes.b), upper_halves(codes.a, codes.b), 4);
      vst1q_u8(block + 4 + 16 * pair, packed);
    }
  }
}

void unpack_gguf_nvfp4(const UnpackGguf& work) noexcept {
  for (std::size_t i = 0; i < work.blocks; i += 4) {
    const std::uint8_t* block = work.gguf + 9 * i;
    copy_scales_of_four(work.scales + i, block);
    for (std::size_t pair = 0; pair < 2; ++pair) {
      const Codes codes = low_and_high(block + 4 + 16 * pair);
      store_canonical(work.codes + 8 * i + 16 * pair, lower_halves(codes.a, codes.b),
                      upper_halves(codes.a, codes.b));
    }
  }
}

}  // namespace fp4moe::kernels::cpu::neon
