// Low-rank additions: A x by a warp, a row of B times that by a lane.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/params.hpp"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"

namespace fp4moe::kernels::cuda::sm90 {

// The row of x that a slot reads.
__device__ inline std::uint64_t token_of(const Call& call, std::int32_t slot) {
  const auto number = static_cast<std::uint32_t>(slot);
  return call.counts != nullptr ? number : number / call.top_k;
}

// Null: none.
__device__ inline const DeviceLoraExpert* adapter_of(const DeviceLora& lora, const Call& call,
                                                     std::uint32_t slot, std::uint32_t expert) {
  if (lora.pairs == nullptr || lora.adapters == nullptr) return nullptr;
  const std::int32_t adapter = lora.adapters[token_of(call, static_cast<std::int32_t>(slot))];
  if (adapter < 0) return nullptr;
  return lora.pairs + static_cast<std::uint64_t>(adapter) * lora.experts + expert;
}

// Row r of A times `values(column)`, in every lane of the warp.
template <class Values>
__device__ inline float low_input(const DeviceLowRank& pair, std::uint32_t r, std::uint32_t columns,
                                  const Values& values) {
  const float* a = pair.a + r * pair.a_stride;
  float sum = 0.0f;
  for (std::uint32_t c = threadIdx.x % 32; c < columns; c += 32) sum += a[c] * values(c);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kFullWarp, sum, step);
  return sum;
}

// Row `output` of B times `low`, [rank].
__device__ inline float low_output(const DeviceLowRank& pair, std::uint32_t output,
                                   const float* low) {
  const float* b = pair.b + output * pair.b_stride;
  float sum = 0.0f;
  for (std::uint32_t r = 0; r < pair.rank; ++r) sum += b[r] * low[r];
  return sum;
}

}  // namespace fp4moe::kernels::cuda::sm90
