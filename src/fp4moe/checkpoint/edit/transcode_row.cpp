#include "fp4moe/checkpoint/edit/transcode_row.hpp"

#include <optional>
#include <utility>

#include "fp4moe/checkpoint/models.hpp"

namespace fp4moe::checkpoint {

using tensor::DType;
using tensor::StoredTensor;

std::string possible_targets(WeightFormat format, Dialect except) {
  std::string all;
  for (const DialectRow& row : dialects())
    if (row.format == format && row.dialect != except && row.dialect != Dialect::deepseek_v4 &&
        all.find(row.name) == std::string::npos)
      all += (all.empty() ? "" : ", ") + std::string(row.name);
  return all;
}

Result<DialectRow> TargetRow::choose() const {
  const DialectRow& own = source_.dialect();
  const std::string from(own.name), to(name(target_));
  const DialectRow* row = find_row(target_, own.format);
  if (row == nullptr)
    return usage("transcode.format", to + " cannot hold " + std::string(name(own.format)) +
                                         " weights without changing their values")
        .expects("one of " + possible_targets(own.format, own.dialect), to)
        .try_this("To change the format, quantize the unquantized model again");
  const bool native = own.dialect == Dialect::deepseek_v4 || target_ == Dialect::deepseek_v4;
  if (native && own.dialect != target_)
    return usage("transcode.pair",
                 "DeepSeek-V4's dialect mixes FP4 experts with FP8 modules, which the other "
                 "dialects cannot describe")
        .expects("two of " + possible_targets(own.format, Dialect::deepseek_v4),
                 from + " to " + to);
  if (own.dialect == Dialect::gguf && target_ == Dialect::gguf)
    return usage("transcode.pair", "the checkpoint is already in this dialect")
        .expects("one of " + possible_targets(own.format, own.dialect), to);
  DialectRow chosen = own.dialect == target_ ? own : former_row(*row);
  if (chosen.grouping == Grouping::per_expert && !chosen.joins_gate_up())
    chosen.projections = projections();
  chosen.input_scale_dtype = input_scale_dtype();
  return chosen;
}

// A checkpoint that came from Quark's or ModelOpt's dialect gets its form back. Quark exports
// gpt-oss with gate and up of an expert joined, others apart. A form that has fewer scales is
// taken only where those are equal that it has in common.
DialectRow TargetRow::former_row(const DialectRow& usual) const {
  static const std::string none{};
  const std::string& former = target_ == Dialect::quark      ? origin_.quark_grouping
                              : target_ == Dialect::modelopt ? origin_.modelopt_grouping
                                                             : none;
  const bool is_gated = !source_.layers().empty() && source_.layers()[0].shape.gated();
  const DialectRow* found = &usual;
  for (const DialectRow& row : dialects())
    if (row.dialect == target_ && row.format == usual.format && grouping_text(row) == former)
      found = &row;
  if (former.empty() && target_ == Dialect::quark && model_type_ == "gpt_oss" && is_gated)
    found = find_row(target_, usual.format, Grouping::per_expert, true);
  return fits_scales(*found) ? *found : usual;
}

bool TargetRow::fits_scales(const DialectRow& row) const {
  if (!row.joins_gate_up() || row.global_scale == GlobalScale::none) return true;
  for (const LayerTensors& layer : source_.layers())
    for (const bool down : {false, true}) {
      std::optional<StoredScales::Pair> first;
      for (std::uint64_t e = 0; e < layer.shape.experts; ++e) {
        const Result<StoredScales> scales = scales_.scales(layer, e, row.global_scale);
        if (!scales) return false;
        if (!down && !(scales->gate == scales->up)) return false;
        const StoredScales::Pair& pair = down ? scales->down : scales->up;
        if (row.is_transposed && first && !(*first == pair)) return false;
        first = pair;
      }
    }
  return true;
}

// Quark writes input scales in the model's type.
DType TargetRow::input_scale_dtype() const {
  if (source_.dialect().dialect == target_) return source_input_dtype();
  if (target_ == Dialect::quark && origin_.input_dtype == "BF16" && input_scales_fit())
    return DType::bf16;
  return DType::f32;
}

DType TargetRow::source_input_dtype() const {
  for (const LayerTensors& layer : source_.layers())
    if (layer.up[0].input_scale.tensor != nullptr)
      return layer.up[0].input_scale.tensor->entry.dtype;
  return DType::f32;
}

bool TargetRow::input_scales_fit() const {
  for (const LayerTensors& layer : source_.layers())
    for (const auto* places : {&layer.gate, &layer.up, &layer.down})
      for (const ProjectionPlaces& place : *places) {
        const StoredTensor* tensor = place.input_scale.tensor;
        if (tensor == nullptr) continue;
        for (std::uint64_t e = 0; e < layer.shape.experts; ++e) {
          const ScaleBits bits = scales_.bits_of(*tensor, e, layer.row->global_scale);
          if ((bits.multiplies & 0xFFFFu) != 0) return false;
        }
      }
  return true;
}

ProjectionNames TargetRow::projections() const {
  if (source_.dialect().grouping == Grouping::per_expert && !source_.dialect().joins_gate_up())
    return uses_numbers() ? kNumberedNames : kProjNames;
  if (!origin_.projections.empty())
    return origin_.projections == projections_text(kNumberedNames) ? kNumberedNames : kProjNames;
  const ModelRow* family = find_family(model_type_);
  return family != nullptr ? family->projections : kProjNames;
}

bool TargetRow::uses_numbers() const {
  if (source_.layers().empty()) return false;
  const std::string& name = source_.layers()[0].down[0].codes.tensor->entry.name;
  return name.find(".w2") != std::string::npos;
}
}  // namespace fp4moe::checkpoint
