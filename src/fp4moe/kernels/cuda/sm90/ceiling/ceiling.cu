// The ceilings of the device: read bandwidth, and tensor core throughput with random numbers. Zeros or
// equal numbers would take less power and give higher clocks.
//
//   kernel, role                                                                               time ─►
//
//   read: every thread         8 loads of 16 bytes ─► xor ─► 8 loads ─► xor ─► ...
//
//   rate: all threads          noise ─► tokens in shared memory ─┐ __syncthreads
//         warpgroups (4)       noise ─► weights in registers     ▼ wgmma x 4 ─► wait ─► wgmma x 4 ─► ...
//   rate, sm80: warps (16)     noise ─► weights and tokens in registers ─► mma.sync x 64 ─► ...
#include "fp4moe/kernels/cuda/sm90/ceiling/params.hpp"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#ifndef FP4MOE_SM80
#include "fp4moe/kernels/cuda/sm90/wgmma.cuh"
#endif

namespace fp4moe::kernels::cuda::sm90 {
namespace {

inline constexpr std::uint32_t kInFlight = 8;  // loads per thread

__device__ uint4 ld_nc_no_allocate(const uint4* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

// Two bf16 numbers between 0.5 and 2, either sign.
__device__ std::uint32_t noise(std::uint32_t seed) {
  seed = (seed ^ 61u ^ seed >> 16) * 9u;
  seed = (seed ^ seed >> 4) * 0x27D4EB2Du;
  return (seed ^ seed >> 15) & 0x80FF80FFu | 0x3F003F00u;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kReadThreads, kReadBlocks)
    FP4MOE_KERNEL(read)(const __grid_constant__ ReadParams p) {
  pdl_launch_dependents();
  pdl_wait();
  const auto* data = reinterpret_cast<const uint4*>(p.data);
  const std::uint64_t count = p.bytes / 16, step = std::uint64_t{gridDim.x} * kReadThreads;
  std::uint64_t at = std::uint64_t{blockIdx.x} * kReadThreads + threadIdx.x;
  std::uint32_t sum = 0;
  for (; at + (kInFlight - 1) * step < count; at += kInFlight * step) {
    uint4 v[kInFlight];
#pragma unroll
    for (std::uint32_t i = 0; i < kInFlight; ++i) v[i] = ld_nc_no_allocate(data + at + i * step);
#pragma unroll
    for (std::uint32_t i = 0; i < kInFlight; ++i) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  }
  for (; at < count; at += step) {
    const uint4 v = ld_nc_no_allocate(data + at);
    sum ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (p.bytes == 0) *p.sink = sum;
}

#ifdef FP4MOE_SM80

// Every warp: 16 rows, 128 tokens and 64 columns a step, all from registers.
extern "C" __global__ void __launch_bounds__(kRateThreads, 1)
    FP4MOE_KERNEL(rate)(const __grid_constant__ RateParams p) {
  const std::uint32_t seed = threadIdx.x * 8 + 77777;
  const AFragment f{noise(seed), noise(seed + 1), noise(seed + 2), noise(seed + 3)};
  const std::uint32_t b[] = {noise(seed + 4), noise(seed + 5)};
  float sums[kRateTokens / 8][4] = {};
  for (std::uint32_t step = 0; step < p.steps; ++step) {
#pragma unroll
    for (std::uint32_t k = 0; k < 4; ++k) {
#pragma unroll
      for (float(&eight)[4] : sums) mma_m16n8k16(eight, f, b[k % 2], b[1 - k % 2]);
    }
  }
  float sum = 0.0f;
  for (const float(&eight)[4] : sums) sum += eight[0] + eight[1] + eight[2] + eight[3];
  if (p.steps == 0) *p.sink = sum;
}

#else

// Every warpgroup: 64 rows from registers, 128 tokens from shared memory, 64 columns a step.
extern "C" __global__ void __launch_bounds__(kRateThreads, 1)
    FP4MOE_KERNEL(rate)(const __grid_constant__ RateParams p) {
  __shared__ __align__(1024) std::uint32_t tokens[kRateTokens * 32];
  pdl_launch_dependents();
  pdl_wait();
  for (std::uint32_t i = threadIdx.x; i < kRateTokens * 32; i += kRateThreads) tokens[i] = noise(i);
  fence_proxy_async();
  __syncthreads();
  const std::uint32_t at = descriptor_low(shared_address(tokens)), seed = threadIdx.x * 4 + 77777;
  AFragment f{noise(seed), noise(seed + 1), noise(seed + 2), noise(seed + 3)};
  float sums[kRateTokens / 2];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  for (std::uint32_t step = 0; step < p.steps; ++step) {
    wgmma_fence();
    wgmma<kRateTokens>(sums, f, at);
    wgmma<kRateTokens>(sums, f, at + 2);
    wgmma<kRateTokens>(sums, f, at + 4);
    wgmma<kRateTokens>(sums, f, at + 6);
    wgmma_commit_group();
    wgmma_wait();
    keep_until_here(f);
  }
  float sum = 0.0f;
#pragma unroll
  for (const float part : sums) sum += part;
  if (p.steps == 0) *p.sink = sum;
}

#endif

}  // namespace fp4moe::kernels::cuda::sm90
