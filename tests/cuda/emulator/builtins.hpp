// What CUDA C++ has beyond C++, for a CPU: sources of kernels are compiled with this file in front of
// them, and block.hpp runs them. A block is a thread of the system, so its shared memory is
// thread_local; its threads are fibers.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include <math.h>  // and its names outside of std

#include "cuda/emulator/block.hpp"

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names
#define __device__
#define __host__
#define __global__
#define __grid_constant__
#define __noinline__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ thread_local
#define __align__(bytes) __attribute__((aligned(bytes)))

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};

#define threadIdx (fp4moe::emulator::Block::current().thread_index())
#define blockIdx (fp4moe::emulator::Block::current().block_index())
#define blockDim (fp4moe::emulator::Block::current().block_size())
#define gridDim (fp4moe::emulator::Block::current().grid_size())

using std::max;
using std::min;
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a < b ? b : a; }

inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
// This file is compiled without contraction: an operation is one rounding.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline float normcdff(float x) { return 0.5f * std::erfcf(-x * 0.70710678f); }
using std::isfinite;
using std::isnan;

inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(std::uint64_t{a} * b >> 32);
}
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(unsigned x) { return x == 0 ? 0 : std::countr_zero(x) + 1; }
inline int __popc(unsigned x) { return std::popcount(x); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return by % 32 == 0 ? high : high << by % 32 | low >> (32 - by % 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return by % 32 == 0 ? low : low >> by % 32 | high << (32 - by % 32);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned select) {
  const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i)
    result |= static_cast<unsigned>(bytes >> (select >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
  return result;
}

inline unsigned __vmaxu2(unsigned a, unsigned b) {
  return std::max(a & 0xFFFFu, b & 0xFFFFu) | std::max(a & 0xFFFF0000u, b & 0xFFFF0000u);
}
// The position of the `n`th set bit, from position `base` up.
inline unsigned __fns(unsigned mask, unsigned base, int n) {
  for (; base < 32; ++base)
    if ((mask >> base & 1) != 0 && --n == 0) return base;
  return ~0u;
}

template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
inline void __threadfence() { fp4moe::emulator::fence(); }
inline unsigned atomicAdd(unsigned* to, unsigned by) { return fp4moe::emulator::add(to, by); }
template <class T>
T atomicMax(T* to, T value) {
  return fp4moe::emulator::max(to, value);
}

inline void __syncthreads() { fp4moe::emulator::Block::current().sync(); }
inline void __syncwarp() { fp4moe::emulator::Block::current().sync_warp(); }

// All lanes call: masks are those of whole warps.
template <class T>
T shuffled(const T& value, unsigned from) {
  return fp4moe::emulator::Block::current().exchange(value)[from];
}
inline unsigned emulated_lane() { return threadIdx.x % 32; }
template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return shuffled(value, static_cast<unsigned>(from) % 32);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int by) {
  return shuffled(value, emulated_lane() ^ static_cast<unsigned>(by));
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned by) {
  return shuffled(value, emulated_lane() >= by ? emulated_lane() - by : emulated_lane());
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned by) {
  return shuffled(value, emulated_lane() + by < 32 ? emulated_lane() + by : emulated_lane());
}
inline unsigned __ballot_sync(unsigned, bool is) {
  const auto all = fp4moe::emulator::Block::current().exchange(is);
  unsigned result = 0;
  for (unsigned lane = 0; lane < 32; ++lane) result |= (all[lane] ? 1u : 0u) << lane;
  return result;
}
inline bool __all_sync(unsigned mask, bool is) { return __ballot_sync(mask, is) == 0xFFFFFFFFu; }
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
  unsigned sum = 0;
  for (const unsigned one : fp4moe::emulator::Block::current().exchange(value)) sum += one;
  return sum;
}
inline unsigned __reduce_or_sync(unsigned, unsigned value) {
  unsigned result = 0;
  for (const unsigned one : fp4moe::emulator::Block::current().exchange(value)) result |= one;
  return result;
}
template <class T>
unsigned __match_any_sync(unsigned, T value) {
  const auto all = fp4moe::emulator::Block::current().exchange(value);
  unsigned result = 0;
  for (unsigned lane = 0; lane < 32; ++lane) result |= (all[lane] == value ? 1u : 0u) << lane;
  return result;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  return std::ranges::max(fp4moe::emulator::Block::current().exchange(value));
}
// NOLINTEND(bugprone-reserved-identifier)
