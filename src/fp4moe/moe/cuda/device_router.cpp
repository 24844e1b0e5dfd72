#include "fp4moe/moe/cuda/device_router.hpp"

#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/kernels/cuda/sm90/route/params.hpp"
#include "fp4moe/moe/routing/rows.hpp"

namespace fp4moe::moe::cuda {

namespace sm90 = kernels::cuda::sm90;

namespace {

using routing::RouterOptions;

// The part of a router that the kernel does not support; empty: it supports all.
std::string_view unsupported(const RouterOptions& options) {
  if (options.method == routing::Method::simulated) return "simulated routing";
  if (options.method == routing::Method::llama4) return "weights that multiply the input";
  if (!options.hash_table.empty()) return "a table of token ids";
  if (options.zero_experts != 0) return "zero experts";
  if (options.shared_experts != 0) return "shared experts among the routed ones";
  return {};
}

}  // namespace

Result<Done> DeviceRouter::check(const RouterOptions& options) {
  if (const std::string_view missing = unsupported(options); !missing.empty())
    return error(ErrorCode::unavailable, "cuda.routing",
                 "routing method not supported on the device")
        .expects("a method that reads logits alone", missing)
        .try_this("route first, and give ids and weights");
  if (options.experts > sm90::kMaxExperts || options.top_k > sm90::kMaxTopK)
    return usage("cuda.limits", "too many experts or choices")
        .expects(fmt::format("up to {} experts and {} choices", sm90::kMaxExperts, sm90::kMaxTopK),
                 fmt::format("{} and {}", options.experts, options.top_k));
  return Done{};
}

Result<DeviceRouter> DeviceRouter::make(const std::shared_ptr<const kernels::cuda::Device>& device,
                                        const RouterOptions& options) {
  const Result<routing::Router> router = routing::Router::make(options);
  if (!router) return router.why();
  if (const auto fine = check(options); !fine) return fine.why();
  const routing::RowPlan plan = router->plan();
  DeviceRouter result;
  sm90::RouteParams params{.columns = static_cast<std::uint32_t>(plan.columns),
                           .top_k = static_cast<std::uint32_t>(plan.top_k),
                           .key = plan.key,
                           .weight = plan.weight,
                           .normal = plan.normalization,
                           .groups = static_cast<std::uint32_t>(plan.groups),
                           .chosen_groups = static_cast<std::uint32_t>(plan.chosen_groups),
                           .adds_two_per_group = plan.adds_two_per_group ? 1U : 0U,
                           .scores_in_logits_type = plan.scores_in_logits_dtype ? 1U : 0U,
                           .weights_in_bf16 = options.weights_in_bf16 ? 1U : 0U,
                           .scale = static_cast<float>(plan.scale)};
  if (!plan.bias.empty()) {
    Result<kernels::cuda::Memory> memory = device->allocate(plan.bias.size_bytes());
    if (!memory) return memory.why();
    result.bias_ = std::move(*memory);
    params.bias = result.bias_.as<const float>();
    const auto sent = device->upload(result.bias_.data(), std::as_bytes(plan.bias), nullptr);
    if (!sent) return sent.why();
    if (const auto done = device->wait(nullptr); !done) return done.why();
  }
  result.params_ = std::make_shared<const sm90::RouteParams>(params);
  return result;
}

std::uint64_t DeviceRouter::columns() const { return params_->columns; }
std::uint64_t DeviceRouter::top_k() const { return params_->top_k; }

}  // namespace fp4moe::moe::cuda
