#include "fp4moe/checkpoint/edit/transcode_fp8.hpp"

#include <utility>

#include <fmt/format.h>

#include "fp4moe/checkpoint/write/tensor_names.hpp"

namespace fp4moe::checkpoint {
namespace {

using tensor::DType;
using tensor::StoredTensor;

// The FP8 schemes that a target's documents can express.
std::string_view tellable(Dialect target) {
  switch (target) {
    case Dialect::modelopt:
      return ", FP8 with one scale and one for activations, with a scale for each row and "
             "activations quantized dynamically, or for each block of 128x128";
    case Dialect::compressed_tensors:
    case Dialect::quark:
      return ", FP8 with one scale, or with one for each row or block";
    default:
      return "";
  }
}

}  // namespace

const DialectRow* module_row(Dialect dialect, WeightFormat format) {
  const bool has_modules = name_family(dialect) == NameFamily::hugging_face;
  return has_modules ? find_row(dialect, format, Grouping::per_expert, false) : nullptr;
}

Fp8Modules::Fp8Modules(const Checkpoint& source, Dialect target, std::span<const QuantClaim> claims)
    : target_(target), format_(source.dialect().format) {
  const bool is_told = module_row(source.dialect().dialect, format_) != nullptr;
  for (const StoredTensor& tensor : source.store().tensors())
    if (auto module = find_fp8_module(source.store(), tensor, claims); module && is_told)
      modules_.emplace(tensor.entry.name, *std::move(module));
}

const Fp8Module* Fp8Modules::of_scale(std::string_view name) const {
  constexpr std::string_view kEnding = "_scale";
  if (!name.ends_with(".weight_scale")) return nullptr;
  const auto found = modules_.find(std::string(name.substr(0, name.size() - kEnding.size())));
  return found != modules_.end() ? &found->second : nullptr;
}

Result<Done> Fp8Modules::check(const StoredTensor& tensor, OtherTensor& other) const {
  const std::string& name = tensor.entry.name;
  const DType type = tensor.entry.dtype;
  if (const Fp8Module* module = of_scale(name)) {
    other.spec.shape = fp8_scale_shape(target_, *module, other.spec.shape);
    return Done{};
  }
  const bool is_weight =
      name.ends_with(".weight") || name.ends_with(".weight_packed") || name.ends_with(".qweight");
  // Quantizers pack into narrower integers; I64 is a table.
  const bool is_plain = type == DType::bf16 || type == DType::f16 || type == DType::f32 ||
                        type == DType::f64 || type == DType::i64;
  if (!is_weight || is_plain || !tensor::row(type).in_safetensors) return Done{};
  const auto found = modules_.find(name);
  if (found != modules_.end() && can_tell(target_, found->second)) return Done{};
  const std::string what = found != modules_.end() ? to_words(found->second)
                                                   : std::string(tensor::name(type)) +
                                                         " with scales of a kind that is not known";
  return usage("transcode.mixed_precision",
               fmt::format("a module outside the experts is quantized in a way that {} cannot "
                           "tell",
                           fp4moe::checkpoint::name(target_)))
      .at(name)
      .expects(fmt::format("modules in {} or in full precision{}",
                           fp4moe::checkpoint::name(format_), tellable(target_)),
               what)
      .try_this("Keep the dialect: its configuration says which module has which format");
}

}  // namespace fp4moe::checkpoint
