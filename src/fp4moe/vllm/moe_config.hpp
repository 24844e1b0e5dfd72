// A request to vLLM's MoE oracles, in vLLM's words: the layer (its FusedMoEConfig), and
// whose rules hold on which machine, which vLLM reads from its installation and its process.
//
// fp4moe/vllm is vLLM's own functions by name, on top of the rest of this library: for those who
// come from there, and for engines that have their weights in memory.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/slice.hpp"
#include "fp4moe/oracle/policy.hpp"
#include "fp4moe/oracle/request.hpp"

namespace fp4moe::vllm {

using oracle::Activation;
using oracle::ActivationKey;
using oracle::Routing;
using oracle::ScalarType;
using oracle::WeightFormat;

// A class of experts of the reference: its name, whether it routes by itself, what it needs.
using ExpertsClass = const oracle::ExpertsClass*;

// Quantization keys by the reference's names.
inline constexpr WeightFormat kMxfp4Static = WeightFormat::mxfp4;
inline constexpr WeightFormat kNvfp4Static = WeightFormat::nvfp4;
inline constexpr ActivationKey kMxfp8Dynamic = ActivationKey::mxfp8;
inline constexpr ActivationKey kMxfp4Dynamic = ActivationKey::mxfp4;
inline constexpr ActivationKey kNvfp4Dynamic = ActivationKey::nvfp4;
inline constexpr ActivationKey kNvfp4DynamicToken = ActivationKey::nvfp4_token;
inline constexpr ActivationKey kFp8StaticTensorSym = ActivationKey::fp8_static_tensor;
inline constexpr ActivationKey kFp8Dynamic128Sym = ActivationKey::fp8_block128;
inline constexpr ActivationKey kFp8DynamicTokenSym = ActivationKey::fp8_token;

// Whose rules, and for which machine: what the reference calls current_platform and envs.
struct Context {
  std::string policy{};  // a date, "vllm:0.33.0", "latest" (also where empty), or "native"
  oracle::Mode mode = oracle::Mode::strict;  // compat: with the reference's mistakes
  platform::Device device{};
  platform::Environment environment{};
};

// This machine, its packages and its environment. Errors: those of detection.
Result<Context> current_context();

// The policy that the context names, vLLM's newest where it names none. Errors: policy.unknown, which
// lists them, vllm.version.
Result<const oracle::Policy*> policy_of(const Context& context, WeightFormat format);

// FusedMoEConfig. The defaults are gpt-oss-20b's.
struct MoeConfig {
  std::uint64_t num_experts = 32;  // of all ranks, redundant ones included
  std::uint64_t num_local_experts = 32;
  std::uint64_t experts_per_token = 4;
  std::uint64_t hidden_dim = 2880;
  std::uint64_t intermediate_size_per_partition = 2880;  // not rounded
  Activation activation = Activation::swigluoai;
  bool is_act_and_mul = true;
  ScalarType in_dtype = ScalarType::bfloat16;
  ScalarType router_logits_dtype = ScalarType::bfloat16;
  Routing routing_method = Routing::renormalize;
  std::string moe_backend = "auto";
  bool is_lora_enabled = false;
  bool has_bias = false;
  bool disable_inplace = true;
  bool has_shared_experts = false;
  bool has_hash_routing = false;            // a table gives each token its experts
  bool require_decomposed_backend = false;  // routes change between routing and experts
  bool skip_final_all_reduce = false, enable_dbo = false, weight_transfer = false;
  std::uint64_t max_num_tokens = 256;
  std::optional<double> swiglu_limit{}, swiglu_alpha{}, swiglu_beta{};
  std::optional<double> activation_situ_beta{}, activation_situ_linear_beta{};
  // How the checkpoint wants activations quantized, and quantization_config.moe.activation.
  ActivationKey activation_key = ActivationKey::none;
  std::optional<ActivationKey> activation_override{};
  oracle::Parallel moe_parallel_config{};

  // Options of some routers; vLLM hands these to apply_monolithic.
  std::uint64_t num_expert_group = 0, topk_group = 0;
  std::vector<float> e_score_correction_bias{};  // [num_experts]; empty: none
  double routed_scaling_factor = 1.0;
  bool apply_router_weight_on_input = false;  // Llama 4's routing does it in any case
  checkpoint::Placement expert_placement = checkpoint::Placement::linear;

  Context context{};
};

// The same layer in the words of fp4moe/oracle, and back; routers' parameters have none there.
oracle::Layer layer_of(const MoeConfig& config);
MoeConfig config_of(const oracle::Layer& layer);
// With the packages that the policy's vLLM brings along on a described device.
oracle::Request request_of(const MoeConfig& config, const oracle::Policy& policy);

// The rank of the expert-parallel group that the configuration is of.
checkpoint::Rank expert_rank(const MoeConfig& config);

}  // namespace fp4moe::vllm
