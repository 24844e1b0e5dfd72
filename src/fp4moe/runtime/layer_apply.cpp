#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/moe/exchange/sums.hpp"
#include "fp4moe/runtime/layer.hpp"

namespace fp4moe::runtime {
namespace {

using moe::ConstRows;
using moe::MutableRows;

moe::routing::LogitsView logits_view(const ConstRows& logits) {
  return {.data = logits.data,
          .dtype = logits.dtype,
          .tokens = logits.rows,
          .columns = logits.columns,
          .stride = logits.stride / moe::element_bytes(logits.dtype)};
}

// out = factor * out + weight * other, in float32, one rounding.
struct Addition {
  ConstRows other{};                 // no memory: nothing is added
  std::span<const float> weights{};  // [T]; empty: `weight` for all
  float weight = 1.0f;
  float factor = 1.0f;  // of what is there
};
void add_rows(const Addition& added, const MutableRows& out) {
  std::vector<float> sum(out.columns), term(out.columns);
  for (std::uint64_t t = 0; t < out.rows; ++t) {
    read_row(ConstRows(out), t, std::span(sum));
    if (added.other.data != nullptr) read_row(added.other, t, std::span(term));
    const float weight = added.weights.empty() ? added.weight : added.weights[t];
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = added.factor * sum[i] + weight * term[i];
    write_row(std::span<const float>(sum), out, t);
  }
}

}  // namespace

Result<Done> MoeLayer::check_processed() const {
  if (modular_) return Done{};
  return usage("layer.order", "a layer is applied before it is processed")
      .expects("load(), then process()", is_loaded_ ? "loaded only" : "neither");
}

// Outputs of this rank's slice become the sum over the ranks that hold the others.
Result<Done> MoeLayer::reduce(const MutableRows& out) {
  if (options_.ranks == nullptr || options_.ranks->size() == 1 || exchanges_tokens()) return Done{};
  return moe::exchange::all_reduce(*options_.ranks, parcel_, out);
}

Result<Done> MoeLayer::apply(const Tokens& tokens, const MutableRows& out, moe::LoraView lora) {
  if (const auto fine = check_processed(); !fine) return fine.why();
  if (!lora.empty()) {
    const oracle::ExpertsClass* row = experts_row(oracle::Kind::modular);
    if (row == nullptr || !row->lora)
      return usage("layer.lora", fmt::format("backend {} adds no adapters", choice_.backend->name))
          .expects("a backend with LoRA", std::string(choice_.backend->name))
          .try_this("CPU, MARLIN and TRITON_UNFUSED do; or merge: fp4moe merge CHECKPOINT ADAPTER");
  }
  Tokens given = tokens;
  if (replicas_) {
    physical_ids_.assign(tokens.ids.begin(), tokens.ids.end());
    const auto mapped = moe::map_to_physical(
        *replicas_, {.ids = physical_ids_, .top_k = std::max<std::uint64_t>(1, tokens.top_k)});
    if (!mapped) return mapped.why();
    given.ids = physical_ids_;
  }
  const auto done = modular_->apply(given, out, {.expert_map = expert_map_, .lora = lora});
  if (!done) {
    if (options_.ranks != nullptr) options_.ranks->abort(done.why());
    return done.why();
  }
  return reduce(out);
}

Result<Done> MoeLayer::apply_monolithic(const Tokens& tokens, const MutableRows& out) {
  if (const auto fine = check_processed(); !fine) return fine.why();
  if (!monolithic_)
    return usage("layer.monolithic",
                 fmt::format("backend {} has no kernel that routes by {}", choice_.backend->name,
                             moe::routing::name(facts_.router.method)))
        .expects("a monolithic kernel for this routing and exchange", "none")
        .try_this("route first and call apply, or call run");
  const auto done = monolithic_->apply(tokens, out, *pool_);
  if (!done) {
    if (options_.ranks != nullptr) options_.ranks->abort(done.why());
    return done.why();
  }
  return reduce(out);
}

// The routed scaling factor where it was left to the output, and the shared experts. In float16 the
// routed part would overflow: there the shared part is divided instead, and whoever owns the
// residual stream multiplies.
Result<Done> MoeLayer::add_shared(const ConstRows& x, const MutableRows& out) {
  const float scale =
      facts_.router.scale_on_output ? static_cast<float>(facts_.router.scale) : 1.0f;
  if (!options_.shared) {
    if (scale != 1.0f) add_rows({.factor = scale}, out);
    return Done{};
  }
  std::vector<float> shared(out.rows * out.columns, 0.0f);
  const MutableRows rows =
      moe::dense_rows(std::span(shared), moe::DType::f32, out.rows, out.columns);
  if (const auto done = options_.shared(x, rows); !done) return done.why();
  const bool divides = out.dtype == moe::DType::f16;
  add_rows(
      {.other = rows, .weight = divides ? 1.0f / scale : 1.0f, .factor = divides ? 1.0f : scale},
      out);
  return Done{};
}

Result<Done> MoeLayer::run(const Tokens& tokens, const MutableRows& out, moe::LoraView lora) {
  if (const auto fine = check_processed(); !fine) return fine.why();
  if (!tokens.ids.empty() || tokens.logits.data == nullptr) {
    if (const auto done = apply(tokens, out, lora); !done) return done.why();
  } else if (facts_.no_routing) {
    return *facts_.no_routing;
  } else if (!router_) {
    return usage("layer.routing", "the layer has no router: calls bring ids and weights")
        .expects("ids and weights", "logits")
        .try_this("describe the router when the layer is made, or route first and call apply");
  } else if (monolithic_ && lora.empty()) {
    if (const auto done = apply_monolithic(tokens, out); !done) return done.why();
  } else {
    const std::uint64_t assignments = tokens.logits.rows * router_->assignments_per_token();
    ids_.resize(assignments);
    weights_.resize(assignments);
    identity_.assign(facts_.router.zero_experts == 0 ? 0 : tokens.logits.rows, 0.0f);
    const auto routed =
        router_->route({.logits = logits_view(tokens.logits)},
                       {.ids = ids_, .weights = weights_, .identity_weights = identity_}, *pool_);
    if (!routed) return routed.why();
    Tokens given = tokens;
    given.logits = {};
    given.top_k = router_->assignments_per_token();
    given.ids = ids_;
    given.weights = weights_;
    if (const auto done = apply(given, out, lora); !done) return done.why();
  }
  if (const auto done = add_shared(tokens.x, out); !done) return done.why();
  if (!identity_.empty()) add_rows({.other = tokens.x, .weights = identity_}, out);
  return Done{};
}

}  // namespace fp4moe::runtime
