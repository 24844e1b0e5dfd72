#include "fp4moe/checkpoint/edit/transcode_fp4.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "fp4moe/checkpoint/stored_scalar.hpp"
#include "fp4moe/checkpoint/write/tensor_names.hpp"

namespace fp4moe::checkpoint {

using tensor::DType;
using tensor::Shape;
using tensor::StoredTensor;

const DialectRow* module_row(Dialect dialect, WeightFormat format) {
  const bool has_modules = name_family(dialect) == NameFamily::hugging_face;
  return has_modules ? find_row(dialect, format, Grouping::per_expert, false) : nullptr;
}

Fp4Modules::Fp4Modules(const Checkpoint& source, std::span<const QuantClaim> claims)
    : source_(source),
      claims_(claims),
      row_(module_row(source.dialect().dialect, source.dialect().format)),
      has_unread_(std::ranges::any_of(claims, &QuantClaim::has_unread)) {}

const StoredTensor* Fp4Modules::part(const std::string& module, std::string_view ending) const {
  return ending.empty() ? nullptr : source_.store().find(module + std::string(ending));
}

std::optional<Fp4Module> Fp4Modules::find(const std::string& module) const {
  if (row_ == nullptr) return std::nullopt;
  const Fp4Module found{.codes = part(module, row_->parts.codes),
                        .scales = part(module, row_->parts.scales)};
  if (found.codes == nullptr || found.scales == nullptr) return std::nullopt;
  const Shape &codes = found.codes->entry.shape, &scales = found.scales->entry.shape;
  if (found.codes->entry.dtype != row_->codes_dtype || codes.size() != 2 ||
      !is_scale_type(row_->format, found.scales->entry.dtype))
    return std::nullopt;
  const std::uint64_t block = block_size(row_->format), k = codes[1] * 2;
  if (k == 0 || k % block != 0 || scales != Shape{codes[0], k / block}) return std::nullopt;
  const bool needs_global = !row_->parts.global_scale.empty();
  if (needs_global && part(module, row_->parts.global_scale) == nullptr) return std::nullopt;
  if (unread(module)) return std::nullopt;
  return Fp4Module{.codes = found.codes, .scales = found.scales, .rows = codes[0], .k = k};
}

std::optional<UnreadScheme> Fp4Modules::unread(std::string_view module) const {
  if (!has_unread_) return std::nullopt;
  for (const QuantClaim& claim : claims_)
    if (const auto why = claim.unread(module); why && claim.excluded.find(module) == nullptr)
      return why;
  return std::nullopt;
}

std::string Fp4Modules::scales_text(const std::string& module) const {
  std::string words;
  if (row_ == nullptr) return words;
  for (const std::string_view ending : {row_->parts.scales, row_->parts.global_scale}) {
    if (ending.empty()) continue;
    const std::string_view name = ending.substr(1);  // without the dot
    const StoredTensor* found = part(module, ending);
    words += words.empty() ? "" : ", ";
    words += found == nullptr ? fmt::format("no {}", name)
                              : fmt::format("{} {} {}", name, tensor::name(found->entry.dtype),
                                            tensor::text(found->entry.shape));
  }
  return words;
}

Result<Done> check_module_scalar(const tensor::Store& store, const StoredTensor& tensor,
                                 bool is_input) {
  const DType type = tensor.entry.dtype;
  const bool is_half = type == DType::bf16 || type == DType::f16;
  if (type != DType::f32 && !(is_input && is_half))
    return invalid("tensor.dtype", "a scale of a module outside the experts has the wrong type")
        .in(store.path(tensor))
        .at(tensor.entry.name)
        .expects(is_input ? "F32, BF16 or F16" : "F32", tensor::name(type));
  if (has_scalar_for_each(tensor))
    return invalid("tensor.shape", "a scale of a module outside the experts is not one number")
        .in(store.path(tensor))
        .at(tensor.entry.name)
        .expects("[] or [1]", tensor::text(tensor.entry.shape));
  return Done{};
}

}  // namespace fp4moe::checkpoint
