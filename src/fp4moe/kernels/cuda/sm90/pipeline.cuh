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

}  // namespace fp4moe::kernels::cuda::sm90
