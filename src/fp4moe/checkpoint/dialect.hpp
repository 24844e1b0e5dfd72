// The ways checkpoints spell the same weights, one row each. Reading, writing, inspect, lint and
// the documentation all read this table.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/enum_set.hpp"
#include "fp4moe/checkpoint/moe_shape.hpp"
#include "fp4moe/tensor/dtype.hpp"

namespace fp4moe::checkpoint {

enum class Dialect : std::uint8_t {
  gpt_oss,             // Hugging Face gpt-oss
  openai,              // gpt-oss as OpenAI published it
  modelopt,            // NVIDIA ModelOpt
  compressed_tensors,  // llm-compressor
  quark,               // AMD Quark
  deepseek_v4,         // DeepSeek-V4's own
  gguf,                // llama.cpp
};

// Which tensors hold the experts.
enum class Grouping : std::uint8_t {
  per_expert,  // experts.7.gate_proj.weight: a matrix per expert and projection
  fused,       // experts.gate_up_proj...: [experts, 2 * intermediate, ...], gate and up together
  stacked,     // ffn_gate_exps.weight: [experts, rows, ...], gate and up apart
};

enum class GlobalScale : std::uint8_t {
  none,        // MXFP4
  multiplies,  // value = e2m1 * block scale * s
  divides,     // value = e2m1 * block scale / s: compressed-tensors stores the reciprocal
};

// The suffixes of the projection's name (`experts.7.gate_proj`, `experts.gate_up_proj`, ...).
struct PartNames {
  std::string_view codes{}, scales{}, global_scale{}, input_scale{}, bias{};
};

// The projections' own names when we write. Readers also accept w1, w3, w2 for gate, up, down.
struct ProjectionNames {
  std::string_view gate{}, up{}, down{};  // gate and up are the same where they are fused
};

struct DialectRow {
  Dialect dialect;
  std::string_view name;         // as the command line spells it
  std::string_view config_mark;  // what marks it in config.json, human-readable
  WeightFormat format;
  Grouping grouping;
  GlobalScale global_scale;
  std::string_view prefix;  // of a layer when we write; {} stands for its number
  ProjectionNames projections;
  PartNames parts;
  tensor::DType codes_dtype;
  tensor::DType scales_dtype;  // GGUF keeps the scales inside the blocks: the same as codes_dtype
  bool is_transposed = false;  // [experts, k / 2, rows], and one global scale for all experts
  tensor::DType input_scale_dtype = tensor::DType::f32;  // when we write

  bool scales_inside() const { return parts.scales.empty(); }
  // Rows of codes and scales are in no file as such.
  bool needs_unpacking() const { return scales_inside() || is_transposed; }
  // Gate and up are rows of one tensor.
  bool joins_gate_up() const { return projections.gate == projections.up; }
};

// A dialect has a row for every format and grouping it comes in, apart and joined.
std::span<const DialectRow> dialects();
std::string_view name(Dialect dialect);
std::string_view name(Grouping grouping);
std::optional<Dialect> dialect_from_name(std::string_view name);
// The row to write a dialect with: the first of that format.
const DialectRow* find_row(Dialect dialect, WeightFormat format);
// The row of a grouping; null when the dialect has none. `joined`: gate and up are one tensor.
const DialectRow* find_row(Dialect dialect, WeightFormat format, Grouping grouping, bool joined);
// "per expert", "per expert, gate and up joined", "fused", "stacked"
std::string grouping_text(const DialectRow& row);

// True if a format's block scales may have this type.
bool is_scale_type(WeightFormat format, tensor::DType type);
// Parts by which quantizers change what codes stand for: a scale, a zero point, another order of the
// columns, a correction of low rank, a rotation.
bool changes_numbers(std::string_view part);

// "model.layers.3.mlp."
std::string layer_prefix(const DialectRow& row, std::uint64_t layer);
// "model.layers.3.mlp.experts.7.gate_proj"; `expert` counts only where the row is per_expert. A
// part's name follows: + row.parts.codes.
std::string projection_stem(const DialectRow& row, std::string_view prefix, std::uint64_t expert,
                            Projection projection);

}  // namespace fp4moe::checkpoint
