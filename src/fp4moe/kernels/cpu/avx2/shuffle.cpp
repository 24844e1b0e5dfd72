#include "fp4moe/kernels/cpu/avx2/shuffle.hpp"

#include "fp4moe/kernels/cpu/shuffle_tiles.hpp"
#include "fp4moe/kernels/cpu/x86_shuffle_ops.hpp"

namespace fp4moe::kernels::cpu::avx2 {
namespace {

using Ops = X86ShuffleOps;
constexpr std::size_t kCount = std::size(kShufflePatterns);
constexpr auto kKernels = make_shuffles<Ops>(std::make_index_sequence<kCount>());

}  // namespace

const ShuffleKernel* shuffles() noexcept { return kKernels.data(); }

void translate(const Translation& translation, const std::uint8_t* from, std::uint8_t* to,
               std::size_t size) noexcept {
  using V = Ops::V;
  std::size_t i = 0;
  if (translation.kind == Translation::Kind::grouped) {
    for (; i + 16 <= size; i += 16) {
      const V code = Ops::load(from + i), within = code & 7, group = (code >> 3) & 15;
      const V is_upper = reinterpret_cast<V>(code >= 128);
      const V base = (Ops::lookup(translation.base, group) & ~is_upper) |
                     (Ops::lookup(translation.base + 16, group) & is_upper);
      const V mask = (Ops::lookup(translation.mask, group) & ~is_upper) |
                     (Ops::lookup(translation.mask + 16, group) & is_upper);
      const V tiny = Ops::lookup(translation.small, within | (is_upper & 8));
      const V is_tiny = reinterpret_cast<V>(group == 0);
      Ops::store(to + i, (tiny & is_tiny) | ((base + (within & mask)) & ~is_tiny));
    }
  } else if (translation.kind == Translation::Kind::separable) {
    for (; i + 16 <= size; i += 16) {
      const V code = Ops::load(from + i);
      Ops::store(to + i, Ops::lookup(translation.low, code & 15) |
                             Ops::lookup(translation.high, code >> 4));
    }
  }
  for (; i < size; ++i) to[i] = translation.table[from[i]];
}

}  // namespace fp4moe::kernels::cpu::avx2
