// A MoE layer's life: created (backend chosen, sizes rounded, memory made), loaded (any dialect,
// any slice, straight into the backend's layout), processed (handed to an engine), applied; loaded
// again whenever the weights change.
//
//   Result<Checkpoint> checkpoint = Checkpoint::open("gpt-oss-20b");
//   LayerOptions options;
//   options.backend_request.backend = "MARLIN";
//   Result<MoeLayer> layer = MoeLayer::create(*checkpoint, 0, options);
//   layer->load();
//   layer->process();
//   layer->run({.x = x, .logits = logits}, out);
//
// Weights in memory need no checkpoint: MoeLayer::create(description, weights_view, options).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/checkpoint/layer_weights_view.hpp"
#include "fp4moe/moe/expert_map.hpp"
#include "fp4moe/moe/kernel.hpp"
#include "fp4moe/runtime/choice.hpp"
#include "fp4moe/runtime/facts.hpp"
#include "fp4moe/runtime/layer_description.hpp"
#include "fp4moe/runtime/layer_options.hpp"
#include "fp4moe/runtime/packed_weights.hpp"

namespace fp4moe::moe::cuda {
class DeviceSession;
}

namespace fp4moe::runtime {

// The input of a call: either ids and weights, or logits.
using Tokens = moe::Tokens;

class MoeLayer {
 public:
  // `checkpoint` outlives load() and reload. Errors: choice.*, layout.*, convert.*, sizes.*,
  // exchange.*, layer.weights, weights.rows.
  static Result<MoeLayer> create(const checkpoint::Checkpoint& checkpoint, std::size_t number,
                                 LayerOptions options = {});
  // From weights in memory: all of the layer, or what options.slice leaves of it. The memory is
  // read by load() and load_expert(), and with "mapped" weights by calls. Errors: as above,
  // description.*, weights.slice.
  static Result<MoeLayer> create(const LayerDescription& description,
                                 const checkpoint::LayerWeightsView& weights,
                                 LayerOptions options = {});
  // From a converted folder: backend, layout and slice are the folder's. Loaded by mapping.
  static Result<MoeLayer> open(const std::shared_ptr<const convert::ConvertedFolder>& folder,
                               std::size_t number, LayerOptions options = {});

  // From weights that lie in the choice's layout already; their memory outlives the layer.
  static Result<MoeLayer> of(LayerFacts facts, Choice choice, PackedWeights packed,
                             LayerOptions options = {});

  // Weights into this layer's memory; again after they changed. The next process() takes them over.
  Result<Done> load();
  Result<Done> load_expert(std::size_t position);
  // The same from other memory, which later loads read, too. Errors: weights.other (of another
  // shape than the layer's), weights.mapped (a converted folder's layer).
  Result<Done> load(const checkpoint::LayerWeightsView& weights);
  // Hands the weights to the engine. One that reads the layout keeps nothing of its own; another
  // makes a copy in its own form, and this layer keeps what it loaded. Errors: layer.order when
  // nothing is loaded, scale.input, experts.*.
  Result<Done> process();

  // Given ids and weights. Errors: layer.order (not processed), layer.lora (a backend without
  // adapters), kernel.*, experts.*, rows.*, those of the exchange.
  Result<Done> apply(const Tokens& tokens, const moe::MutableRows& out, moe::LoraView lora = {});
  // Given logits, by a kernel that routes itself. Errors: layer.monolithic when the backend has
  // none for this routing.
  Result<Done> apply_monolithic(const Tokens& tokens, const moe::MutableRows& out);
  // Given logits: by the monolithic kernel where there is one, else routed first. Adds shared and
  // zero experts. Errors: also layer.routing (a layer whose calls bring ids).
  Result<Done> run(const Tokens& tokens, const moe::MutableRows& out, moe::LoraView lora = {});

  // The same for tokens that lie on the device (moe/cuda/device_session.hpp). Errors: layer.order,
  // layer.device (another engine, or something that only calls with tokens on the host do: ranks,
  // copies of experts, shared experts, weights on the input, a factor of the output), those of the
  // device.
  Result<moe::cuda::DeviceSession> device_session() const;

  const LayerFacts& facts() const { return facts_; }
  const Choice& choice() const { return choice_; }
  const checkpoint::Slice& slice() const { return options_.slice; }
  const PackedWeights& weights() const { return *packed_; }
  const moe::ExpertsProblem& problem() const { return problem_; }
  bool has_router() const { return router_.has_value(); }  // false: calls bring ids
  const moe::routing::Router& router() const { return *router_; }
  ThreadPool& pool() const { return *pool_; }
  // Physical numbers where experts have copies.
  std::span<const std::uint64_t> local_experts() const { return local_; }
  std::uint64_t physical_experts() const;
  moe::Experts* experts() const { return experts_.get(); }  // null before process()
  bool is_monolithic() const { return monolithic_.has_value(); }
  std::vector<std::string> warnings() const;

 private:
  MoeLayer() = default;
  using MakeJob = std::function<Result<convert::LayerJob>(const convert::Recipe& recipe)>;
  static Result<MoeLayer> make(LayerFacts facts, Choice choice, LayerOptions options);
  static Result<MoeLayer> create_from(LayerFacts facts, LayerOptions options,
                                      const MakeJob& make_job);
  Result<convert::LayerJob> job_by(const MakeJob& make_job) const;
  Result<Done> describe();
  Result<Done> make_kernels();
  Result<std::unique_ptr<moe::Exchange>> make_exchange() const;
  Result<bool> stays_mapped() const;
  Result<Done> read_input_scales();
  Result<Done> check_processed() const;
  bool exchanges_tokens() const;  // between ranks: each brings its own
  Result<Done> reduce(const moe::MutableRows& out);
  Result<Done> add_shared(const moe::ConstRows& x, const moe::MutableRows& out);
  const oracle::ExpertsClass* experts_row(oracle::Kind kind) const;
  bool routes_itself(const oracle::ExpertsClass& row) const;

  LayerFacts facts_{};
  Choice choice_{};
  LayerOptions options_{};
  std::shared_ptr<ThreadPool> pool_{};
  std::optional<convert::LayerJob> job_{};
  std::unique_ptr<PackedWeights> packed_{};
  std::vector<std::uint64_t> local_{};
  std::vector<std::int32_t> expert_map_{};
  std::optional<moe::routing::Router> router_{};
  moe::ExpertsProblem problem_{};
  std::shared_ptr<moe::Experts> experts_{};
  std::optional<moe::ModularKernel> modular_{};
  std::optional<moe::MonolithicKernel> monolithic_{};
  moe::exchange::Parcel parcel_{};
  bool is_loaded_ = false, is_mapped_ = false;
  std::optional<moe::ReplicaTable> replicas_{};
  std::vector<std::int32_t> ids_{}, physical_ids_{};
  std::vector<float> weights_{}, identity_{};
};

// A layer's own constants, else the backend's, else those of its activation.
moe::ActivationParams params_of(const Choice& choice, const LayerFacts& facts,
                                moe::Activation activation);

}  // namespace fp4moe::runtime
