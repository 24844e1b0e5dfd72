// The kernels of a layer, and one call of it.
#pragma once
#include <map>

#include "fp4moe/moe/cuda/device_layer.hpp"
#include "fp4moe/moe/cuda/plan.hpp"

namespace fp4moe::moe::cuda {

struct DeviceLayer::Kernels {
  kernels::cuda::Function prepare = nullptr, gather = nullptr, activate = nullptr,
                          combine_f32 = nullptr, combine_bf16 = nullptr;
  kernels::cuda::Function route_gather = nullptr;  // of sm80
  kernels::cuda::Function decode_generic = nullptr, decode_bf16 = nullptr,
                          decode_quantized = nullptr;
  std::map<std::uint32_t, kernels::cuda::Function> grouped_gemms{};  // by tokens of a tile
  kernels::cuda::Function gather_fp8 = nullptr, quantize_hidden = nullptr;
  // The same, for tokens with one scale each and with block scales.
  std::map<std::uint32_t, kernels::cuda::Function> fp8_token_gemms{}, fp8_block_gemms{};
};

// One call: the parameters that its kernels share, and the stream.
struct DeviceLayer::Step {
  const DeviceCall& given;
  const Workspace& space;
  const kernels::cuda::Current& inside;
  kernels::cuda::Stream stream = nullptr;
  CallPlan plan{};
  sm90::CallParams call{};
  sm90::RouteParams route{};  // columns 0: nothing to route
};

}  // namespace fp4moe::moe::cuda
