// A call of a layer, inside of it.
#pragma once
#include "fp4moe/moe/cuda/device_layer.hpp"

namespace fp4moe::moe::cuda {

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
