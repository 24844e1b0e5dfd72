#include "fp4moe/checkpoint/dialect.hpp"

#include <fmt/format.h>

namespace fp4moe::checkpoint {
namespace {

using tensor::DType;

constexpr ProjectionNames kFused{"gate_up_proj", "gate_up_proj", "down_proj"};
constexpr ProjectionNames kOpenai{"mlp1", "mlp1", "mlp2"};
constexpr ProjectionNames kPerExpert{"gate_proj", "up_proj", "down_proj"};
constexpr ProjectionNames kNumbered{"w1", "w3", "w2"};
constexpr ProjectionNames kGguf{"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};

constexpr std::string_view kLlamaPrefix = "model.layers.{}.mlp.";

constexpr PartNames kGptOssParts{.codes = "_blocks", .scales = "_scales", .bias = "_bias"};
constexpr PartNames kOpenaiParts{
    .codes = "_weight.blocks", .scales = "_weight.scales", .bias = "_bias"};
constexpr PartNames kModeloptParts{.codes = ".weight",
                                   .scales = ".weight_scale",
                                   .global_scale = ".weight_scale_2",
                                   .input_scale = ".input_scale",
                                   .bias = ".bias"};
constexpr PartNames kModeloptFusedNvfp4Parts{.codes = "",
                                             .scales = "_weight_scale",
                                             .global_scale = "_weight_scale_2",
                                             .input_scale = "_input_scale",
                                             .bias = "_bias"};
constexpr PartNames kModeloptFusedMxfp4Parts{
    .codes = "", .scales = "_weight_scale", .input_scale = "_input_scale", .bias = "_bias"};
constexpr PartNames kCompressedNvfp4Parts{.codes = ".weight_packed",
                                          .scales = ".weight_scale",
                                          .global_scale = ".weight_global_scale",
                                          .input_scale = ".input_global_scale",
                                          .bias = ".bias"};
constexpr PartNames kCompressedMxfp4Parts{
    .codes = ".weight_packed", .scales = ".weight_scale", .bias = ".bias"};
constexpr PartNames kQuarkParts{
    .codes = ".weight", .scales = ".weight_scale", .input_scale = ".input_scale", .bias = ".bias"};
constexpr PartNames kQuarkNvfp4Parts{.codes = ".weight",
                                     .scales = ".weight_scale",
                                     .global_scale = ".weight_scale_2",
                                     .input_scale = ".input_scale_2",
                                     .bias = ".bias"};
constexpr PartNames kDeepseekParts{.codes = ".weight", .scales = ".scale"};
constexpr PartNames kGgufMxfp4Parts{.codes = ".weight", .bias = ".bias"};
constexpr PartNames kGgufNvfp4Parts{
    .codes = ".weight", .global_scale = ".scale", .input_scale = ".input_scale", .bias = ".bias"};

constexpr WeightFormat kMx = WeightFormat::mxfp4, kNv = WeightFormat::nvfp4;

// clang-format off
constexpr DialectRow kRows[] = {
    {Dialect::gpt_oss, "gpt-oss", "quant_method \"mxfp4\"",
     kMx, Grouping::fused, GlobalScale::none, kLlamaPrefix, kFused, kGptOssParts, DType::u8, DType::u8},
    {Dialect::openai, "openai", "tensors named block.N.mlp.mlp1_weight.blocks",
     kMx, Grouping::fused, GlobalScale::none, "block.{}.mlp.", kOpenai, kOpenaiParts, DType::u8, DType::u8},
    {Dialect::modelopt, "modelopt", "quant_method \"modelopt\" or hf_quant_config.json, quant_algo NVFP4",
     kNv, Grouping::per_expert, GlobalScale::multiplies, kLlamaPrefix, kPerExpert, kModeloptParts, DType::u8, DType::f8_e4m3},
    {Dialect::modelopt, "modelopt", "quant_method \"modelopt\" or hf_quant_config.json, quant_algo mxfp4",
     kMx, Grouping::per_expert, GlobalScale::none, kLlamaPrefix, kPerExpert, kQuarkParts, DType::u8, DType::u8},
    {Dialect::modelopt, "modelopt", "the same, experts.gate_up_proj of all experts with packed columns: gpt-oss, Llama 4",
     kNv, Grouping::fused, GlobalScale::multiplies, kLlamaPrefix, kFused, kModeloptFusedNvfp4Parts, DType::u8, DType::f8_e4m3, true},
    {Dialect::modelopt, "modelopt", "the same, experts.gate_up_proj of all experts with packed columns: gpt-oss, Llama 4",
     kMx, Grouping::fused, GlobalScale::none, kLlamaPrefix, kFused, kModeloptFusedMxfp4Parts, DType::u8, DType::u8, true},
    {Dialect::compressed_tensors, "compressed-tensors", "quant_method \"compressed-tensors\", format \"nvfp4-pack-quantized\"",
     kNv, Grouping::per_expert, GlobalScale::divides, kLlamaPrefix, kPerExpert, kCompressedNvfp4Parts, DType::u8, DType::f8_e4m3},
    {Dialect::compressed_tensors, "compressed-tensors", "quant_method \"compressed-tensors\", format \"mxfp4-pack-quantized\"",
     kMx, Grouping::per_expert, GlobalScale::none, kLlamaPrefix, kPerExpert, kCompressedMxfp4Parts, DType::u8, DType::u8},
    {Dialect::quark, "quark", "quant_method \"quark\", weight dtype fp4, group_size 32",
     kMx, Grouping::per_expert, GlobalScale::none, kLlamaPrefix, kPerExpert, kQuarkParts, DType::u8, DType::u8},
    {Dialect::quark, "quark", "quant_method \"quark\", weight dtype fp4, group_size 32",
     kMx, Grouping::fused, GlobalScale::none, kLlamaPrefix, kFused, kQuarkParts, DType::u8, DType::u8},
    {Dialect::quark, "quark", "quant_method \"quark\", weight dtype fp4, group_size 32, model_type \"gpt_oss\"",
     kMx, Grouping::per_expert, GlobalScale::none, kLlamaPrefix, kFused, kQuarkParts, DType::u8, DType::u8},
    {Dialect::quark, "quark", "quant_method \"quark\", weight dtypes fp4 with group_size 16 and fp8_e4m3",
     kNv, Grouping::per_expert, GlobalScale::multiplies, kLlamaPrefix, kPerExpert, kQuarkNvfp4Parts, DType::u8, DType::f8_e4m3},
    {Dialect::quark, "quark", "quant_method \"quark\", weight dtypes fp4 with group_size 16 and fp8_e4m3, model_type \"gpt_oss\"",
     kNv, Grouping::per_expert, GlobalScale::multiplies, kLlamaPrefix, kFused, kQuarkNvfp4Parts, DType::u8, DType::f8_e4m3},
    {Dialect::deepseek_v4, "deepseek-v4", "model_type \"deepseek_v4\", quant_method \"fp8\", experts in FP4",
     kMx, Grouping::per_expert, GlobalScale::none, "layers.{}.ffn.", kNumbered, kDeepseekParts, DType::u8, DType::f8_e8m0},
    {Dialect::gguf, "gguf", "tensors of type MXFP4 named blk.N.ffn_gate_exps.weight",
     kMx, Grouping::stacked, GlobalScale::none, "blk.{}.", kGguf, kGgufMxfp4Parts, DType::gguf_mxfp4, DType::gguf_mxfp4},
    {Dialect::gguf, "gguf", "tensors of type NVFP4 named blk.N.ffn_gate_exps.weight",
     kNv, Grouping::stacked, GlobalScale::multiplies, "blk.{}.", kGguf, kGgufNvfp4Parts, DType::gguf_nvfp4, DType::gguf_nvfp4},
};
// clang-format on

}  // namespace

std::span<const DialectRow> dialects() { return kRows; }

std::string_view name(Dialect dialect) {
  for (const DialectRow& row : kRows) {
    if (row.dialect == dialect) return row.name;
  }
  return "unknown";
}

std::string_view name(Grouping grouping) {
  return grouping == Grouping::per_expert ? "per expert"
         : grouping == Grouping::fused    ? "fused"
                                          : "stacked";
}

std::optional<Dialect> dialect_from_name(std::string_view name) {
  for (const DialectRow& row : kRows) {
    if (row.name == name) return row.dialect;
  }
  return std::nullopt;
}

const DialectRow* find_row(Dialect dialect, WeightFormat format) {
  for (const DialectRow& row : kRows) {
    if (row.dialect == dialect && row.format == format) return &row;
  }
  return nullptr;
}

const DialectRow* find_row(Dialect dialect, WeightFormat format, Grouping grouping, bool joined) {
  for (const DialectRow& row : kRows) {
    if (row.dialect == dialect && row.format == format && row.grouping == grouping &&
        row.joins_gate_up() == joined) {
      return &row;
    }
  }
  return nullptr;
}

std::string grouping_text(const DialectRow& row) {
  const bool joined = row.grouping == Grouping::per_expert && row.joins_gate_up();
  return std::string(name(row.grouping)) + (joined ? ", gate and up joined" : "");
}

bool is_scale_type(WeightFormat format, DType type) {
  if (format == WeightFormat::nvfp4) return type == DType::f8_e4m3;
  return type == DType::u8 || type == DType::f8_e8m0;
}

bool changes_numbers(std::string_view part) {
  for (const std::string_view word :
       {"scale", "zero_point", "zeros", "g_idx", "perm", "lora", "hadamard", "rotation"})
    if (part.find(word) != std::string_view::npos) return true;
  return false;
}

std::string layer_prefix(const DialectRow& row, std::uint64_t layer) {
  return fmt::format(fmt::runtime(row.prefix), layer);
}

std::string projection_stem(const DialectRow& row, std::string_view prefix, std::uint64_t expert,
                            Projection projection) {
  const std::string_view own = projection == Projection::gate ? row.projections.gate
                               : projection == Projection::up ? row.projections.up
                                                              : row.projections.down;
  if (row.grouping == Grouping::per_expert)
    return fmt::format("{}experts.{}.{}", prefix, expert, own);
  // OpenAI's and GGUF's names do not say "experts." in front.
  const bool plain = row.dialect == Dialect::openai || row.dialect == Dialect::gguf;
  return fmt::format("{}{}{}", prefix, plain ? "" : "experts.", own);
}

}  // namespace fp4moe::checkpoint
