// Calls of a layer, for callers whose tokens are on the device. The session owns the router, the
// expert map and the workspaces.
//
//   auto session = DeviceSession::make(layer, {.router = options});
//   session->reserve(8192);                            // or at the first call that needs it
//   session->run({.in = {.x = x, .logits = logits}, .out = out}, stream);
//
// A call enqueues and returns. One that fits into what is reserved allocates nothing, so it can be
// captured into a graph; memory that was reserved once stays until the session ends, so graphs stay
// valid. Calls of one session use the same workspace: on several streams, the caller orders them.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/moe/cuda/device_layer.hpp"
#include "fp4moe/moe/experts.hpp"

namespace fp4moe::moe::cuda {

// The layer that an engine's experts compute with; null where they are not on a device.
std::shared_ptr<const DeviceLayer> device_layer(const std::shared_ptr<const Experts>& experts);
const DeviceLayer* device_layer(const Experts* experts);

struct SessionOptions {
  // Options of the router; none: calls bring ids. run() reports a router that the device does not
  // support.
  std::optional<routing::RouterOptions> router{};
  std::vector<std::int32_t> expert_map{};  // the local position of each global expert or -1
};

struct SessionCall {
  bool is_on_device = false;  // see DeviceCall
  Tokens in{};                // run() reads logits, apply() ids and weights
  MutableRows out{};
};

class DeviceSession {
 public:
  // Errors: those of the device.
  static Result<DeviceSession> make(std::shared_ptr<const DeviceLayer> layer,
                                    SessionOptions options);

  // Reserves memory for calls of up to `tokens` tokens. Errors: cuda.limits, cuda.memory.
  Result<Done> reserve(std::uint64_t tokens, std::uint64_t top_k);

  // Errors: those of DeviceLayer::apply, and of reserve() for a call that nothing was reserved for.
  Result<Done> apply(const SessionCall& call, kernels::cuda::Stream stream);
  // Errors: also cuda.routing, if the device does not support the router.
  Result<Done> run(const SessionCall& call, kernels::cuda::Stream stream);

  const DeviceLayer& layer() const { return *layer_; }
  std::uint64_t workspace_bytes() const;

 private:
  DeviceSession() = default;
  Result<const Workspace*> space_for(std::uint64_t tokens, std::uint64_t top_k);
  Result<Done> enqueue(DeviceCall call, std::uint64_t top_k, kernels::cuda::Stream stream);

  std::shared_ptr<const DeviceLayer> layer_{};
  std::optional<DeviceRouter> router_{};
  std::optional<Error> no_router_{};
  kernels::cuda::Memory map_{};
  std::uint64_t map_size_ = 0;
  std::vector<Workspace> spaces_{};  // ascending; the last is the largest
};

}  // namespace fp4moe::moe::cuda
