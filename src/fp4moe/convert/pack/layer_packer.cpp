#include "fp4moe/convert/pack/layer_packer.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/convert/pack/bias.hpp"
#include "fp4moe/convert/pack/layer_packer_tensors.hpp"

namespace fp4moe::convert {

using layout::Element;
using layout::IndexMap;
using tensor::DType;

namespace {

Error size_error(std::string_view what, std::uint64_t found, std::uint64_t need) {
  return usage("layout.size", fmt::format("the {} does not fit the layout", what))
      .expects(fmt::format("a multiple of {}", need), fmt::format("{}", found))
      .try_this(fmt::format("pad it to {}", round_up(found, need)));
}

// If all of k is one scale group, the kernel permutes scales singly.
const layout::Map& scale_map(const layout::Layout& layout, std::uint64_t k) {
  const bool is_one_group = k == block_size(layout.format);
  return is_one_group && layout.one_group_scales ? *layout.one_group_scales : layout.scales;
}

struct MatrixSizes {
  std::uint64_t rows = 0, k = 0, padded_k = 0;
};

Result<IndexMap> bind_codes(const layout::Map& map, const MatrixSizes& sizes) {
  const std::uint64_t per = map.element == Element::nibble ? 1 : 2;
  return IndexMap::bind(map, {sizes.rows, sizes.k / per}, {sizes.rows, sizes.padded_k / per});
}

Result<IndexMap> bind_scales(const layout::Layout& layout, const MatrixSizes& sizes) {
  const std::uint64_t block = block_size(layout.format);
  return IndexMap::bind(scale_map(layout, sizes.padded_k), {sizes.rows, sizes.k / block},
                        {sizes.rows, sizes.padded_k / block});
}

}  // namespace

Result<LayerPacker> LayerPacker::make(const layout::Layout& layout, const Problem& problem) {
  LayerPacker result(layout);
  result.problem_ = problem;
  Problem& p = result.problem_;
  if (p.global_experts == 0) p.global_experts = p.experts;
  p.padded.hidden = std::max(p.padded.hidden, p.real.hidden);
  p.padded.intermediate = std::max(p.padded.intermediate, p.real.intermediate);
  const std::uint64_t block = block_size(layout.format);
  for (const std::uint64_t size : {p.real.hidden, p.padded.hidden})
    if (size == 0 || size % block != 0) return size_error("hidden size", size, block);
  for (const std::uint64_t size : {p.real.intermediate, p.padded.intermediate})
    if (size == 0 || size % block != 0) return size_error("intermediate size", size, block);
  const bool gated = p.order != checkpoint::RowOrder::single;
  const std::uint64_t rows13 = p.padded.intermediate * (gated ? 2 : 1);
  if (gated && layout.order.block > 1 && p.padded.intermediate % layout.order.block != 0)
    return size_error("intermediate size", p.padded.intermediate, layout.order.block);
  if (gated && rows13 % layout.gated_rows != 0)
    return size_error("intermediate size", p.padded.intermediate, layout.gated_rows / 2);
  if (layout.has_shuffled_rows)
    for (const std::uint64_t rows : {rows13, p.padded.hidden})
      if (rows % 32 != 0) return size_error("number of rows", rows, 32);
  if (p.params_type != DType::bf16 && p.params_type != DType::f16)
    return usage("layout.params", "parameters are of another type")
        .expects("bf16 or f16", tensor::name(p.params_type))
        .try_this("give bf16, which every kernel takes");
  if (p.params_type == DType::f16 && !layout.has_f16_params)
    return usage("layout.params", fmt::format("kernels of {} take BF16 alone", layout.id))
        .expects("bf16", "f16")
        .try_this("leave the type of parameters at bf16");

  const MatrixSizes w13{rows13, p.real.hidden, p.padded.hidden};
  const MatrixSizes w2{p.padded.hidden, p.real.intermediate, p.padded.intermediate};
  const auto bind = [](std::optional<IndexMap>& to, Result<IndexMap> bound,
                       std::string_view name) -> Result<Done> {
    if (!bound) return Error(bound.why()).at(name);
    to = *bound;
    return Done{};
  };
  for (const Result<Done>& bound :
       {bind(result.codes13_, bind_codes(layout.codes, w13), kTensorNames[kW13]),
        bind(result.codes2_, bind_codes(layout.codes, w2), kTensorNames[kW2]),
        bind(result.scales13_, bind_scales(layout, w13), kTensorNames[kW13Scale]),
        bind(result.scales2_, bind_scales(layout, w2), kTensorNames[kW2Scale])})
    if (!bound) return bound.why();
  result.facts_.resize(p.experts);
  result.find_stored_rows();
  if (Result<Done> added = result.add_tensors(); !added) return added.why();
  return result;
}

Result<Done> LayerPacker::add_tensors() {
  const auto matrix = [&](std::size_t index, const IndexMap& map, DType type) {
    tensors_.push_back({.name = std::string(kTensorNames[index]),
                        .dtype = type,
                        .shape = layout::stored_shape(map, problem_.experts),
                        .kernel = layout::kernel_shape(map, problem_.experts),
                        .bytes = map.bytes() * problem_.experts,
                        .expert_bytes = map.bytes()});
  };
  const auto vector = [&](std::string_view name, DType type, const tensor::Shape& shape) {
    PackedTensorSpec& result = tensors_.emplace_back(
        PackedTensorSpec{.name = std::string(name), .dtype = type, .shape = shape});
    result.kernel = {.extents = shape, .strides = std::vector<std::uint64_t>(shape.size(), 1)};
    for (std::size_t i = shape.size(); i-- > 1;)
      result.kernel.strides[i - 1] = result.kernel.strides[i] * shape[i];
    result.bytes = tensor::byte_count(type, shape).value_or(0);
  };
  matrix(kW13, *codes13_, layout_.codes_type);
  matrix(kW2, *codes2_, layout_.codes_type);
  if (!layout_.one_record) {
    matrix(kW13Scale, *scales13_, layout_.scales_type);
    matrix(kW2Scale, *scales2_, layout_.scales_type);
  }
  if (problem_.has_bias) {
    const DType type = stored_bias(layout_.bias_type, problem_.bias_type);
    const std::uint64_t rows[] = {codes13_->logical().rows, codes2_->logical().rows};
    for (std::size_t i = 0; i < 2; ++i) {
      vector(kTensorNames[kW13Bias + i], type, {problem_.experts, rows[i]});
      tensors_.back().expert_bytes =
          tensors_.back().bytes / std::max<std::uint64_t>(problem_.experts, 1);
      const std::uint64_t multiple =
          layout_.bias_transform == nullptr ? 1 : layout_.bias_transform->multiple;
      if (rows[i] % multiple != 0)
        return size_error("number of rows", rows[i], multiple).at(kTensorNames[kW13Bias + i]);
    }
  }
  for (const ScalarTensor& scalar :
       scalar_tensors(layout_.scalars, scalar_problem(), problem_.experts))
    vector(scalar.name, scalar.dtype, scalar.shape);
  return Done{};
}

std::uint64_t LayerPacker::expert_bytes() const {
  std::uint64_t total = 0;
  for (const PackedTensorSpec& tensor : tensors_) total += tensor.expert_bytes;
  return total;
}

bool LayerPacker::needs_all_experts() const {
  return layout_.scale_transform != nullptr && layout_.scale_transform->has_shared_exponent;
}

Result<Done> LayerPacker::check(std::size_t position, const checkpoint::ExpertView& view) const {
  if (position >= facts_.size())
    return usage("layout.position", "there is no such expert on this rank")
        .expects(fmt::format("below {}", facts_.size()), fmt::format("{}", position));
  const checkpoint::MoeShape& shape = view.shape;
  if (shape.hidden != problem_.real.hidden || shape.intermediate != problem_.real.intermediate ||
      shape.format != layout_.format ||
      shape.gated() != (problem_.order != checkpoint::RowOrder::single))
    return usage("layout.expert", "the expert is not what the layout was made for")
        .expects(fmt::format("{} {} x {}", name(layout_.format), problem_.real.intermediate,
                             problem_.real.hidden),
                 fmt::format("{} {} x {}", name(shape.format), shape.intermediate, shape.hidden));
  return Done{};
}

Result<Done> LayerPacker::note(std::size_t position, const checkpoint::ExpertView& view) {
  if (Result<Done> fits = check(position, view); !fits) return fits;
  Facts& facts = facts_[position];
  facts.scalars = {view.gate.global_scale, view.up.global_scale, view.down.global_scale,
                   view.gate.input_scale,  view.up.input_scale,  view.down.input_scale};
  facts.is_noted = true;
  if (layout_.scale_transform == nullptr) return Done{};
  facts.w13 = extremes_of(layout_.format, view.up.scales);
  if (view.shape.gated()) facts.w13.add(extremes_of(layout_.format, view.gate.scales));
  facts.w2 = extremes_of(layout_.format, view.down.scales);
  return Done{};
}

void LayerPacker::set_all_input_scales(InputScales scales) { all_inputs_ = std::move(scales); }

void LayerPacker::find_stored_rows() {
  const bool is_single = problem_.order == checkpoint::RowOrder::single;
  const bool is_interleaved = problem_.order == checkpoint::RowOrder::interleaved;
  for (unsigned which = 0; which < 3; ++which) {
    const bool is_in_order = which == 2 || is_single;
    rows_[which].resize(which == 2 ? problem_.real.hidden : problem_.real.intermediate);
    for (std::uint64_t i = 0; i < rows_[which].size(); ++i) {
      const std::uint64_t row =
          is_in_order
              ? i
              : layout::w13_row(layout_, problem_.real, problem_.padded, is_interleaved, which, i);
      rows_[which][i] = layout_.has_shuffled_rows ? layout::shuffled_row(row) : row;
    }
  }
}

ScalarProblem LayerPacker::scalar_problem() const {
  ScalarProblem result{.gated = problem_.order != checkpoint::RowOrder::single,
                       .params_type = problem_.params_type,
                       .all_inputs = all_inputs_ ? &*all_inputs_ : nullptr};
  // pack() has refused what has no exponent.
  const auto exponent = [&](const ScaleExtremes& extremes) {
    const Result<int> found = exponent_of(layout_.scale_transform, extremes, problem_.params_type);
    return found ? *found : 0;
  };
  ScaleExtremes all13, all2;
  for (const Facts& facts : facts_) {
    all13.add(facts.w13);
    all2.add(facts.w2);
    result.w13_exponents.push_back(exponent(facts.w13));
    result.w2_exponents.push_back(exponent(facts.w2));
  }
  if (!needs_all_experts()) return result;
  result.w13_exponents.assign(facts_.size(), exponent(all13));
  result.w2_exponents.assign(facts_.size(), exponent(all2));
  return result;
}

Result<Done> LayerPacker::pack_scalars(std::span<const std::span<std::byte>> targets) const {
  std::vector<ExpertScalars> experts;
  for (const Facts& facts : facts_) {
    if (!facts.is_noted)
      return usage("layout.notes", "not every expert was packed")
          .expects(fmt::format("{} experts", facts_.size()), "fewer")
          .try_this("pack() or note() all of them first");
    experts.push_back(facts.scalars);
  }
  const Result<std::vector<ScalarTensor>> result =
      make_scalars(layout_.scalars, scalar_problem(), experts);
  if (!result) return result.why();
  const std::size_t first = tensors_.size() - result->size();
  for (std::size_t i = 0; i < result->size(); ++i) {
    const ScalarTensor& tensor = (*result)[i];
    if (targets[first + i].size() != tensors_[first + i].bytes)
      return usage("layout.memory", "the memory for a tensor has another size")
          .at(tensor.name)
          .expects(fmt::format("{} bytes", tensors_[first + i].bytes),
                   fmt::format("{}", targets[first + i].size()));
    const BiasStore store{targets[first + i], tensor.dtype};
    for (std::size_t e = 0; e < tensor.values.size(); ++e) put_float(tensor.values[e], store, e);
  }
  return Done{};
}

}  // namespace fp4moe::convert
