#include "fp4moe/kernels/cpu/shuffle_list.hpp"

#include <iterator>

#include "fp4moe/kernels/cpu/portable/shuffle.hpp"
#include "fp4moe/kernels/cpu/shuffle_patterns.hpp"
#if defined(__aarch64__)
#include "fp4moe/kernels/cpu/neon/shuffle.hpp"
#elif defined(__x86_64__)
#include "fp4moe/kernels/cpu/avx2/shuffle.hpp"
#include "fp4moe/kernels/cpu/avx512/shuffle.hpp"
#endif

namespace fp4moe::kernels::cpu {
namespace {

constexpr ShuffleSet kSets[] = {
#if defined(__aarch64__)
    {"neon/shuffle", {CpuFeature::neon}, neon::shuffles, neon::translate, 16, 32, true, true},
#elif defined(__x86_64__)
    {"avx512/shuffle",
     {CpuFeature::avx2, CpuFeature::avx512},
     avx512::shuffles,
     portable::translate,
     8,
     8,
     false,
     false},
    {"avx2/shuffle", {CpuFeature::avx2}, avx2::shuffles, avx2::translate, 8, 8, false, false},
#endif
    {"portable/shuffle", {}, portable::shuffles, portable::translate, 8, 8, false, false},
};

}  // namespace

const ShuffleKernel* ShuffleSet::find(const LanePattern& pattern) const {
  for (std::size_t i = 0; i < std::size(kShufflePatterns); ++i)
    if (kShufflePatterns[i] == pattern) return kernels() + i;
  return nullptr;
}

std::span<const ShuffleSet> shuffle_sets() { return kSets; }

}  // namespace fp4moe::kernels::cpu
