// Operations of the shuffle kernels for AVX2 and AVX-512. In an unnamed namespace on purpose: each
// file that includes this gets its own, compiled for its own instruction set, and exports nothing
// of it.
#pragma once
#include <cstddef>
#include <cstdint>

#include <immintrin.h>

namespace fp4moe::kernels::cpu {
namespace {

// Registers of 16 bytes: the work is bounded by memory, and wider ones would have to cross lanes.
struct X86ShuffleOps {
  using V [[gnu::vector_size(16)]] = std::uint8_t;
  [[gnu::always_inline]] static V load(const std::uint8_t* from) {
    return reinterpret_cast<V>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  [[gnu::always_inline]] static void store(std::uint8_t* to, V v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(v));
  }
  [[gnu::always_inline]] static V low_nibbles(V a, V b) { return (a & 15) | (b << 4); }
  [[gnu::always_inline]] static V high_nibbles(V a, V b) { return (a >> 4) | (b & 0xF0); }
  template <int Bits>
  [[gnu::always_inline]] static V right(V v) {
    return v >> Bits;
  }
  [[gnu::always_inline]] static V lookup(const std::uint8_t* table, V nibbles) {
    return reinterpret_cast<V>(_mm_shuffle_epi8(reinterpret_cast<__m128i>(load(table)),
                                                reinterpret_cast<__m128i>(nibbles)));
  }
  static constexpr bool kStoresLines = false;
  static constexpr std::size_t kMaxRegisters = 16;
  static constexpr std::size_t kMaxInserts = 0;  // lookups are cheaper
};

}  // namespace
}  // namespace fp4moe::kernels::cpu
