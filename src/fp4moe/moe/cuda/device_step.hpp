// What is inside a layer, and a call of it.
#pragma once
#include <array>
#include <iterator>

#include "fp4moe/moe/cuda/device_layer.hpp"
#include "fp4moe/moe/cuda/plan.hpp"

namespace fp4moe::moe::cuda {

struct DeviceLayer::Kernels {
  kernels::cuda::Function prepare = nullptr, gather = nullptr, activate = nullptr,
                          combine = nullptr, combine_rounded = nullptr;
  kernels::cuda::Function decode = nullptr, decode_plain = nullptr, decode_quantised = nullptr;
  std::array<kernels::cuda::Function, std::size(sm90::kTileBounds)> products{};
};

// One call on its way: what kernels are given, and where they run.
struct DeviceLayer::Step {
  const DeviceCall& given;
  const Workspace& space;
  const kernels::cuda::Current& inside;
  kernels::cuda::Stream stream = nullptr;
  CallPlan plan{};
  sm90::Call call{};
  sm90::RouteParams route{};  // columns 0: nothing to route
};

}  // namespace fp4moe::moe::cuda
