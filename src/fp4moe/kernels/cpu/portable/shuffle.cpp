#include "fp4moe/kernels/cpu/portable/shuffle.hpp"

#include <cstring>

#include "fp4moe/kernels/cpu/shuffle_tiles.hpp"

namespace fp4moe::kernels::cpu::portable {
namespace {

// The compiler's vector extensions: operations that the machine lacks become loops over bytes.
struct Ops {
  using V [[gnu::vector_size(16)]] = std::uint8_t;
  [[gnu::always_inline]] static V load(const std::uint8_t* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
  }
  [[gnu::always_inline]] static void store(std::uint8_t* to, V v) { std::memcpy(to, &v, sizeof v); }
  [[gnu::always_inline]] static V low_nibbles(V a, V b) { return (a & 15) | (b << 4); }
  [[gnu::always_inline]] static V high_nibbles(V a, V b) { return (a >> 4) | (b & 0xF0); }
  template <int Bits>
  [[gnu::always_inline]] static V right(V v) {
    return v >> Bits;
  }
  [[gnu::always_inline]] static V lookup(const std::uint8_t* table, V nibbles) {
    V result{};
    for (int i = 0; i < 16; ++i) result[i] = table[nibbles[i]];
    return result;
  }
  static constexpr bool kStoresLines = false;
  static constexpr std::size_t kMaxRegisters = 16;
  static constexpr std::size_t kMaxInserts = 8;  // lookups go byte by byte
  template <int Bits>
  [[gnu::always_inline]] static V insert(V below, V v) {
    return (below & static_cast<std::uint8_t>((1 << Bits) - 1)) | (v << Bits);
  }
};

constexpr std::size_t kCount = std::size(kShufflePatterns);
constexpr auto kKernels = make_shuffles<Ops>(std::make_index_sequence<kCount>());

}  // namespace

const ShuffleKernel* shuffles() noexcept { return kKernels.data(); }

// Eight bytes at a time: one load and one store for eight lookups.
void translate(const Translation& translation, const std::uint8_t* from, std::uint8_t* to,
               std::size_t size) noexcept {
  const std::uint8_t* table = translation.table;
  std::size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    std::uint64_t in = 0, out = 0;
    std::memcpy(&in, from + i, 8);
    for (unsigned shift = 0; shift < 64; shift += 8)
      out |= std::uint64_t{table[(in >> shift) & 0xFF]} << shift;
    std::memcpy(to + i, &out, 8);
  }
  for (; i < size; ++i) to[i] = table[from[i]];
}

}  // namespace fp4moe::kernels::cpu::portable
