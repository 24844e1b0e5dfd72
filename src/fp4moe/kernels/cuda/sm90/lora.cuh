// LoRA additions B (A x): a warp computes a row of A x, a lane a row of B times that.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90 {

// The row of x that an assignment reads.
__device__ inline std::uint64_t token_of(const CallParams& call, std::int32_t assignment) {
  const auto number = static_cast<std::uint32_t>(assignment);
  return call.counts != nullptr ? number : number / call.top_k;
}

// The matrices of an assignment's adapter; null: none.
__device__ inline const DeviceLoraExpert* find_adapter(const LoraParams& lora,
                                                       const CallParams& call,
                                                       std::uint32_t assignment,
                                                       std::uint32_t expert) {
  if (lora.pairs == nullptr || lora.adapters == nullptr) return nullptr;
  const std::int32_t adapter = lora.adapters[token_of(call, static_cast<std::int32_t>(assignment))];
  if (adapter < 0) return nullptr;
  return lora.pairs + static_cast<std::uint64_t>(adapter) * lora.experts + expert;
}

// Row r of A times `values(column)`, in every lane of the warp.
template <class Values>
__device__ inline float lora_down_project(const DeviceLowRank& pair, std::uint32_t r,
                                          std::uint32_t columns, const Values& values) {
  const float* a = pair.a + r * pair.a_stride;
  float sum = 0.0f;
  for (std::uint32_t c = threadIdx.x % 32; c < columns; c += 32) sum += a[c] * values(c);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kFullWarp, sum, step);
  return sum;
}

// Row `output` of B times `low`, [rank].
__device__ inline float lora_up_project(const DeviceLowRank& pair, std::uint32_t output,
                                        const float* low) {
  const float* b = pair.b + output * pair.b_stride;
  float sum = 0.0f;
  for (std::uint32_t r = 0; r < pair.rank; ++r) sum += b[r] * low[r];
  return sum;
}

}  // namespace fp4moe::kernels::cuda::sm90
