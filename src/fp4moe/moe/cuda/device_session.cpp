#include "fp4moe/moe/cuda/device_session.hpp"

#include <algorithm>
#include <bit>
#include <span>
#include <string_view>
#include <utility>

namespace fp4moe::moe::cuda {

using kernels::cuda::Stream;

namespace {

// The device has no such router, or it is a function of the model.
bool is_router_missing(std::string_view error) {
  return error == "cuda.routing" || error == "cuda.limits" || error == "routing.method";
}

}  // namespace

Result<DeviceSession> DeviceSession::make(std::shared_ptr<const DeviceLayer> layer,
                                          SessionOptions options) {
  DeviceSession result;
  result.layer_ = std::move(layer);
  const kernels::cuda::Device& device = result.layer_->device();
  if (options.router) {
    Result<DeviceRouter> router =
        DeviceRouter::make(result.layer_->shared_device(), *options.router);
    if (router) {
      result.router_ = std::move(*router);
    } else if (is_router_missing(router.why().id)) {
      result.no_router_ = router.why();  // apply() with ids still works
    } else {
      return router.why();
    }
  }
  if (!options.expert_map.empty()) {
    const auto bytes = std::as_bytes(std::span<const std::int32_t>(options.expert_map));
    Result<kernels::cuda::Memory> memory = device.allocate(bytes.size());
    if (!memory) return memory.why();
    result.map_ = std::move(*memory);
    result.map_size_ = options.expert_map.size();
    if (const auto sent = device.upload(result.map_.data(), bytes, nullptr); !sent)
      return sent.why();
    if (const auto done = device.wait(nullptr); !done) return done.why();
  }
  return result;
}

std::uint64_t DeviceSession::workspace_bytes() const {
  std::uint64_t sum = 0;
  for (const Workspace& space : spaces_) sum += space.bytes();
  return sum;
}

Result<Done> DeviceSession::reserve(std::uint64_t tokens, std::uint64_t top_k) {
  const auto space = space_for(tokens, top_k);
  if (!space) return space.why();
  return Done{};
}

// Sizes grow by powers of two: the last workspace is more than half of all reserved memory.
Result<const Workspace*> DeviceSession::space_for(std::uint64_t tokens, std::uint64_t top_k) {
  for (const Workspace& space : spaces_)
    if (space.limits().tokens >= tokens && space.limits().top_k >= top_k) return &space;
  constexpr std::uint64_t kMin = 64, kMax = std::uint64_t{1} << 40;
  const std::uint64_t some = spaces_.empty() ? kMin : spaces_.back().limits().tokens;
  const std::uint64_t max_top_k = spaces_.empty() ? top_k : spaces_.back().limits().top_k;
  WorkspaceLimits limits{.tokens = std::bit_ceil(std::clamp(tokens, some, kMax)),
                         .top_k = std::max(top_k, max_top_k)};
  if (!layer_->workspace_bytes(limits)) limits.tokens = std::max(tokens, some);
  Result<Workspace> result = layer_->reserve(limits);
  if (!result && limits.tokens > tokens) {
    limits.tokens = tokens;  // memory for exactly this, if there is no more
    result = layer_->reserve(limits);
  }
  if (!result) {
    Error why = result.why();
    if (why.remedy.empty())
      why.remedy = "reserve memory for the largest call before a stream is captured";
    return why;
  }
  spaces_.push_back(std::move(*result));
  return &spaces_.back();
}

Result<Done> DeviceSession::enqueue(DeviceCall call, std::uint64_t top_k, Stream stream) {
  const auto space = space_for(call.in.x.rows, top_k);
  if (!space) return space.why();
  if (map_size_ != 0) call.expert_map = {map_.as<const std::int32_t>(), map_size_};
  return layer_->apply(call, **space, stream);
}

Result<Done> DeviceSession::apply(const SessionCall& call, Stream stream) {
  return enqueue({.is_on_device = call.is_on_device,
                  .in = {{.x = call.in.x,
                          .top_k = call.in.top_k,
                          .ids = call.in.ids,
                          .weights = call.in.weights}},
                  .out = call.out},
                 call.in.top_k, stream);
}

Result<Done> DeviceSession::run(const SessionCall& call, Stream stream) {
  if (!router_) {
    if (no_router_) return *no_router_;
    return usage("cuda.routing", "the session has no router")
        .expects("ids and weights", "logits")
        .try_this("route first and call apply");
  }
  return enqueue({.is_on_device = call.is_on_device,
                  .in = {{.x = call.in.x, .logits = call.in.logits}},
                  .router = &*router_,
                  .out = call.out},
                 router_->top_k(), stream);
}

}  // namespace fp4moe::moe::cuda
