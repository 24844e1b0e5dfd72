// The models that users run, one row each: sizes, names and where their MoE layers lie. Test
// checkpoints, planning and benchmarks all read this table.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/dialect.hpp"
#include "fp4moe/checkpoint/moe_shape.hpp"

namespace fp4moe::checkpoint {

// The names that families of models give the three matrices of an expert.
inline constexpr ProjectionNames kProjNames{"gate_proj", "up_proj", "down_proj"};
inline constexpr ProjectionNames kNumberedNames{"w1", "w3", "w2"};

struct ModelRow {
  std::string_view name;           // as the command line spells it
  std::string_view model_type;     // in config.json
  std::string_view architecture;   // in GGUF; empty when llama.cpp has none for it
  std::uint64_t layers;            // all blocks
  std::uint64_t first_moe;         // the first block that is a MoE layer
  std::uint64_t moe_every;         // distance between MoE layers; 0: see block_pattern
  std::string_view block_pattern;  // one letter per block, E marks a MoE layer
  std::uint64_t experts;           // routed ones
  std::uint64_t top_k;
  std::uint64_t hidden;
  std::uint64_t intermediate;  // of one expert
  std::string_view activation;
  RowOrder order;  // of w13 as the model's own code computes it
  bool bias;
  WeightFormat format;           // the FP4 format it is usually published in
  std::string_view prefix;       // of a layer's MoE tensors; {} is the block's number
  std::string_view router;       // the router's name after the prefix
  std::string_view experts_key;  // config.json's name for `experts`
  std::string_view width_key;    // config.json's name for `intermediate`
  ProjectionNames projections;
  std::string_view routing;  // how its router chooses, in the oracle's words
};

std::span<const ModelRow> models();
const ModelRow* find_model(std::string_view name);  // null when there is none

// A model as users write it: a name of the table ("gpt-oss-120b"), or what a hub calls it
// ("openai/gpt-oss-120b", "nvidia/Qwen3-30B-A3B-NVFP4"). The organization may be left out; case and
// punctuation do not count. Words behind a known name that do not change the shape ("Instruct")
// are ignored; a number format among them counts.
struct NamedModel {
  const ModelRow* row = nullptr;
  std::optional<WeightFormat> format{};  // where the name tells it
};
// Errors: models.unknown lists the names and those that were perhaps meant, models.not_fp4 (code
// no_backend) a name that tells another number format.
Result<NamedModel> require_named(std::string_view name);
Result<const ModelRow*> require_model(std::string_view name);
// The first row of a family, for names and keys. Null for a family the table does not know.
const ModelRow* find_family(std::string_view model_type);
const ModelRow* find_architecture(std::string_view architecture);

// A checkpoint's model_type: OpenAI's own config.json of gpt-oss names none.
std::string_view model_type_of(std::string_view said, Dialect dialect);

// How gate and up rows lie where a family's own code has them in one tensor of all experts. None:
// the family is not known.
std::optional<RowOrder> joined_order(std::string_view model_type);

// How a family's router chooses, in the oracle's words, also for families of whose sizes the table
// knows nothing. Empty: not known. `model_type` may be GGUF's architecture.
std::string_view family_routing(std::string_view model_type);
// The same for what its experts compute between GEMM1 and GEMM2, without "_no_mul".
std::string_view family_activation(std::string_view model_type);

// Where routers stand after a layer's prefix, in Hugging Face's names, and the biases that are added
// to their scores; {} is the router's own name.
inline constexpr std::array<std::string_view, 5> kRouterModules{"gate", "router", "router.layer",
                                                                "router.gate", "gate.wg"};
inline constexpr std::array<std::string_view, 6> kRouterBiases{
    "{}.e_score_correction_bias",
    "e_score_correction_bias",
    "expert_bias",
    "{}.expert_bias",
    "moe_statics.e_score_correction_bias",
    "{}.moe_statics.e_score_correction_bias"};

std::uint64_t moe_layer_count(const ModelRow& model);
// The block number of the model's `which`-th MoE layer; `which` < moe_layer_count(model).
std::uint64_t moe_layer_index(const ModelRow& model, std::uint64_t which);

// "model.layers.{}.mlp." with 3 -> "model.layers.3.mlp."
std::string layer_prefix(std::string_view prefix, std::uint64_t index);

}  // namespace fp4moe::checkpoint
