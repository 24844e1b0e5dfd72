// Helpers that the NEON kernels share. Internal linkage only: nothing here may leave a symbol.
#pragma once
#include <cstddef>
#include <cstdint>

#include <arm_neon.h>

#include "fp4moe/kernels/cpu/block_codec.hpp"

namespace fp4moe::kernels::cpu::neon {

// A chunk is quantized in two passes: first the scales of four blocks at a time, then the codes, so
// that neither pass waits for a division.

// How values are stored. `load` gives sixteen of them as float32 patterns; `max_of_four` the
// largest magnitudes of four consecutive blocks of kElements values, as float32 patterns.
[[gnu::always_inline]] static inline uint32x4_t max_of_four_u32(uint32x4_t a, uint32x4_t b,
                                                                uint32x4_t c, uint32x4_t d) {
  return vpmaxq_u32(vpmaxq_u32(a, b), vpmaxq_u32(c, d));
}

struct Bf16Lanes {
  static constexpr std::size_t kBytes = 2;
  [[gnu::always_inline]] static inline uint16x8_t load_upper(const std::uint8_t* from) {
    return vreinterpretq_u16_u8(vld1q_u8(from));
  }
  [[gnu::always_inline]] static inline void load(const std::uint8_t* from, uint32x4_t out[4]) {
    const uint16x8_t a = load_upper(from);
    const uint16x8_t b = load_upper(from + 16);
    out[0] = vshll_n_u16(vget_low_u16(a), 16);
    out[1] = vshll_high_n_u16(a, 16);
    out[2] = vshll_n_u16(vget_low_u16(b), 16);
    out[3] = vshll_high_n_u16(b, 16);
  }
  template <std::size_t kElements>
  [[gnu::always_inline]] static inline uint32x4_t max_of_four(const std::uint8_t* from) {
    const uint16x8_t mask = vdupq_n_u16(0x7FFF);
    uint16x8_t largest[4];
    for (std::size_t b = 0; b < 4; ++b) {
      const std::uint8_t* block = from + b * kElements * kBytes;
      largest[b] = vandq_u16(load_upper(block), mask);
      for (std::size_t i = 1; i < kElements / 8; ++i)
        largest[b] = vmaxq_u16(largest[b], vandq_u16(load_upper(block + 16 * i), mask));
    }
    const uint16x8_t pairs =
        vpmaxq_u16(vpmaxq_u16(largest[0], largest[1]), vpmaxq_u16(largest[2], largest[3]));
    return vshll_n_u16(vget_low_u16(vpmaxq_u16(pairs, pairs)), 16);
  }
};

// For what must be widened to float32 first.
template <class Lanes, std::size_t kElements>
[[gnu::always_inline]] static inline uint32x4_t max_of_four_widened(const std::uint8_t* from) {
  const uint32x4_t mask = vdupq_n_u32(0x7FFFFFFF);
  uint32x4_t largest[4];
  for (std::size_t b = 0; b < 4; ++b) {
    largest[b] = vdupq_n_u32(0);
    for (std::size_t i = 0; i < kElements; i += 16) {
      uint32x4_t values[4];
      Lanes::load(from + (b * kElements + i) * Lanes::kBytes, values);
      const uint32x4_t low = vmaxq_u32(vandq_u32(values[0], mask), vandq_u32(values[1], mask));
      const uint32x4_t high = vmaxq_u32(vandq_u32(values[2], mask), vandq_u32(values[3], mask));
      largest[b] = vmaxq_u32(largest[b], vmaxq_u32(low, high));
    }
  }
  return max_of_four_u32(largest[0], largest[1], largest[2], largest[3]);
}

struct F16Lanes {
  static constexpr std::size_t kBytes = 2;
  [[gnu::always_inline]] static inline void load(const std::uint8_t* from, uint32x4_t out[4]) {
    const float16x8_t a = vreinterpretq_f16_u8(vld1q_u8(from));
    const float16x8_t b = vreinterpretq_f16_u8(vld1q_u8(from + 16));
    out[0] = vreinterpretq_u32_f32(vcvt_f32_f16(vget_low_f16(a)));
    out[1] = vreinterpretq_u32_f32(vcvt_high_f32_f16(a));
    out[2] = vreinterpretq_u32_f32(vcvt_f32_f16(vget_low_f16(b)));
    out[3] = vreinterpretq_u32_f32(vcvt_high_f32_f16(b));
  }
  template <std::size_t kElements>
  [[gnu::always_inline]] static inline uint32x4_t max_of_four(const std::uint8_t* from) {
    return max_of_four_widened<F16Lanes, kElements>(from);
  }
};

struct F32Lanes {
  static constexpr std::size_t kBytes = 4;
  [[gnu::always_inline]] static inline void load(const std::uint8_t* from, uint32x4_t out[4]) {
    for (std::size_t i = 0; i < 4; ++i) out[i] = vreinterpretq_u32_u8(vld1q_u8(from + 16 * i));
  }
  template <std::size_t kElements>
  [[gnu::always_inline]] static inline uint32x4_t max_of_four(const std::uint8_t* from) {
    return max_of_four_widened<F32Lanes, kElements>(from);
  }
};

// Four small numbers as bytes.
[[gnu::always_inline]] static inline void store_bytes(std::uint8_t* to, uint32x4_t values) {
  const uint16x4_t narrow = vmovn_u32(values);
  const std::uint32_t bytes =
      vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(narrow, narrow))), 0);
  __builtin_memcpy(to, &bytes, sizeof bytes);
}

[[gnu::always_inline]] static inline bool any(uint32x4_t mask) { return vmaxvq_u32(mask) != 0; }

// The upper halves of two vectors of float32 patterns, and -1 in each lane whose lower half is
// zero: added to the upper half, it turns "at least" into "more than" in a later comparison.
struct Halves {
  uint16x8_t upper;
  int16x8_t step_down;
};

// Sixteen values as two such halves; bf16 has no lower half, so it is zero in every lane.
struct TwoHalves {
  Halves a, b;
};

[[gnu::always_inline]] static inline Halves halves(uint32x4_t a, uint32x4_t b) {
  const uint16x8_t low = vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
  return {vuzp2q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)),
          vreinterpretq_s16_u16(vceqzq_u16(low))};
}

template <class Lanes>
[[gnu::always_inline]] static inline TwoHalves load_halves(const Lanes&, const std::uint8_t* from) {
  uint32x4_t values[4];
  Lanes::load(from, values);
  return {halves(values[0], values[1]), halves(values[2], values[3])};
}

[[gnu::always_inline]] static inline TwoHalves load_halves(const Bf16Lanes&,
                                                           const std::uint8_t* from) {
  const int16x8_t always = vdupq_n_s16(-1);
  return {{Bf16Lanes::load_upper(from), always}, {Bf16Lanes::load_upper(from + 16), always}};
}

// E2M1 by counting thresholds. A magnitude's upper half, less `base` and shifted right by five,
// says in which quarter of which octave it lies: index 0 is below 0.25, 1 starts at 0.25, 7 at
// 0.75, 10 at 1.25, 12 at 1.75, 14 at 2.5, 16 at 3.5, 18 at 5. Two tables count the thresholds that
// are passed when reached, and those that must be exceeded (ties to even).
struct E2m1Tables {
  uint8x16x2_t reached, exceeded;
};

[[gnu::always_inline]] static inline E2m1Tables e2m1_tables(bool ties_away) {
  static constexpr std::uint8_t kReachedEven[32] = {0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2,
                                                    3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3};
  static constexpr std::uint8_t kExceededEven[32] = {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2,
                                                     2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4,
                                                     4, 4, 4, 4, 4, 4, 4, 4, 4, 4};
  static constexpr std::uint8_t kReachedAway[32] = {0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5,
                                                    6, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7};
  static constexpr std::uint8_t kExceededAway[32] = {};
  const std::uint8_t* reached = ties_away ? kReachedAway : kReachedEven;
  const std::uint8_t* exceeded = ties_away ? kExceededAway : kExceededEven;
  return {{vld1q_u8(reached), vld1q_u8(reached + 16)},
          {vld1q_u8(exceeded), vld1q_u8(exceeded + 16)}};
}

// The upper half of 0.25 less one step of the index, for values that are already divided by S.
static constexpr std::int16_t kUnitBase = (125 << 7) - 32;

// Sixteen codes, one per byte, from magnitudes and signs. With kBounded the caller knows that no
// magnitude reaches 32, which keeps the index inside the tables.
template <bool kBounded>
[[gnu::always_inline]] static inline uint8x16_t e2m1_codes(const E2m1Tables& tables,
                                                           const TwoHalves& values,
                                                           int16x8_t base) {
  const auto& [a, b] = values;
  const uint16x8_t magnitude_mask = vdupq_n_u16(0x7FFF);
  const int16x8_t at_a =
      vqsubq_s16(vreinterpretq_s16_u16(vandq_u16(a.upper, magnitude_mask)), base);
  const int16x8_t at_b =
      vqsubq_s16(vreinterpretq_s16_u16(vandq_u16(b.upper, magnitude_mask)), base);
  uint8x16_t reached = vqshrun_high_n_s16(vqshrun_n_s16(at_a, 5), at_b, 5);
  uint8x16_t exceeded = vqshrun_high_n_s16(vqshrun_n_s16(vaddq_s16(at_a, a.step_down), 5),
                                           vaddq_s16(at_b, b.step_down), 5);
  if constexpr (!kBounded) {
    reached = vminq_u8(reached, vdupq_n_u8(31));
    exceeded = vminq_u8(exceeded, vdupq_n_u8(31));
  }
  const uint8x16_t magnitude =
      vaddq_u8(vqtbl2q_u8(tables.reached, reached), vqtbl2q_u8(tables.exceeded, exceeded));
  const uint8x16_t signs = vuzp2q_u8(vreinterpretq_u8_u16(a.upper), vreinterpretq_u8_u16(b.upper));
  return vbslq_u8(vdupq_n_u8(8), vshrq_n_u8(signs, 4), magnitude);
}

// E4M3FN of magnitudes up to 448, nearest even, with the value it stands for. Adding 2^20 times the
// value's own power of two (at least 2^-6, where the subnormals begin) leaves exactly the mantissa
// bits that E4M3FN keeps.
struct RoundedE4m3 {
  uint32x4_t code;
  float32x4_t value;
};

[[gnu::always_inline]] static inline RoundedE4m3 round_e4m3(float32x4_t magnitude) {
  const uint32x4_t field = vandq_u32(vreinterpretq_u32_f32(magnitude), vdupq_n_u32(0x7F800000));
  const uint32x4_t exponent = vmaxq_u32(field, vdupq_n_u32(121u << 23));
  const uint32x4_t anchor = vaddq_u32(exponent, vdupq_n_u32(20u << 23));
  const float32x4_t sum = vaddq_f32(magnitude, vreinterpretq_f32_u32(anchor));
  const uint32x4_t steps = vsubq_u32(vreinterpretq_u32_f32(sum), anchor);
  const uint32x4_t code = vsubq_u32(vsraq_n_u32(steps, exponent, 20), vdupq_n_u32(121u << 3));
  return {code, vsubq_f32(sum, vreinterpretq_f32_u32(anchor))};
}

// Thirty-two codes of one byte each to sixteen bytes, the even element in the low nibble.
[[gnu::always_inline]] static inline uint8x16_t pack_nibbles(uint8x16_t first, uint8x16_t second) {
  return vsliq_n_u8(vuzp1q_u8(first, second), vuzp2q_u8(first, second), 4);
}

}  // namespace fp4moe::kernels::cpu::neon
