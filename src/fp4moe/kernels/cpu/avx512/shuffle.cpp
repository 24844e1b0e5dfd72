#include "fp4moe/kernels/cpu/avx512/shuffle.hpp"

#include "fp4moe/kernels/cpu/shuffle_tiles.hpp"
#include "fp4moe/kernels/cpu/x86_shuffle_ops.hpp"

namespace fp4moe::kernels::cpu::avx512 {
namespace {

using Ops = X86ShuffleOps;
constexpr std::size_t kCount = std::size(kShufflePatterns);
constexpr auto kKernels = make_shuffles<Ops>(std::make_index_sequence<kCount>());

}  // namespace

const ShuffleKernel* shuffles() noexcept { return kKernels.data(); }

}  // namespace fp4moe::kernels::cpu::avx512
