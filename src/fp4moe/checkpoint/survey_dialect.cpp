#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "fp4moe/base/enum_set.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/models.hpp"
#include "fp4moe/checkpoint/survey.hpp"

namespace fp4moe::checkpoint {
namespace {

using tensor::DType;
using Types = EnumSet<DType>;

constexpr std::array kCodeTypes{DType::u8, DType::i8, DType::f4};
constexpr std::array kFloatTypes{DType::bf16, DType::f16, DType::f32};
constexpr std::array kFp8Types{DType::f8_e4m3, DType::f8_e5m2, DType::f8_e4m3fnuz,
                               DType::f8_e5m2fnuz};
constexpr std::array kE8m0Types{DType::u8, DType::f8_e8m0};

constexpr std::string_view kUnknownOrder =
    "gate_up_proj of single experts: whether gate and up rows alternate or follow each other is "
    "known for gpt_oss as Quark writes it only";

// The parts that occur in a layer, each with the types it occurs in.
class Parts {
 public:
  explicit Parts(const NamedLayer& layer) {
    for (const NamedTensor& item : layer.tensors) {
      types_[item.name.part].insert(item.tensor->entry.dtype);
      if (is_weight(item.name.part))
        weights_[item.name.projection].insert(item.tensor->entry.dtype);
      has_numbers_ = has_numbers_ || item.name.expert.has_value();
      has_fused_ = has_fused_ || item.name.projection == StoredProjection::gate_up;
      has_numbered_fused_ = has_numbered_fused_ ||
                            (item.name.expert && item.name.projection == StoredProjection::gate_up);
    }
  }
  bool has(std::string_view part) const { return types_.find(part) != types_.end(); }
  template <std::size_t kSize>
  bool is(std::string_view part, const std::array<DType, kSize>& any) const {
    const auto at = types_.find(part);
    return at != types_.end() && std::any_of(any.begin(), any.end(),
                                             [&](DType type) { return at->second.contains(type); });
  }
  bool is(std::string_view part, DType type) const { return is(part, std::array{type}); }
  // The type of a projection that has no FP4 in any expert, where another one has it in all.
  std::optional<DType> other_projection() const {
    std::optional<DType> other;
    bool has_fp4 = false;
    for (const auto& [projection, found] : weights_) {
      const auto& types = found;  // clang 14 captures no structured binding
      const bool any = std::any_of(kCodeTypes.begin(), kCodeTypes.end(),
                                   [&](DType type) { return types.contains(type); });
      has_fp4 = has_fp4 || any;
      for (const tensor::DTypeRow& row : tensor::kDTypes)
        if (!any && types.contains(row.dtype)) other = row.dtype;
    }
    return has_fp4 ? other : std::nullopt;
  }
  bool has_numbers() const { return has_numbers_; }
  bool has_numbered_fused() const { return has_numbered_fused_; }

  // ".weight U8, .weight_scale F8_E4M3"
  std::string text() const {
    std::string whole = "tensors ";
    std::size_t shown = 0;
    for (const auto& [part, types] : types_) {
      if (shown++ == 8) return whole + ", ...";
      if (shown > 1) whole += ", ";
      whole += part.empty() ? std::string("(no suffix)") : printable(part);
      for (const tensor::DTypeRow& row : tensor::kDTypes) {
        if (types.contains(row.dtype)) whole += fmt::format(" {}", row.name);
      }
    }
    return whole;
  }

 private:
  static bool is_weight(std::string_view part) {
    return part == ".weight" || part == ".weight_packed";
  }

  std::map<std::string_view, Types> types_{};
  std::map<StoredProjection, Types> weights_{};
  bool has_numbers_ = false, has_fused_ = false, has_numbered_fused_ = false;
};

const DialectRow* per_expert_row(Dialect dialect, WeightFormat format) {
  return find_row(dialect, format, Grouping::per_expert, false);
}
const DialectRow* fused_row(Dialect dialect) {
  return find_row(dialect, WeightFormat::mxfp4, Grouping::fused, true);
}

void refuse(DialectVerdict& verdict, std::string_view id, std::string_view why) {
  verdict.why_id = id;
  verdict.why = why;
}

bool claims(const ModelFacts& facts, Dialect dialect) {
  return std::any_of(facts.claims.begin(), facts.claims.end(),
                     [dialect](const QuantClaim& claim) { return claim.dialect == dialect; });
}

void name_float(DialectVerdict& verdict, const Parts& parts, std::string_view part) {
  verdict.is_float = true;
  for (const DType type : kFloatTypes) {
    if (parts.is(part, type)) {
      verdict.other = tensor::name(type);
      return;
    }
  }
}

// The scheme of weights that are neither FP4 nor plain floats, by the marks other quantizers leave.
std::string foreign_scheme(const Parts& parts, std::string_view codes) {
  if (parts.is(".qweight", DType::i32)) return "INT4 (AWQ or GPTQ)";
  if (parts.has(".weight.absmax") || parts.has(".weight.quant_map")) return "bitsandbytes";
  if (parts.is(codes, DType::u32)) return "MLX quantization";
  if (parts.is(codes, DType::i32)) return "integers packed by compressed-tensors";
  if (parts.is(codes, kFp8Types)) return "FP8";
  if (parts.is(codes, DType::i8)) return "INT8";
  return "of an unknown kind";
}

void classify_compressed(DialectVerdict& verdict, const Parts& parts) {
  const bool has_global = parts.has(".weight_global_scale");
  const bool e4m3 = parts.is(".weight_scale", DType::f8_e4m3);
  const bool e8m0 = parts.is(".weight_scale", kE8m0Types);
  if (e4m3 && e8m0) {
    refuse(verdict, "dialect.contradiction", "block scales are E4M3 (NVFP4) and E8M0 (MXFP4) both");
  } else if (e8m0 && has_global) {
    refuse(verdict, "dialect.contradiction",
           ".weight_scale is E8M0 (MXFP4) but .weight_global_scale exists (NVFP4)");
  } else if (e4m3 || has_global) {
    verdict.row = per_expert_row(Dialect::compressed_tensors, WeightFormat::nvfp4);
  } else if (e8m0) {
    verdict.row = per_expert_row(Dialect::compressed_tensors, WeightFormat::mxfp4);
  } else {
    refuse(verdict, "dialect.ambiguous",
           ".weight_packed without block scales that tell NVFP4 from MXFP4");
  }
}

// ModelOpt's and Quark's names are nearly the same; what the configuration says decides, then the
// one name that only Quark has.
Dialect weight_dialect(const Parts& parts, const ModelFacts& facts, WeightFormat format) {
  if (claims(facts, Dialect::modelopt)) return Dialect::modelopt;
  if (claims(facts, Dialect::quark)) return Dialect::quark;
  const bool quark = format == WeightFormat::mxfp4 || parts.has(".input_scale_2");
  return quark ? Dialect::quark : Dialect::modelopt;
}

void classify_weight(DialectVerdict& verdict, const Parts& parts, const ModelFacts& facts) {
  const bool second = parts.has(".weight_scale_2");
  const bool e4m3 = parts.is(".weight_scale", DType::f8_e4m3);
  const bool e8m0 = parts.is(".weight_scale", kE8m0Types);
  const bool is_claimed = claims(facts, Dialect::modelopt) || claims(facts, Dialect::quark);
  const auto take = [&](WeightFormat format) {
    const Dialect dialect = weight_dialect(parts, facts, format);
    verdict.row = find_row(dialect, format, Grouping::per_expert, parts.has_numbered_fused());
    if (verdict.row == nullptr) refuse(verdict, "dialect.unsupported", kUnknownOrder);
  };
  if (e4m3 && e8m0) {
    refuse(verdict, "dialect.contradiction", "block scales are E4M3 (NVFP4) and E8M0 (MXFP4) both");
  } else if (e8m0 && second) {
    refuse(verdict, "dialect.contradiction",
           ".weight_scale is E8M0 (MXFP4) but .weight_scale_2 exists (NVFP4)");
  } else if (e4m3 && !second && !is_claimed) {
    refuse(verdict, "dialect.ambiguous",
           "E4M3 block scales as in ModelOpt NVFP4, but no .weight_scale_2 and no configuration "
           "that says modelopt");
  } else if (e4m3 || (second && !parts.has(".weight_scale"))) {
    take(WeightFormat::nvfp4);
  } else if (e8m0) {
    take(WeightFormat::mxfp4);
  } else if (parts.has(".scale") && parts.is(".scale", kE8m0Types)) {
    verdict.row = per_expert_row(Dialect::deepseek_v4, WeightFormat::mxfp4);
  } else {
    verdict.other = foreign_scheme(parts, ".weight");
  }
}

void classify_per_expert(DialectVerdict& verdict, const Parts& parts, const ModelFacts& facts) {
  // A layer that is FP4 in part only is not supported; others may be.
  if (const auto other = parts.other_projection()) {
    verdict.other = fmt::format("FP4 and {} mixed", tensor::name(*other));
    return;
  }
  const bool joined = parts.has_numbered_fused();
  if (joined && !(parts.is(".weight", kCodeTypes) && facts.model.model_type == "gpt_oss")) {
    refuse(verdict, "dialect.unsupported", kUnknownOrder);
  } else if (parts.is(".weight_packed", kCodeTypes)) {
    classify_compressed(verdict, parts);
  } else if (parts.has(".weight_packed")) {
    verdict.other = foreign_scheme(parts, ".weight_packed");
  } else if (parts.is(".weight", kCodeTypes)) {
    classify_weight(verdict, parts, facts);
  } else if (parts.is(".weight", kFloatTypes) && !parts.has(".qweight")) {
    name_float(verdict, parts, ".weight");
  } else {
    verdict.other = foreign_scheme(parts, ".weight");
  }
}

// ModelOpt's fused experts, as transformers' modules have them: columns are packed.
void classify_columns(DialectVerdict& verdict, const Parts& parts, const ModelFacts& facts) {
  const bool e4m3 = parts.is("_weight_scale", DType::f8_e4m3);
  if (!e4m3 && !parts.is("_weight_scale", kE8m0Types)) {
    verdict.other = foreign_scheme(parts, "");
  } else if (!joined_order(facts.model.model_type)) {
    refuse(verdict, "dialect.ambiguous",
           fmt::format("fused gate_up_proj of model_type \"{}\": whether its rows alternate is not "
                       "known for this family",
                       printable(facts.model.model_type)));
  } else {
    verdict.row = find_row(Dialect::modelopt, e4m3 ? WeightFormat::nvfp4 : WeightFormat::mxfp4,
                           Grouping::fused, true);
  }
}

void classify_fused(DialectVerdict& verdict, const Parts& parts, const ModelFacts& facts) {
  if (parts.is("_blocks", kCodeTypes)) {
    verdict.row = fused_row(Dialect::gpt_oss);
  } else if (parts.is(".weight", kCodeTypes) && parts.is(".weight_scale", kE8m0Types)) {
    const std::string& model = facts.model.model_type;
    if (model.empty() || model == "gpt_oss") {
      verdict.row = fused_row(Dialect::quark);
    } else {
      refuse(verdict, "dialect.ambiguous",
             fmt::format("fused gate_up_proj of model_type \"{}\": whether its rows alternate is "
                         "known for gpt_oss only",
                         printable(model)));
    }
  } else if (parts.is(".weight", kCodeTypes) && parts.is(".weight_scale", DType::f8_e4m3)) {
    verdict.other = "fused NVFP4 in rows, which no known tool writes";
  } else if (parts.is("", kCodeTypes) && parts.has("_weight_scale")) {
    classify_columns(verdict, parts, facts);
  } else if (parts.is("", kFloatTypes)) {
    name_float(verdict, parts, "");
  } else if (parts.is(".weight", kFloatTypes)) {
    name_float(verdict, parts, ".weight");
  } else {
    verdict.other = foreign_scheme(parts, parts.has("") ? "" : ".weight");
  }
}

void classify_gguf(DialectVerdict& verdict, const Parts& parts) {
  const bool mxfp4 = parts.is(".weight", DType::gguf_mxfp4);
  const bool nvfp4 = parts.is(".weight", DType::gguf_nvfp4);
  if (mxfp4 && nvfp4) {
    refuse(verdict, "dialect.mixed", "projections of one layer are MXFP4 and NVFP4");
  } else if (mxfp4 || nvfp4) {
    // A layer that is FP4 in part only is not supported; others may be.
    for (const tensor::DTypeRow& type : tensor::kDTypes)
      if (type.dtype != DType::gguf_mxfp4 && type.dtype != DType::gguf_nvfp4 &&
          parts.is(".weight", type.dtype))
        verdict.other = fmt::format("{} and {} mixed", mxfp4 ? "MXFP4" : "NVFP4", type.name);
    if (!verdict.other.empty()) return;
    verdict.row = find_row(Dialect::gguf, mxfp4 ? WeightFormat::mxfp4 : WeightFormat::nvfp4);
  } else if (parts.is(".weight", kFloatTypes)) {
    name_float(verdict, parts, ".weight");
  } else {
    verdict.other = "of an unknown kind";
    for (const tensor::DTypeRow& type : tensor::kDTypes)
      if (!type.in_safetensors && parts.is(".weight", type.dtype)) verdict.other = type.name;
  }
}

}  // namespace

DialectVerdict classify(const NamedLayer& layer, const ModelFacts& facts) {
  const Parts parts(layer);
  DialectVerdict verdict{.fact = parts.text()};
  if (layer.family == NameFamily::gguf) {
    classify_gguf(verdict, parts);
  } else if (layer.family == NameFamily::openai) {
    if (parts.is("_weight.blocks", kCodeTypes)) {
      verdict.row = fused_row(Dialect::openai);
    } else if (parts.is("_weight", kFloatTypes)) {
      name_float(verdict, parts, "_weight");
    } else {
      verdict.other = foreign_scheme(parts, "_weight");
    }
  } else if (parts.has_numbers()) {
    classify_per_expert(verdict, parts, facts);
  } else {
    classify_fused(verdict, parts, facts);
  }
  return verdict;
}

}  // namespace fp4moe::checkpoint
