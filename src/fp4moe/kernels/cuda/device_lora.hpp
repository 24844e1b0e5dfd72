// The matrices of low-rank additions on a device, all float32: what callers give and kernels read.
#pragma once
#include <cstdint>

namespace fp4moe::kernels::cuda {

struct DeviceLowRank {
  const float* a = nullptr;  // [rank, inputs], `a_stride`
  const float* b = nullptr;  // [outputs, rank], `b_stride`
  std::uint32_t rank = 0;
  std::uint64_t a_stride = 0, b_stride = 0;
};
struct DeviceLoraExpert {
  DeviceLowRank gate{}, up{}, down{};
};

}  // namespace fp4moe::kernels::cuda
