// The names of LoRA factors on experts, taken apart. Without "base_model.model." in front and
// ".lora_A.weight" or ".lora_B.weight" behind:
//
//   model.layers.3.mlp.experts.7.gate_proj     a linear module of each expert (w1, w3, w2 too)
//   model.layers.3.mlp.experts.gate_proj       one tensor for all experts
//   model.layers.3.mlp.experts.gate_up_proj    the same, gate and up together
//   model.layers.3.mlp.experts                 PEFT's wrapper of a parameter (target_parameters);
//   model.layers.3.mlp.experts.base_layer      a second one inside it. Which parameter is not said
//   model.layers.3.mlp.experts.gate_up_projs.7 Unsloth's gpt-oss with a linear module per expert
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "fp4moe/checkpoint/expert_name.hpp"

namespace fp4moe::checkpoint {

enum class Factor : std::uint8_t { a, b };

struct AdapterName {
  std::string_view module{};  // the name without prefix and suffix
  std::string_view prefix{};  // "model.layers.3.mlp."
  std::uint64_t layer = 0;
  std::optional<std::uint64_t> expert{};
  std::optional<StoredProjection> projection{};  // absent: a wrapper, which does not say
  std::uint64_t depth = 0;                       // of a wrapper: how many others are around it
  Factor factor = Factor::a;
};

// Nothing for tensors that are no factor of an expert; see mentions_experts for those that should
// be one.
std::optional<AdapterName> parse_adapter_name(std::string_view name);

// The name without "base_model.model.".
std::string_view model_name(std::string_view name);

// True if the name mentions routed experts in any form, wrappers included.
bool adapter_mentions_experts(std::string_view name);

}  // namespace fp4moe::checkpoint
