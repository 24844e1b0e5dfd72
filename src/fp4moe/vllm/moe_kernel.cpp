#include "fp4moe/vllm/moe_kernel.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/vllm/kernel_maker.hpp"

namespace fp4moe::vllm {
namespace {

using moe::ConstRows;
using moe::MutableRows;

// A kernel that is given routes needs no method of its own.
Result<moe::routing::RouterOptions> router_of(const MoeConfig& config, bool is_monolithic) {
  moe::routing::RouterOptions result{.method = moe::routing::Method::unspecified,
                                     .experts = config.num_experts,
                                     .top_k = config.experts_per_token};
  const auto method = moe::routing::method_from_name(oracle::name(config.routing_method));
  const bool has_method = method && *method != moe::routing::Method::unspecified &&
                          *method != moe::routing::Method::custom;
  if (!is_monolithic) return result;
  if (!has_method)
    return usage("vllm.routing", "a monolithic kernel routes by itself")
        .expects("a routing method of its own", oracle::name(config.routing_method))
        .try_this("route first and use a modular class of experts");
  result.method = *method;
  const moe::routing::MethodRow& row = moe::routing::row(*method);
  if (row.takes_bias) result.bias = config.e_score_correction_bias;
  if (row.takes_groups) {
    result.groups = config.num_expert_group;
    result.chosen_groups = config.topk_group;
  }
  if (row.takes_scale) result.scale = config.routed_scaling_factor;
  if (row.normalization == moe::routing::Normalization::optional) result.renormalize = true;
  return result;
}

void clear_from(const MutableRows& out, std::uint64_t column) {
  const std::uint64_t size = moe::element_bytes(out.dtype);
  for (std::uint64_t row = 0; row < out.rows; ++row)
    std::memset(out.row(row) + column * size, 0, (out.columns - column) * size);
}

}  // namespace

Result<Done> KernelMaker::check(const KernelWeights& weights) const {
  if (experts_cls == nullptr)
    return usage("vllm.no_class", "a kernel is made of a class of experts")
        .expects("one of backend_to_kernel_cls()", "none");
  if (weights.views().empty())
    return usage("vllm.weights", "the weights were described only")
        .expects("converted weights", "no memory");
  const convert::Problem& problem = weights.packer().problem();
  const auto fits = [](std::uint64_t real, std::uint64_t padded, std::uint64_t wanted) {
    return real == wanted || real == padded;
  };
  const std::uint64_t hidden = config.hidden_dim,
                      intermediate = config.intermediate_size_per_partition;
  if (weights.layout().format != backend.format || problem.experts != config.num_local_experts ||
      !fits(problem.real.hidden, problem.padded.hidden, hidden) ||
      !fits(problem.real.intermediate, problem.padded.intermediate, intermediate))
    return usage("vllm.weights", "the weights are not the configuration's")
        .expects(fmt::format("{} of {} experts, {} x {}", formats::name(backend.format),
                             config.num_local_experts, intermediate, hidden),
                 fmt::format("{} of {} experts, {} x {}", formats::name(weights.layout().format),
                             problem.experts, problem.real.intermediate, problem.real.hidden));
  const bool gated = problem.order != checkpoint::RowOrder::single;
  if (gated != config.is_act_and_mul)
    return usage("vllm.weights", "the weights are not the configuration's")
        .expects(config.is_act_and_mul ? "a gate" : "no gate", gated ? "a gate" : "none");
  return Done{};
}

Result<runtime::LayerFacts> KernelMaker::facts(const KernelWeights& weights) const {
  const convert::Problem& problem = weights.packer().problem();
  runtime::LayerFacts result;
  result.model.shape = {.format = backend.format,
                        .experts = config.num_experts,
                        .hidden = problem.real.hidden,
                        .intermediate = problem.real.intermediate,
                        .order = problem.order,
                        .has_bias = problem.has_bias};
  result.model.layer = layer_of(config);
  result.alpha = quant_config.gemm1_alpha;
  result.beta = quant_config.gemm1_beta;
  result.limit = quant_config.gemm1_clamp_limit;
  result.weight_on_input =
      config.apply_router_weight_on_input || config.routing_method == Routing::llama4;
  auto router = router_of(config, experts_cls->kind == oracle::Kind::monolithic);
  if (!router) return router.why();
  result.router = *std::move(router);
  return result;
}

Result<MoeKernel> KernelMaker::make(const KernelWeights& weights) const {
  if (const auto fine = check(weights); !fine) return fine.why();
  auto described = facts(weights);
  if (!described) return described.why();
  const auto policy = policy_of(config.context, backend.format);
  if (!policy) return policy.why();
  runtime::Choice choice{.policy = *policy,
                         .mode = config.context.mode,
                         .backend = &backend,
                         .experts = experts_cls,
                         .layout = &weights.layout(),
                         .device = config.context.device,
                         .why = fmt::format("{} was given", backend.name)};
  runtime::LayerOptions result{.engine = options.engine,
                               .threads = options.threads,
                               .pool = options.pool,
                               .ranks = options.ranks,
                               .exchange = options.exchange,
                               .max_tokens = config.max_num_tokens,
                               .quantizes = quant_config.quant_dtype,
                               .shared = options.shared_experts};
  result.backend_request.device = config.context.device;
  result.slice.expert_parallel = expert_rank(config);
  result.slice.placement = config.expert_placement;
  if (!quant_config.a1_scale.empty() && !quant_config.a2_scale.empty())
    result.input_scale = {.input = std::ranges::max(quant_config.a1_scale),
                          .hidden = std::ranges::max(quant_config.a2_scale)};
  const std::vector<std::span<const std::byte>> views(weights.views().begin(),
                                                      weights.views().end());
  auto layer =
      runtime::MoeLayer::of(*std::move(described), std::move(choice),
                            runtime::PackedWeights::of(weights.packer(), views), std::move(result));
  if (!layer) return layer.why();
  if (const auto done = layer->process(); !done) return done.why();
  return MoeKernel(*std::move(layer), experts_cls, weights.owner());
}

Result<ConstRows> MoeKernel::used(const ConstRows& rows, const char* what) const {
  const convert::Problem& problem = layer_->weights().packer().problem();
  const std::uint64_t hidden = problem.real.hidden;
  const std::uint64_t columns = rows.columns == problem.padded.hidden ? rows.columns : hidden;
  if (const auto fine = moe::check_rows(rows, what, columns); !fine) return fine.why();
  ConstRows result = rows;
  result.columns = hidden;
  return result;
}

Result<Done> MoeKernel::run(const runtime::Tokens& tokens, const MutableRows& out) {
  const auto rows = used(out, "the output");
  if (!rows) return rows.why();
  MutableRows part = out;
  part.columns = rows->columns;
  if (const auto done = layer_->run(tokens, part); !done) return done.why();
  if (part.columns < out.columns) clear_from(out, part.columns);
  return Done{};
}

Result<Done> MoeKernel::apply(const ConstRows& hidden_states, std::span<const float> topk_weights,
                              std::span<const std::int32_t> topk_ids, const MutableRows& out) {
  if (is_monolithic())
    return usage("vllm.kind", fmt::format("{} routes by itself", experts_cls_->name))
        .expects("router logits", "experts and their weights")
        .try_this("call apply_monolithic");
  const auto x = used(hidden_states, "the hidden states");
  if (!x) return x.why();
  if (topk_ids.size() != topk_weights.size() ||
      (x->rows == 0 ? !topk_ids.empty() : topk_ids.size() % x->rows != 0 || topk_ids.empty()))
    return usage("vllm.routes", "routes do not fit the tokens")
        .expects(fmt::format("as many ids as weights, for each of {} tokens", x->rows),
                 fmt::format("{} ids, {} weights", topk_ids.size(), topk_weights.size()));
  const std::uint64_t top_k = x->rows == 0 ? 1 : topk_ids.size() / x->rows;
  return run({.x = *x, .top_k = top_k, .ids = topk_ids, .weights = topk_weights}, out);
}

Result<Done> MoeKernel::apply_monolithic(const ConstRows& hidden_states,
                                         const ConstRows& router_logits, const MutableRows& out) {
  if (!is_monolithic())
    return usage("vllm.kind", fmt::format("{} is given routes", experts_cls_->name))
        .expects("experts and their weights", "router logits")
        .try_this("route first and call apply");
  if (!layer_->is_monolithic())
    return usage("layer.monolithic",
                 fmt::format("{} has no kernel for this routing", experts_cls_->name))
        .expects("a monolithic kernel for this routing and exchange",
                 moe::routing::name(layer_->facts().router.method));
  const auto x = used(hidden_states, "the hidden states");
  if (!x) return x.why();
  if (const auto fine =
          moe::check_rows(router_logits, "the router's logits", layer_->router().columns());
      !fine)
    return fine.why();
  if (router_logits.rows != x->rows)
    return usage("vllm.routes", "logits do not fit the tokens")
        .expects(fmt::format("{} rows", x->rows), fmt::format("{}", router_logits.rows));
  return run({.x = *x, .logits = router_logits}, out);
}

}  // namespace fp4moe::vllm
