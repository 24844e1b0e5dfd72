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
  static constexpr std::size_t kMostInserts = 4;
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

}  // namespace fp4moe::kernels::cpu::neon
