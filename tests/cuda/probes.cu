#include "probes.hpp"

namespace fp4moe::kernels::cuda {

extern "C" __global__ void fp4moe_test_scale(__grid_constant__ const ScaleParams params) {
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < params.count) params.to[i] = params.from[i] * params.factor + params.add;
}

extern "C" __global__ void fp4moe_test_meet(__grid_constant__ const MeetParams params) {
  extern __shared__ std::uint32_t buffer[];
  if (threadIdx.x != 0) return;
  atomicAdd(params.counter, 1u);
  do {
    buffer[0] = atomicAdd(params.counter, 0u);
  } while (buffer[0] < gridDim.x);
  params.seen[blockIdx.x] = buffer[0];
}

}  // namespace fp4moe::kernels::cuda
