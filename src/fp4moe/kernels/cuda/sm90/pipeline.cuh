// A pipeline of stages in shared memory: the position in the ring, and the mbarriers of its stages.
//
//   producer   waits for empty[index] with phase ^ 1, fills the stage, arrives at full[index]
//   consumer   waits for full[index] with phase, reads the stage, arrives at empty[index]
#pragma once
#include <cstdint>

namespace fp4moe::kernels::cuda::sm90 {

// A position in a ring of `stages` stages. `phase` is the parity of completed rounds.
struct PipelineState {
  std::uint32_t index = 0, phase = 0;
  __device__ void advance(std::uint32_t stages) {
    if (++index < stages) return;
    index = 0;
    phase ^= 1;
  }
};

// An mbarrier counts arrivals and bytes. A wait names the parity of the phase that it waits for;
// the first phase has parity 0.
__device__ inline void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\n"
      "bra again;\n"
      "ready:\n"
      "}\n" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

}  // namespace fp4moe::kernels::cuda::sm90
