// Tagged words in global memory: how blocks of one launch exchange float32 values. The lower half is
// the value, the upper half the epoch (number of the launch). A reader spins until it sees its own
// epoch. This needs no fence and no counter, and the result does not depend on who comes first.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/ptx.cuh"

namespace fp4moe::kernels::cuda::sm90::decode {

__device__ inline void store_tagged(std::uint64_t* at, float value, std::uint32_t epoch) {
  st_relaxed(at, std::uint64_t{epoch} << 32 | __float_as_uint(value));
}
// Two words at different addresses.
__device__ inline ulonglong2 ld_relaxed_both(const std::uint64_t* first,
                                             const std::uint64_t* second) {
  return {ld_relaxed(first), ld_relaxed(second)};
}
__device__ inline bool has_epoch(std::uint64_t word, std::uint32_t epoch) {
  return static_cast<std::uint32_t>(word >> 32) == epoch;
}
__device__ inline float value_of(std::uint64_t word) {
  return __uint_as_float(static_cast<std::uint32_t>(word));
}
// `words` were loaded from the addresses. Loads them again until both have the epoch.
__device__ inline float2 spin_until(ulonglong2 words, const std::uint64_t* first,
                                    const std::uint64_t* second, std::uint32_t epoch) {
  while (!has_epoch(words.x, epoch)) words.x = ld_relaxed(first);
  while (!has_epoch(words.y, epoch)) words.y = ld_relaxed(second);
  return {value_of(words.x), value_of(words.y)};
}

}  // namespace fp4moe::kernels::cuda::sm90::decode
