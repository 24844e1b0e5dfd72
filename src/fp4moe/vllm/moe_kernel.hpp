// A kernel as vLLM's oracles make one: exchange and experts put together, modular or monolithic. It
// computes the backend's numbers with the engines of this machine, whatever device the backend is
// for.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/runtime/layer.hpp"
#include "fp4moe/vllm/kernel_weights.hpp"
#include "fp4moe/vllm/moe_config.hpp"
#include "fp4moe/vllm/moe_quant_config.hpp"

namespace fp4moe::vllm {

struct KernelOptions {
  runtime::EngineKind engine = runtime::EngineKind::automatic;
  std::size_t threads = 0;  // 0: all that this process may use
  std::shared_ptr<ThreadPool> pool{};
  runtime::SharedExperts shared_experts{};       // added to the output
  moe::exchange::Communicator* ranks = nullptr;  // those with the other experts
  moe::exchange::ExchangeKind exchange = moe::exchange::ExchangeKind::local;
};

// Rows of `hidden_states` and `out` have the layer's hidden size, or the size that the backend
// rounds it to; columns beyond the layer's are not read, and written as zeros.
class MoeKernel {
 public:
  // The class of experts decides, as in the reference.
  bool is_monolithic() const { return experts_cls_->kind == oracle::Kind::monolithic; }

  // Modular: given experts and their weights, [tokens, top_k]. Errors: vllm.kind, kernel.*, rows.*.
  Result<Done> apply(const moe::ConstRows& hidden_states, std::span<const float> topk_weights,
                     std::span<const std::int32_t> topk_ids, const moe::MutableRows& out);
  // Monolithic: given the router's logits, [tokens, experts]. Errors: vllm.kind, layer.monolithic.
  Result<Done> apply_monolithic(const moe::ConstRows& hidden_states,
                                const moe::ConstRows& router_logits, const moe::MutableRows& out);

  const runtime::MoeLayer& layer() const { return *layer_; }

 private:
  friend struct KernelMaker;
  MoeKernel(runtime::MoeLayer layer, ExpertsClass experts_cls, std::shared_ptr<const void> owner)
      : layer_(std::make_unique<runtime::MoeLayer>(std::move(layer))),
        experts_cls_(experts_cls),
        owner_(std::move(owner)) {}

  Result<moe::ConstRows> used(const moe::ConstRows& hidden_states, const char* what) const;
  Result<Done> run(const runtime::Tokens& tokens, const moe::MutableRows& out);

  std::unique_ptr<runtime::MoeLayer> layer_;
  ExpertsClass experts_cls_;
  std::shared_ptr<const void> owner_;  // the weights' memory
};

}  // namespace fp4moe::vllm
