// Every map against the closed formula by which its format is documented, element by element. The
// formulas are written as the documents write them; none looks at digits.
#include <array>
#include <bit>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/layout/laws.hpp"
#include "fp4moe/layout/maps.hpp"

namespace fp4moe::layout {
namespace formulas_test {

using U = std::uint64_t;

// The offset of row n and column k in a matrix padded to N x K. Nibbles count from the lowest bits;
// scattered words count 8 * word + 4 * half + register.
using Formula = U (*)(U n, U k, U N, U K);

struct Row {
  Map map;
  std::vector<Extent> sizes;
  Formula offset;
};

// Marlin's permutations as gathers over a row: out[i] <- in[source(i)].
template <class Source>
U place_after(U x, U block, const Source& source) {
  for (U i = 0; i < block; ++i)
    if (source(i) == x % block) return x / block * block + i;
  return ~U{0};
}
U g64(U x) {
  return place_after(x, 64, [](U i) { return 8 * (i % 8) + i / 8; });
}
U s32(U x) {
  constexpr std::array<U, 8> kFrom{0, 1, 8, 9, 16, 17, 24, 25};
  return place_after(x, 32, [&](U i) { return 2 * (i / 8) + kFrom[i % 8]; });
}
U f4(U x) {
  constexpr std::array<U, 4> kFrom{0, 2, 1, 3};
  return place_after(x, 4, [&](U i) { return kFrom[i]; });
}

U plain_slot(U n, U k, U, U K) { return n * K + k; }

U w4a16(U n, U k, U N, U) {
  const U kt = k / 16, kr = k % 16, nt = n / 64, nc = n % 64;
  const U w = (kt * (N / 64) + nt) * 128 + ((nc % 8) * 4 + (kr % 8) / 2) * 4 + nc / 16;
  const U p = 4 * (kr % 2) + 2 * ((nc % 16) / 8) + kr / 8;
  return 8 * w + p;
}

U w4a8(U n, U k, U N, U) {
  const U kt = k / 32, kr = k % 32, nt = n / 32, nc = n % 32;
  const U w = (kt * (N / 32) + nt) * 128 + ((nc % 8) * 4 + (kr % 16) / 4) * 4 + nc / 8;
  return 8 * w + 2 * (kr % 4) + kr / 16;
}

U swizzle_128x4(U r, U c, U, U C) {
  return ((r / 128) * (C / 4) + c / 4) * 512 + (r % 32) * 16 + ((r % 128) / 32) * 4 + c % 4;
}

struct Sm90 {
  U word, reg, odd;
};
Sm90 sm90(U n, U k, U K) {
  const U P = k / 64, m = (k % 64) / 16, t = k % 16, r = n % 8;
  const U row = 16 * (n / 16) + r + 8 * (m % 2);
  const U byte = 32 * P + 16 * (m / 2) + 4 * ((t % 8) / 2);
  return {(row * (K / 2) + byte) / 4, 2 * (t / 8) + (n % 16) / 8, t % 2};
}
U sm90_g2(U n, U k, U, U K) {
  constexpr std::array<U, 4> kNibble{0, 1, 4, 5};
  const Sm90 at = sm90(n, k, K);
  return 8 * at.word + kNibble[at.reg] + 2 * at.odd;
}
U sm90_g3(U n, U k, U, U K) {
  const Sm90 at = sm90(n, k, K);
  return 8 * at.word + 4 * at.odd + at.reg;
}

U sm90_scale(U r, U c, U R, U) { return (c / 4) * 4 * R + 4 * r + c % 4; }
U sm90_folded(U r, U c, U, U C) {
  return ((r / 64 * (C / 4) + c / 4) * 16 + r % 16) * 16 + 4 * ((r % 64) / 16) + c % 4;
}

// Bytes of a group of four become one word: byte i is register i, its nibbles the halves.
U recoded(U offset, U k) { return 8 * (offset / 4) + 4 * (k % 2) + offset % 4; }

U hopper_mma3(U n, U k, U, U K) {
  const U b = k / 2, r0 = n / 16, w0 = n / 8 % 2, t0 = n / 2 % 4, s0 = n % 2;
  const U r1 = b / 32, k1 = b / 8 % 4, w1 = b / 4 % 2, t1 = b % 4;
  const U C = 128 * r1 + 64 * s0 + 16 * t1 + 4 * k1 + 2 * w1 + w0;
  return recoded((4 * r0 + t0) * (4 * (K / 2)) + C, k);
}
U hopper_mma2(U n, U k, U, U K) {
  const U b = k / 2, r0 = n / 16, w0 = n / 8 % 2, t0 = n / 2 % 4, s0 = n % 2;
  const U r1 = b / 32, w1 = b / 16 % 2, t1 = b / 4 % 4, c1 = b % 4;
  const U C = 128 * r1 + 64 * s0 + 16 * t1 + 8 * w1 + 4 * w0 + c1;
  return recoded((4 * r0 + t0) * (4 * (K / 2)) + C, k);
}

template <U Warps>
U hopper_scale(U n, U k, U, U K) {
  const U m0 = n / (32 * Warps), a = n / (16 * Warps) % 2, w = n / 16 % Warps, h = n / 8 % 2,
          r = n % 8, q = k / 2, p = k % 2;
  return (m0 * Warps + w) * (32 * K) + 64 * q + 32 * a + 4 * r + 2 * p + h;
}

template <U BlockK, U BlockN>
U blackwell_shuffled(U n, U b, U N, U) {
  const U tk = BlockK / 2;
  return ((b / tk) * (N / BlockN) + n / BlockN) * (BlockN * tk) + (n % BlockN) * tk + b % tk;
}

U blackwell_scale(U n, U k, U, U K) {
  return (n / 128) * (128 * K) + (k / 4) * 512 + (n % 32) * 16 + ((n / 32) % 4) * 4 + k % 4;
}

U cdna4(U n, U k, U, U K) {
  const U nb = n / 32, a = n / 16 % 2, r = n % 16, q = k / 8, b = k / 4 % 2, c = k % 4;
  return nb * (32 * K) + 256 * q + 64 * c + 4 * r + 2 * b + a;
}

template <U Width>
U gfx1250(U n, U k, U, U K) {
  return (n / 128) * (128 * K) + (k / Width) * (128 * Width) + (n % 32) * (4 * Width) +
         ((n / 32) % 4) * Width + k % Width;
}

U aiter_weight(U n, U b, U, U K2) {
  return (n / 16) * (16 * K2) + (b / 16) * 256 + (n % 16) * 16 + b % 16;
}
U aiter_n32k4(U n, U k, U, U Ks) {
  return (n / 32) * (32 * Ks) + (k / 4) * 128 + (n % 32) * 4 + k % 4;
}

// Source byte (row i of a block, byte b), nibble d: p = 2 i + d; byte p % 32, low nibble below 32.
U cpu_weight(U n, U k, U, U K) {
  const U b = k / 2, p = 2 * (n % 32) + k % 2;
  const U byte = (n / 32) * 32 * (K / 2) + b * 32 + p % 32;
  return 2 * byte + (p < 32 ? 0 : 1);
}
U cpu_scale(U n, U k, U, U Ks) { return (n / 32) * (32 * Ks) + k * 32 + n % 32; }

U deepgemm(U n, U k, U N, U) { return ((k / 4) * N + n) * 4 + k % 4; }

// Lane 4 g + j holds four words, one for each k-step; register 0 and 1 are rows g and g + 8.
template <U Record>
U native_code(U n, U k, U, U K) {
  const U record = (n / 64) * (K / 64) + k / 64;
  const U lane = 4 * (n % 8) + (k % 8) / 2, step = (k % 64) / 16;
  const U byte = record * Record + 512 * ((n % 64) / 16) + 16 * lane + 4 * step;
  const U reg = 2 * ((k % 16) / 8) + (n % 16) / 8;
  return 8 * (byte / 4) + 4 * (k % 2) + reg;
}
// 4 blocks x 8 row pairs x (row g, row g + 8) for each group.
template <U Groups>
U native_scale(U n, U c, U, U C) {
  const U record = (n / 64) * (C / Groups) + c / Groups;
  return record * (2048 + 64 * Groups) + 2048 + ((n % 64) / 16 * 8 + n % 8) * 2 * Groups +
         2 * (c % Groups) + (n % 16) / 8;
}

// 16 bytes: a pair of rows, eight bytes each; low nibble k ... k + 7, high nibble k + 8 ... k + 15.
U arm_code(U n, U k, U, U K) {
  const U tile = (n / 4) * (K / 32) + k / 32;
  const U unit = 2 * ((n % 4) / 2) + (k % 32) / 16;
  return 2 * (tile * 64 + unit * 16 + 8 * (n % 2) + k % 8) + (k / 8) % 2;
}
U arm_scale(U n, U c, U, U C) { return (n / 4) * 4 * C + 4 * c + n % 4; }

// A register of 64 bytes holds eight k of 16 rows.
U x86_register(U n, U k, U K) { return ((n / 16) * (K / 32) + k / 32) * 256 + (k % 32) / 8 * 64; }
// 16-bit lanes 2 j and 2 j + 1 belong to row j: even k and odd k.
U x86_bf16(U n, U k, U, U K) {
  return 2 * (x86_register(n, k, K) + 4 * (n % 16) + 2 * (k % 2)) + (k % 8) / 2;
}
// 32-bit lane j: four bytes, low nibbles k ... k + 3, high nibbles k + 4 ... k + 7.
U x86_int8(U n, U k, U, U K) {
  return 2 * (x86_register(n, k, K) + 4 * (n % 16) + k % 4) + (k % 8) / 4;
}
U x86_scale(U n, U c, U, U C) { return (n / 16) * 16 * C + 16 * c + n % 16; }

std::vector<Row> all_formulas() {
  return {
      {plain(), {{3, 5}, {8, 1}}, plain_slot},
      {plain(16), {{3, 5}, {2, 40}}, plain_slot},
      {marlin_w4a16(), {{64, 16}, {192, 80}}, w4a16},
      {marlin_w4a8(), {{64, 32}, {192, 96}}, w4a8},
      {marlin_scales(), {{64, 2}, {192, 3}}, [](U n, U k, U N, U) { return k * N + f4(g64(n)); }},
      {marlin_scales_grouped(),
       {{64, 2}, {192, 3}},
       [](U n, U k, U N, U) { return k * N + g64(n); }},
      {marlin_scales_single(),
       {{32, 2}, {192, 3}},
       [](U n, U k, U N, U) { return k * N + s32(n); }},
      {marlin_scales_single_exchanged(),
       {{32, 2}, {192, 3}},
       [](U n, U k, U N, U) { return k * N + f4(s32(n)); }},
      {scales_128x4(), {{130, 5}, {256, 8}}, swizzle_128x4},
      {scales_128x4(8), {{130, 5}, {256, 16}}, swizzle_128x4},
      {sm90_weights(false), {{16, 64}, {48, 192}}, sm90_g2},
      {sm90_weights(true), {{16, 64}, {48, 192}}, sm90_g3},
      {sm90_scales(), {{5, 4}, {64, 12}}, sm90_scale},
      {sm90_scales_folded(), {{64, 4}, {192, 12}}, sm90_folded},
      {triton_strided(), {{5, 7}, {16, 4}}, plain_slot},
      {triton_hopper_value(3, {16, 32}), {{40, 100}, {64, 128}}, hopper_mma3},
      {triton_hopper_value(3, {256, 64}), {{40, 100}, {256, 256}}, hopper_mma3},
      {triton_hopper_value(2, {16, 32}), {{40, 100}, {64, 128}}, hopper_mma2},
      {triton_hopper_value(2, {64, 64}), {{40, 100}, {64, 256}}, hopper_mma2},
      {triton_hopper_scale(4), {{130, 5}, {256, 4}}, hopper_scale<4>},
      {triton_hopper_scale(8), {{300, 5}, {512, 4}}, hopper_scale<8>},
      {triton_hopper_scale(8, 4), {{300, 5}, {512, 4}}, hopper_scale<8>},
      {triton_blackwell_value(), {{3, 130}, {16, 128}}, plain_slot},
      {triton_blackwell_value_shuffled(), {{300, 130}, {256, 128}}, blackwell_shuffled<128, 256>},
      {triton_blackwell_value_shuffled(256, 128),
       {{130, 130}, {256, 128}},
       blackwell_shuffled<256, 128>},
      {triton_blackwell_scale(), {{130, 9}, {256, 8}}, blackwell_scale},
      {triton_cdna4_scale(false), {{32, 8}, {96, 24}}, cdna4},
      {triton_cdna4_scale(true), {{33, 9}, {96, 24}}, cdna4},
      {triton_gfx1250_scale(9), {{130, 9}, {256, 8}}, gfx1250<4>},
      {triton_gfx1250_scale(3), {{130, 3}}, gfx1250<3>},
      {triton_gfx1250_scale(1), {{130, 1}}, gfx1250<1>},
      {aiter_weights(), {{16, 64}, {48, 128}}, aiter_weight},
      {aiter_weights(32), {{16, 32}, {48, 96}}, aiter_weight},
      {aiter_scales(false), {{32, 8}, {96, 24}}, cdna4},
      {aiter_scales(true), {{32, 5}, {96, 24}}, cdna4},
      {aiter_scales_all_experts(), {{300, 9}, {256, 8}}, cdna4},
      {aiter_scales_n32k4(), {{32, 4}, {96, 12}}, aiter_n32k4},
      {vllm_cpu_weights(), {{32, 32}, {96, 64}}, cpu_weight},
      {vllm_cpu_scales(), {{32, 1}, {96, 5}}, cpu_scale},
      {deepgemm_scales(), {{6, 5}, {64, 8}}, deepgemm},
      {native_sm90_codes(32), {{64, 64}, {100, 200}}, native_code<2176>},
      {native_sm90_codes(16), {{64, 64}, {100, 200}}, native_code<2304>},
      {native_sm90_scales(32), {{64, 2}, {100, 7}}, native_scale<2>},
      {native_sm90_scales(16), {{64, 4}, {100, 13}}, native_scale<4>},
      {cpu_arm_codes(), {{8, 32}, {13, 70}}, arm_code},
      {cpu_arm_scales(32), {{8, 2}, {13, 3}}, arm_scale},
      {cpu_arm_scales(16), {{8, 2}, {13, 5}}, arm_scale},
      {cpu_x86_codes(X86Form::bf16), {{16, 32}, {20, 70}}, x86_bf16},
      {cpu_x86_codes(X86Form::int8), {{16, 32}, {20, 70}}, x86_int8},
      {cpu_x86_scales(32), {{16, 2}, {20, 3}}, x86_scale},
      {cpu_x86_scales(16), {{16, 2}, {20, 5}}, x86_scale},
  };
}

TEST(Formulas, AreWhatTheMapsSayForEveryElement) {
  for (const Row& row : all_formulas())
    for (const Extent size : row.sizes) {
      const Result<IndexMap> map = IndexMap::bind(row.map, size);
      ASSERT_TRUE(map) << row.map.name;
      const Extent padded = map->padded();
      for_each_place(padded, [&](Coord at) {
        ASSERT_EQ(map->offset(at), row.offset(at.row, at.col, padded.rows, padded.cols))
            << row.map.name << " " << size.rows << " x " << size.cols << " at (" << at.row << ", "
            << at.col << ")";
      });
    }
}

// A word as a kernel takes it apart: each half must be the code's sign at bit 15 and its magnitude
// at bits 8 to 6.
constexpr std::uint32_t kMask = 0x81C081C0;

std::uint32_t hopper_register(std::uint32_t w, unsigned reg) {
  if (reg == 0) return w & kMask;
  if (reg == 1) return (w << 3) & kMask;
  if (reg == 2) return (w << 6) & kMask;
  return ((w << 1) & 0x80008000) | ((w >> 3) & 0x01800180) | ((w >> 7) & 0x00400040);
}

std::uint32_t native_register(std::uint32_t w, unsigned reg) {
  if (reg == 0) return w & kMask;
  if (reg == 1) return (w << 6) & kMask;
  if (reg == 2) return std::rotr(w, 4) & kMask;
  return ((w << 2) ^ (w >> 6)) & kMask;
}

TEST(Formulas, ScatteredBitsComeBackByTheKernelsShiftsAndMasks) {
  struct Decoder {
    WordCode code;
    std::uint32_t (*decode)(std::uint32_t w, unsigned reg);
  };
  for (const Decoder& decoder :
       {Decoder{kHopperCode, hopper_register}, Decoder{kNativeCode, native_register}}) {
    SplitMix64 random(11);
    for (int round = 0; round < 2000; ++round) {
      std::array<std::uint8_t, 8> codes{};
      std::uint32_t word = 0;
      for (unsigned i = 0; i < 8; ++i) {
        codes[i] = static_cast<std::uint8_t>(random.next() & 15);
        word ^= decoder.code.spread(i, codes[i]);
      }
      for (unsigned i = 0; i < 8; ++i) {
        const std::uint32_t pair = decoder.decode(word, i % 4);
        const std::uint32_t half = (pair >> (i / 4 * 16)) & 0xFFFF;
        ASSERT_EQ(half, (codes[i] >> 3u) * 0x8000u | (codes[i] & 7u) << 6)
            << decoder.code.name << i;
        ASSERT_EQ(decoder.code.collect(i, word), codes[i]);
      }
    }
  }
}

}  // namespace formulas_test
}  // namespace fp4moe::layout
