// Operands of the GEMM kernels for Arm: panels of tokens, and registers of weights decoded
// from tiles with their scales. Everything here has internal linkage.
#pragma once
#include <cstring>

#include <arm_neon.h>

#include "fp4moe/kernels/cpu/gemm.hpp"

namespace fp4moe::kernels::cpu {
namespace {

inline constexpr std::size_t kGroup = 4;       // rows of a tile
inline constexpr std::size_t kTileBytes = 64;  // 4 rows of 32 columns
inline constexpr std::size_t kGroupPairs = 4;  // pairs of tokens that are multiplied at once
inline constexpr std::size_t kLargeRows = 8;
inline constexpr std::size_t kHeldChunks = 48;  // decoded at once: 24 KiB
inline constexpr std::size_t kRegister = 16;
inline constexpr std::size_t kVectors = kChunk / 8;

inline std::size_t smaller(std::size_t a, std::size_t b) { return a < b ? a : b; }

// Accumulators without the 2 x 2 instructions of i8mm: two lanes for a row, one for each half of
// `tokens`.
struct HalfSums {
  int32x4_t first = vdupq_n_s32(0), second = vdupq_n_s32(0);
  void shift() {
    first = vshlq_n_s32(first, 8);
    second = vshlq_n_s32(second, 8);
  }
  int32x4_t sums() const {
    const int32x4_t columns = vpaddq_s32(first, second);
    return vzip1q_s32(columns, vextq_s32(columns, columns, 2));
  }
};

// --- panels

template <std::size_t kLimbs>
std::size_t panel_bytes(std::size_t tokens, std::size_t chunks) noexcept {
  return tokens == 1 ? chunks * kChunk * 2 : (tokens + 1) / 2 * 2 * chunks * kChunk * kLimbs;
}

// Eight integers of a limb: the upper byte, rounded so that the lower one is signed.
template <std::size_t kLimbs>
int8x8_t limb(int16x8_t values, std::size_t which) {
  if constexpr (kLimbs == 1)
    return vmovn_s16(values);
  else
    return which == 0 ? vrshrn_n_s16(values, 8) : vmovn_s16(values);
}

template <std::size_t kLimbs>
void pack_tokens(const PackTokensCall& call) noexcept {
  auto* panel = reinterpret_cast<std::int8_t*>(call.panel);
  const std::size_t pair = call.token / 2, first = pair / kGroupPairs * kGroupPairs;
  const std::size_t pairs = smaller(kGroupPairs, (call.tokens + 1) / 2 - first);
  const bool pads = call.tokens > 1 && call.tokens % 2 != 0 && call.token + 1 == call.tokens;
  for (std::size_t k = 0; k < call.columns; k += 8) {
    const std::size_t chunk = (call.first_column + k) / kChunk;
    const std::size_t vector = (call.first_column + k) % kChunk / 8;
    const int16x8_t values = vld1q_s16(call.values + k);
    for (std::size_t l = 0; l < kLimbs; ++l) {
      std::int8_t* to =
          call.tokens == 1
              ? panel + (chunk * kVectors + vector) * kRegister + l * 8
              : panel + first * call.chunks * 2 * kChunk * kLimbs +
                    (((chunk * kLimbs + l) * kVectors + vector) * pairs + pair - first) *
                        kRegister +
                    call.token % 2 * 8;
      vst1_s8(to, limb<kLimbs>(values, l));
      if (pads) vst1_s8(to + 8, vdup_n_s8(0));
      if (call.tokens == 1 && kLimbs == 1) vst1_s8(to + 8, limb<kLimbs>(values, l));
    }
  }
}

// --- weights

struct Decoder {
  int8x16_t doubled;
  uint8x16_t low;
  Decoder() {
    static const std::int8_t kDoubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                             0, -1, -2, -3, -4, -6, -8, -12};
    doubled = vld1q_s8(kDoubled);
    low = vdupq_n_u8(15);
  }
  // Columns 0-7 and 8-15 of two rows.
  int8x16_t first(uint8x16_t codes) const { return vqtbl1q_s8(doubled, vandq_u8(codes, low)); }
  int8x16_t second(uint8x16_t codes) const { return vqtbl1q_s8(doubled, vshrq_n_u8(codes, 4)); }
};

// Scale bytes of 4 rows and a chunk's blocks become float32 lanes by one look-up and one shift per
// block, or by a look-up in a prepared table that holds each lane's upper two bytes.
struct Mxfp4 {
  static constexpr std::size_t kBlocks = 2;     // in a chunk
  static constexpr std::size_t kVectorsOf = 4;  // groups of 8 columns in a block
  static constexpr float kFactor = 1.0f;        // lane * kFactor = scale
  using Table = uint8x16_t;
  static Table table(const std::uint8_t* scales, std::size_t blocks) {
    if (blocks == kBlocks) return vcombine_u8(vld1_u8(scales), vdup_n_u8(0));
    return vreinterpretq_u8_u32(
        vld1q_lane_u32(reinterpret_cast<const std::uint32_t*>(scales), vdupq_n_u32(0), 0));
  }
  static float32x4_t look_up(Table table, uint8x16_t index) {
    return vreinterpretq_f32_u32(vshrq_n_u32(vreinterpretq_u32_u8(vqtbl1q_u8(table, index)), 1));
  }
  static constexpr std::uint8_t kSecondHalf = 255;  // none: a byte is the whole scale
};

struct Nvfp4 {
  static constexpr std::size_t kBlocks = 4;
  static constexpr std::size_t kVectorsOf = 2;
  static constexpr float kFactor = 0x1p120f;  // E4M3's bits read as float32 are 2^-120 of it
  using Table = uint8x16x2_t;
  static Table table(const std::uint8_t* scales, std::size_t blocks) {
    uint8x16_t bytes = vdupq_n_u8(0);
    if (blocks == kBlocks) {
      bytes = vld1q_u8(scales);
    } else {
      std::uint8_t buffer[16] = {};
      std::memcpy(buffer, scales, blocks * kGroup);
      bytes = vld1q_u8(buffer);
    }
    const uint8x16_t upper =
        vandq_u8(vreinterpretq_u8_s8(vshrq_n_s8(vreinterpretq_s8_u8(bytes), 4)), vdupq_n_u8(0x87));
    return {{upper, vshlq_n_u8(bytes, 4)}};
  }
  static float32x4_t look_up(Table table, uint8x16_t index) {
    return vreinterpretq_f32_u8(vqtbl2q_u8(table, index));
  }
  static constexpr std::uint8_t kSecondHalf = 16;
};

// Look-up indices for block b: lanes are rows 0 1 2 3, or rows a a a+1 a+1.
template <class Format>
struct Indices {
  uint8x16_t rows[Format::kBlocks], pairs[2][Format::kBlocks];
  Indices() {
    for (std::size_t b = 0; b < Format::kBlocks; ++b) {
      rows[b] = index(b, 0, 1, 2, 3);
      pairs[0][b] = index(b, 0, 0, 1, 1);
      pairs[1][b] = index(b, 2, 2, 3, 3);
    }
  }
  static uint8x16_t index(std::size_t block, int r0, int r1, int r2, int r3) {
    const int lanes[4] = {r0, r1, r2, r3};
    std::uint8_t bytes[16];
    for (int i = 0; i < 4; ++i) {
      const auto at =
          static_cast<std::uint8_t>(block * kGroup + static_cast<std::size_t>(lanes[i]));
      bytes[4 * i] = bytes[4 * i + 1] = 255;
      bytes[4 * i + 2] = Format::kSecondHalf == 255
                             ? std::uint8_t{255}
                             : static_cast<std::uint8_t>(at + Format::kSecondHalf);
      bytes[4 * i + 3] = at;
    }
    return vld1q_u8(bytes);
  }
};

// Blocks of the format that chunk c has.
template <class Format>
std::size_t blocks_of(const GemmWeights& weights, std::size_t chunk) {
  return smaller(Format::kBlocks, weights.scale_columns - chunk * Format::kBlocks);
}

inline std::size_t chunks_of(const GemmWeights& weights) { return (weights.blocks + 1) / 2; }

template <class Format>
float32x4_t with_factor(float32x4_t inner) {
  if constexpr (Format::kFactor == 1.0f)
    return inner;
  else
    return vmulq_n_f32(inner, Format::kFactor);
}

}  // namespace
}  // namespace fp4moe::kernels::cpu
