#include "fp4moe/kernels/cpu/neon/shuffle.hpp"

#include <arm_neon.h>

#include "fp4moe/kernels/cpu/shuffle_tiles.hpp"

namespace fp4moe::kernels::cpu::neon {
namespace {

struct Ops {
  using V = uint8x16_t;
  [[gnu::always_inline]] static V load(const std::uint8_t* from) { return vld1q_u8(from); }
  [[gnu::always_inline]] static void store(std::uint8_t* to, V v) { vst1q_u8(to, v); }
  [[gnu::always_inline]] static V low_nibbles(V a, V b) { return vsliq_n_u8(a, b, 4); }
  [[gnu::always_inline]] static V high_nibbles(V a, V b) { return vsriq_n_u8(b, a, 4); }
  template <int Bits>
  [[gnu::always_inline]] static V right(V v) {
    return vshrq_n_u8(v, Bits);
  }
  [[gnu::always_inline]] static V lookup(const std::uint8_t* table, V nibbles) {
    return vqtbl1q_u8(vld1q_u8(table), nibbles);
  }
  static constexpr bool kStoresLines = true;  // lines written in several stores are read first
  static constexpr std::size_t kMaxRegisters = 32;
  static constexpr std::size_t kMaxInserts = 4;
  // `v` from bit Bits on, `below` below.
  template <int Bits>
  [[gnu::always_inline]] static V insert(V below, V v) {
    return vsliq_n_u8(below, v, Bits);
  }
};

constexpr std::size_t kCount = std::size(kShufflePatterns);
constexpr auto kKernels = make_shuffles<Ops>(std::make_index_sequence<kCount>());

}  // namespace

const ShuffleKernel* shuffles() noexcept { return kKernels.data(); }

namespace {

// Whole vectors, the last one overlapping where the bytes do not move; how many are done.
template <class Lookup>
[[gnu::always_inline]] inline std::size_t by_vectors(const std::uint8_t* from, std::uint8_t* to,
                                                     std::size_t size, Lookup lookup) {
  std::size_t i = 0;
  for (; i + 16 <= size; i += 16) vst1q_u8(to + i, lookup(vld1q_u8(from + i)));
  if (i == size || from == to || size < 16) return i;
  vst1q_u8(to + size - 16, lookup(vld1q_u8(from + size - 16)));
  return size;
}

}  // namespace

void translate(const Translation& translation, const std::uint8_t* from, std::uint8_t* to,
               std::size_t size) noexcept {
  std::size_t i = 0;
  if (translation.kind == Translation::Kind::grouped) {
    const uint8x16x2_t base = vld1q_u8_x2(translation.base), mask = vld1q_u8_x2(translation.mask);
    const uint8x16_t small = vld1q_u8(translation.small), seven = vdupq_n_u8(7);
    i = by_vectors(from, to, size, [&](uint8x16_t code) {
      const uint8x16_t group = vshrq_n_u8(code, 3), within = vandq_u8(code, seven);
      const uint8x16_t sum =
          vaddq_u8(vqtbl2q_u8(base, group), vandq_u8(within, vqtbl2q_u8(mask, group)));
      // Codes 0 to 7 and 128 to 135 index `small`, all others something beyond it.
      const uint8x16_t tiny =
          vorrq_u8(within, vorrq_u8(vshlq_n_u8(vandq_u8(code, vdupq_n_u8(0x78)), 1),
                                    vandq_u8(vshrq_n_u8(code, 4), vdupq_n_u8(8))));
      return vqtbx1q_u8(sum, small, tiny);
    });
  } else if (translation.kind == Translation::Kind::separable) {
    const uint8x16_t low = vld1q_u8(translation.low), high = vld1q_u8(translation.high);
    i = by_vectors(from, to, size, [&](uint8x16_t code) {
      return vorrq_u8(vqtbl1q_u8(low, vandq_u8(code, vdupq_n_u8(15))),
                      vqtbl1q_u8(high, vshrq_n_u8(code, 4)));
    });
  }
  for (; i < size; ++i) to[i] = translation.table[from[i]];
}

}  // namespace fp4moe::kernels::cpu::neon
