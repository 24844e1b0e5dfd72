// Nibble moves between canonical blocks and those of GGUF files, for 64 elements at a time.
//
// A canonical byte holds elements 2k and 2k + 1; call the bytes of a block's first half A and those
// of its second half B. A GGUF byte holds element j of the first half and element j of the second,
// so its even bytes pair the low nibbles of A and B, its odd bytes the high nibbles:
//
//   even = A.low | B.low << 4      odd = A.high | B.high << 4
//
// which `sli` and `sri` do at once, and which undoes itself.
#include <arm_neon.h>

#include "fp4moe/kernels/cpu/block_codec.hpp"
#include "fp4moe/kernels/cpu/neon/block_codec.hpp"
#include "fp4moe/kernels/cpu/portable/block_codec.hpp"

namespace fp4moe::kernels::cpu::neon {
namespace {

struct Pair {
  uint8x16_t a, b;
};

[[gnu::always_inline]] inline Pair exchange(Pair p) {
  return {vsliq_n_u8(p.a, p.b, 4), vsriq_n_u8(p.b, p.a, 4)};
}

[[gnu::always_inline]] inline Pair interleave_bytes(Pair p) {
  return {vzip1q_u8(p.a, p.b), vzip2q_u8(p.a, p.b)};
}

[[gnu::always_inline]] inline Pair separate_bytes(Pair p) {
  return {vuzp1q_u8(p.a, p.b), vuzp2q_u8(p.a, p.b)};
}

// Halves of blocks: 8 bytes in MXFP4, 4 in NVFP4.
[[gnu::always_inline]] inline Pair transpose_u64(Pair p) {
  const uint64x2_t a = vreinterpretq_u64_u8(p.a);
  const uint64x2_t b = vreinterpretq_u64_u8(p.b);
  return {vreinterpretq_u8_u64(vzip1q_u64(a, b)), vreinterpretq_u8_u64(vzip2q_u64(a, b))};
}

[[gnu::always_inline]] inline Pair separate_u32(Pair p) {
  const uint32x4_t a = vreinterpretq_u32_u8(p.a);
  const uint32x4_t b = vreinterpretq_u32_u8(p.b);
  return {vreinterpretq_u8_u32(vuzp1q_u32(a, b)), vreinterpretq_u8_u32(vuzp2q_u32(a, b))};
}

[[gnu::always_inline]] inline Pair interleave_u32(Pair p) {
  const uint32x4_t a = vreinterpretq_u32_u8(p.a);
  const uint32x4_t b = vreinterpretq_u32_u8(p.b);
  return {vreinterpretq_u8_u32(vzip1q_u32(a, b)), vreinterpretq_u8_u32(vzip2q_u32(a, b))};
}

[[gnu::always_inline]] inline void pack_scales_of_four(std::uint8_t* to, const std::uint8_t* from) {
  std::uint32_t scales = 0;
  __builtin_memcpy(&scales, from, sizeof scales);
  scales &= 0x7F7F7F7Fu;
  __builtin_memcpy(to, &scales, sizeof scales);
}

}  // namespace

void pack_gguf_mxfp4(const PackGguf& work) noexcept {
  const auto [codes, scales, blocks, gguf] = work;
  std::size_t i = 0;
  for (; i + 2 <= blocks; i += 2) {
    const Pair canonical{vld1q_u8(codes + 16 * i), vld1q_u8(codes + 16 * i + 16)};
    const Pair moved = interleave_bytes(exchange(transpose_u64(canonical)));
    std::uint8_t* to = gguf + 17 * i;
    to[0] = scales[i];
    vst1q_u8(to + 1, moved.a);
    to[17] = scales[i + 1];
    vst1q_u8(to + 18, moved.b);
  }
  portable::pack_gguf_mxfp4({codes + 16 * i, scales + i, blocks - i, gguf + 17 * i});
}

void unpack_gguf_mxfp4(const UnpackGguf& work) noexcept {
  const auto [gguf, blocks, codes, scales] = work;
  std::size_t i = 0;
  for (; i + 2 <= blocks; i += 2) {
    const std::uint8_t* from = gguf + 17 * i;
    const Pair packed{vld1q_u8(from + 1), vld1q_u8(from + 18)};
    const Pair canonical = transpose_u64(exchange(separate_bytes(packed)));
    scales[i] = from[0];
    scales[i + 1] = from[17];
    vst1q_u8(codes + 16 * i, canonical.a);
    vst1q_u8(codes + 16 * i + 16, canonical.b);
  }
  portable::unpack_gguf_mxfp4({gguf + 17 * i, blocks - i, codes + 16 * i, scales + i});
}

void pack_gguf_nvfp4(const PackGguf& work) noexcept {
  const auto [codes, scales, blocks, gguf] = work;
  for (std::size_t i = 0; i < blocks; i += 4) {
    const Pair canonical{vld1q_u8(codes + 8 * i), vld1q_u8(codes + 8 * i + 16)};
    const Pair moved = interleave_bytes(exchange(separate_u32(canonical)));
    pack_scales_of_four(gguf + 9 * i, scales + i);
    vst1q_u8(gguf + 9 * i + 4, moved.a);
    vst1q_u8(gguf + 9 * i + 20, moved.b);
  }
}

void unpack_gguf_nvfp4(const UnpackGguf& work) noexcept {
  const auto [gguf, blocks, codes, scales] = work;
  for (std::size_t i = 0; i < blocks; i += 4) {
    const Pair packed{vld1q_u8(gguf + 9 * i + 4), vld1q_u8(gguf + 9 * i + 20)};
    const Pair canonical = interleave_u32(exchange(separate_bytes(packed)));
    __builtin_memcpy(scales + i, gguf + 9 * i, 4);
    vst1q_u8(codes + 8 * i, canonical.a);
    vst1q_u8(codes + 8 * i + 16, canonical.b);
  }
}

}  // namespace fp4moe::kernels::cpu::neon
