// Tagged words in global memory: how blocks of one launch exchange float32 values. The lower half is
// the value, the upper half the epoch (number of the launch). A reader spins until it sees its own
// epoch. This needs no fence and no counter, and the result does not depend on who comes first.
#pragma once
#include <cstdint>

namespace fp4moe::kernels::cuda::sm90::decode {

__device__ inline void store_tagged(std::uint64_t* at, float value, std::uint32_t epoch) {
  const std::uint64_t word = std::uint64_t{epoch} << 32 | __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}
__device__ inline std::uint64_t load_relaxed(const std::uint64_t* at) {
  std::uint64_t word;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
  return word;
}
// Two neighbours. Each is read whole, in any order.
__device__ inline ulonglong2 load_relaxed_x2(const std::uint64_t* at) {
  ulonglong2 words;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(words.x), "=l"(words.y)
               : "l"(at)
               : "memory");
  return words;
}
// Two words at different addresses.
__device__ inline ulonglong2 load_relaxed(const std::uint64_t* first, const std::uint64_t* second) {
  return {load_relaxed(first), load_relaxed(second)};
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
  while (!has_epoch(words.x, epoch)) words.x = load_relaxed(first);
  while (!has_epoch(words.y, epoch)) words.y = load_relaxed(second);
  return {value_of(words.x), value_of(words.y)};
}

}  // namespace fp4moe::kernels::cuda::sm90::decode
