#include <string_view>
#include <utility>

#include "fp4moe/moe/cuda/device_session.hpp"
#include "fp4moe/runtime/layer.hpp"

namespace fp4moe::runtime {
namespace {

// The work of a layer that only the host does; empty: none.
std::string_view host_work(const LayerOptions& options, const LayerFacts& facts) {
  if (options.ranks != nullptr && options.ranks->size() > 1) return "sums over ranks";
  if (!options.physical_experts.empty()) return "copies of experts";
  if (options.shared) return "shared experts";
  if (facts.weight_on_input) return "weights on the input";
  if (facts.router.scale_on_output && facts.router.scale != 1.0) return "a factor of the output";
  return {};
}

}  // namespace

Result<moe::cuda::DeviceSession> MoeLayer::device_session() const {
  if (const auto fine = check_processed(); !fine) return fine.why();
  std::shared_ptr<const moe::cuda::DeviceLayer> layer = moe::cuda::device_layer(experts_);
  if (layer == nullptr)
    return usage("layer.device", "the layer's weights are not on a device")
        .expects("engine cuda with numerics that it computes", experts_->engine())
        .try_this("name the engine, or give tokens in the host's memory");
  if (const std::string_view what = host_work(options_, facts_); !what.empty())
    return usage("layer.device", "unsupported for tokens on a device")
        .expects("a layer without it", what)
        .try_this("give tokens in the host's memory");
  moe::cuda::SessionOptions options{.expert_map = expert_map_};
  if (!facts_.no_routing) options.router = facts_.router;
  return moe::cuda::DeviceSession::make(std::move(layer), std::move(options));
}

}  // namespace fp4moe::runtime
