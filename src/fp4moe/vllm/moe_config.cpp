#include "fp4moe/vllm/moe_config.hpp"

#include <algorithm>
#include <utility>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/runtime/selection_request.hpp"

namespace fp4moe::vllm {

Result<Context> current_context() {
  Result<platform::Device> device = runtime::resolve_device({});
  if (!device) return device.why();
  return Context{.device = *std::move(device), .environment = platform::read_environment()};
}

Result<const oracle::Policy*> policy_of(const Context& context, WeightFormat format) {
  return backends::require_policy(
      context.policy.empty() ? "latest" : std::string_view(context.policy), format);
}

oracle::Layer layer_of(const MoeConfig& config) {
  return {.num_experts = config.num_experts,
          .num_local_experts = config.num_local_experts,
          .experts_per_token = config.experts_per_token,
          .hidden = config.hidden_dim,
          .intermediate = config.intermediate_size_per_partition,
          .activation = config.activation,
          .gated = config.is_act_and_mul,
          .in_dtype = config.in_dtype,
          .router_logits_dtype = config.router_logits_dtype,
          .routing = config.routing_method,
          .backend = config.moe_backend,
          .lora = config.is_lora_enabled,
          .has_bias = config.has_bias,
          .disable_inplace = config.disable_inplace,
          .shared_experts = config.has_shared_experts,
          .max_num_tokens = config.max_num_tokens,
          .activation_key = config.activation_key,
          .activation_override = config.activation_override,
          .swiglu_limit = config.swiglu_limit,
          .swiglu_alpha = config.swiglu_alpha,
          .swiglu_beta = config.swiglu_beta,
          .situ_beta = config.activation_situ_beta,
          .situ_linear_beta = config.activation_situ_linear_beta,
          .hash_routing = config.has_hash_routing,
          .decomposed = config.require_decomposed_backend,
          .skip_final_all_reduce = config.skip_final_all_reduce,
          .dual_batch_overlap = config.enable_dbo,
          .weight_transfer = config.weight_transfer,
          .parallel = config.moe_parallel_config};
}

MoeConfig config_of(const oracle::Layer& layer) {
  return {.num_experts = layer.num_experts,
          .num_local_experts = layer.num_local_experts,
          .experts_per_token = layer.experts_per_token,
          .hidden_dim = layer.hidden,
          .intermediate_size_per_partition = layer.intermediate,
          .activation = layer.activation,
          .is_act_and_mul = layer.gated,
          .in_dtype = layer.in_dtype,
          .router_logits_dtype = layer.router_logits_dtype,
          .routing_method = layer.routing,
          .moe_backend = layer.backend,
          .is_lora_enabled = layer.lora,
          .has_bias = layer.has_bias,
          .disable_inplace = layer.disable_inplace,
          .has_shared_experts = layer.shared_experts,
          .has_hash_routing = layer.hash_routing,
          .require_decomposed_backend = layer.decomposed,
          .skip_final_all_reduce = layer.skip_final_all_reduce,
          .enable_dbo = layer.dual_batch_overlap,
          .weight_transfer = layer.weight_transfer,
          .max_num_tokens = layer.max_num_tokens,
          .swiglu_limit = layer.swiglu_limit,
          .swiglu_alpha = layer.swiglu_alpha,
          .swiglu_beta = layer.swiglu_beta,
          .activation_situ_beta = layer.situ_beta,
          .activation_situ_linear_beta = layer.situ_linear_beta,
          .activation_key = layer.activation_key,
          .activation_override = layer.activation_override,
          .moe_parallel_config = layer.parallel};
}

oracle::Request request_of(const MoeConfig& config, const oracle::Policy& policy) {
  return {.device = oracle::installed(policy, config.context.device),
          .environment = config.context.environment,
          .layer = layer_of(config)};
}

checkpoint::Rank expert_rank(const MoeConfig& config) {
  const oracle::Parallel& parallel = config.moe_parallel_config;
  if (!parallel.use_ep) return {};
  return {.rank = static_cast<std::uint64_t>(std::max(0, parallel.ep_rank)),
          .size = static_cast<std::uint64_t>(std::max(1, parallel.ep_size))};
}

}  // namespace fp4moe::vllm
