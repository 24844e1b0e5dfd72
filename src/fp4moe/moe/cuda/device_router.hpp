// A router whose kernel runs on the device: the options of moe::routing::Router, with the bias in
// device memory. Any number of calls and threads may use it.
#pragma once
#include <cstdint>
#include <memory>

#include "fp4moe/base/result.hpp"
#include "fp4moe/kernels/cuda/driver.hpp"
#include "fp4moe/moe/routing/router.hpp"

namespace fp4moe::kernels::cuda::sm90 {
struct RouteParams;
}

namespace fp4moe::moe::cuda {

class DeviceRouter {
 public:
  // Errors: those of Router::make; cuda.routing (not supported on the device: tables of token ids,
  // zero and shared experts, simulated routing, weights on the input as Llama4); cuda.limits (too
  // many experts or choices); those of the device.
  static Result<DeviceRouter> make(const std::shared_ptr<const kernels::cuda::Device>& device,
                                   const routing::RouterOptions& options);
  // False if `make` would say cuda.routing or cuda.limits.
  static Result<Done> check(const routing::RouterOptions& options);

  std::uint64_t columns() const;
  std::uint64_t top_k() const;
  // All but logits, tokens, ids and weights.
  const kernels::cuda::sm90::RouteParams& params() const { return *params_; }

 private:
  DeviceRouter() = default;
  std::shared_ptr<const kernels::cuda::sm90::RouteParams> params_{};
  kernels::cuda::Memory bias_{};
};

}  // namespace fp4moe::moe::cuda
