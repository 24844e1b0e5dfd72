// The names of routed experts' tensors, taken apart:
//
//   model.layers.3.mlp.experts.7.gate_proj.weight_scale    per expert, Hugging Face
//   model.layers.3.mlp.experts.gate_up_proj_blocks         fused, Hugging Face
//   block.3.mlp.mlp1_weight.blocks                         fused, OpenAI
//   blk.3.ffn_gate_exps.weight                             stacked, GGUF
//   `------ prefix -----'
//
// Any prefix will do; its last whole number is the layer's. Shared experts have other names
// (shared_expert, shared_experts) and are not experts in this sense.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace fp4moe::checkpoint {

enum class NameFamily : std::uint8_t { hugging_face, openai, gguf };

// The projection that a tensor belongs to; gate_up holds both.
enum class StoredProjection : std::uint8_t { gate, up, down, gate_up };

struct ExpertName {
  NameFamily family = NameFamily::hugging_face;
  std::string_view prefix{};  // "model.layers.3.mlp."
  std::uint64_t layer = 0;    // 0 when the prefix has no number
  std::optional<std::uint64_t> expert{};
  StoredProjection projection = StoredProjection::up;
  std::string_view part{};  // what follows the projection's name: ".weight", "_blocks", ""
};

std::optional<ExpertName> parse_expert_name(std::string_view name);

// A name that speaks of routed experts without following any of the forms above.
struct UnknownExpertName {
  std::string_view prefix{};  // "model.layers.3.mlp."
  std::string_view part{};    // what follows "experts.", in GGUF the layer's number
};
std::optional<UnknownExpertName> unknown_expert_name(std::string_view name);
// True for names that speak of routed experts, in a known form or not.
bool mentions_experts(std::string_view name);

// "model.layers.3.mlp." -> "model.layers.{}.mlp.": the same for all layers of one kind.
struct PrefixFamily {
  std::string_view before{}, after{};
  friend bool operator==(const PrefixFamily&, const PrefixFamily&) = default;
};
PrefixFamily prefix_family(std::string_view prefix);

}  // namespace fp4moe::checkpoint
