#include "fp4moe/checkpoint/edit/transcode_fp8.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"

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

constexpr std::array<std::string_view, 3> kCodeEndings{".weight", ".weight_packed", ".qweight"};

// The module of a weight's name.
std::optional<std::string> module_of(std::string_view name) {
  for (const std::string_view ending : kCodeEndings)
    if (name.ends_with(ending)) return std::string(name.substr(0, name.size() - ending.size()));
  return std::nullopt;
}

// Quantizers pack into narrower integers; I64 is a table.
bool is_plain_number(DType type) {
  return type == DType::bf16 || type == DType::f16 || type == DType::f32 || type == DType::f64 ||
         type == DType::i64;
}

// Scales of what a module computes, not of its codes: the KV cache's.
bool scales_outputs(std::string_view name) {
  if (name.ends_with("output_scale")) return true;
  const std::array cache{".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".prob_scale"};
  return std::ranges::any_of(cache, [&](const char* part) { return name.ends_with(part); });
}

}  // namespace

Fp8Modules::Fp8Modules(const Checkpoint& source, Dialect target, std::span<const QuantClaim> claims,
                       const Fp4Modules& fp4)
    : source_(source), fp4_(fp4), target_(target), format_(source.dialect().format) {
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

// The codes of the module, of this name or around it, whose numbers the tensor changes; null: none.
const StoredTensor* Fp8Modules::codes_changed_by(const std::string& name) const {
  if (!changes_numbers(name) || scales_outputs(name)) return nullptr;
  for (std::size_t dot = name.rfind('.'); dot != std::string::npos && dot > 0;
       dot = name.rfind('.', dot - 1)) {
    const std::string_view part = std::string_view(name).substr(dot + 1);
    if (!changes_numbers(part)) continue;
    for (const std::string_view ending : kCodeEndings) {
      const StoredTensor* codes = source_.store().find(name.substr(0, dot) + std::string(ending));
      if (codes == nullptr || codes->entry.name == name || is_plain_number(codes->entry.dtype))
        continue;
      const auto fp8 = modules_.find(codes->entry.name);
      const bool is_its_own =
          fp8 != modules_.end() && fp8->second.inputs == Fp8Inputs::stored && part == "input_scale";
      return is_its_own ? nullptr : codes;
    }
  }
  return nullptr;
}

Result<Done> Fp8Modules::check(const StoredTensor& tensor, OtherTensor& other) const {
  const std::string& name = tensor.entry.name;
  if (const Fp8Module* module = of_scale(name)) {
    other.spec.shape = fp8_scale_shape(target_, *module, other.spec.shape);
    return Done{};
  }
  const StoredTensor* codes = codes_changed_by(name);
  if (codes == nullptr) return check_weight(tensor);
  if (Result<Done> fine = check_weight(*codes); !fine) return fine;
  const std::string part = name.substr(module_of(codes->entry.name)->size() + 1);
  return usage("transcode.mixed_precision",
               "a quantized module outside the experts has an unsupported tensor")
      .at(name)
      .expects("codes and the scales of their format", fmt::format("also \"{}\"", printable(part)))
      .try_this("Keep the dialect, or export the checkpoint without this part");
}

Result<Done> Fp8Modules::check_weight(const StoredTensor& tensor) const {
  const std::string& name = tensor.entry.name;
  const DType type = tensor.entry.dtype;
  const std::optional<std::string> module = module_of(name);
  if (!module || is_plain_number(type) || !tensor::row(type).in_safetensors) return Done{};
  const std::optional<UnreadScheme> unread = fp4_.unread(*module);
  const auto fp8 = modules_.find(name);
  const bool is_fp8 = fp8 != modules_.end();
  if (!unread) {
    if (is_fp8 && can_tell(target_, fp8->second)) return Done{};
    if (const auto fp4 = fp4_.find(*module); fp4 && fp4->codes == &tensor) return Done{};
  }
  const std::string scales = type == DType::f8_e4m3 ? "" : fp4_.scales_text(*module);
  const std::string what =
      unread   ? std::string(unread->what)
      : is_fp8 ? to_words(fp8->second)
               : fmt::format("{} with scales of a kind that is not known{}", tensor::name(type),
                             scales.empty() ? scales : fmt::format(": {}", scales));
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
