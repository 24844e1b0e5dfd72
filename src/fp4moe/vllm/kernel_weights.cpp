#include "fp4moe/vllm/kernel_weights.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/convert/pack/bias.hpp"
#include "fp4moe/convert/pack/pack_layer.hpp"
#include "fp4moe/moe/rows.hpp"
#include "fp4moe/vllm/converter.hpp"
#include "fp4moe/vllm/rows.hpp"
#include "fp4moe/vllm/tensor_check.hpp"

namespace fp4moe::vllm {
namespace {

using checkpoint::MoeShape;
using checkpoint::RowOrder;
using tensor::DType;

// The four big tensors of either format, by the names their callers know.
struct BigTensors {
  std::string_view w13_name, w2_name, w13_scale_name, w2_scale_name;
  const TensorView &w13, &w2, &w13_scale, &w2_scale;
};
BigTensors big(const Mxfp4Tensors& given) {
  return {"w13_weight",     "w2_weight",     "w13_weight_scale",     "w2_weight_scale",
          given.w13_weight, given.w2_weight, given.w13_weight_scale, given.w2_weight_scale};
}
BigTensors big(const NvFp4Tensors& given) {
  return {"w13",     "w2",     "w13_scale",     "w2_scale",
          given.w13, given.w2, given.w13_scale, given.w2_scale};
}

// Sizes are w2's to say; the others must fit them.
Result<MoeShape> check_big(const BigTensors& given, WeightFormat format, RowOrder order) {
  for (const auto& [name, tensor] :
       {std::pair(given.w13_name, &given.w13), std::pair(given.w2_name, &given.w2)})
    if (const auto fine = check_dimensions(name, *tensor, 3); !fine) return fine.why();
  const tensor::Shape& w2 = given.w2.shape;
  if (w2[2] > std::numeric_limits<std::uint64_t>::max() / 4)
    return usage("vllm.tensor", "a tensor is larger than memory can be").at(given.w2_name);
  const MoeShape shape{.format = format,
                       .experts = w2[0],
                       .hidden = w2[1],
                       .intermediate = 2 * w2[2],
                       .order = order};
  const std::uint64_t block = checkpoint::block_size(format), rows = shape.w13_rows();
  for (const auto& [name, size] :
       {std::pair("hidden", shape.hidden), std::pair("intermediate", shape.intermediate)})
    if (size % block != 0)
      return usage("vllm.tensor",
                   fmt::format("the {} size is not made of whole scale blocks", name))
          .at(given.w2_name)
          .expects(fmt::format("a multiple of {}", block), fmt::format("{}", size));
  const DType scale = format == WeightFormat::mxfp4 ? DType::f8_e8m0 : DType::f8_e4m3;
  for (const Result<Done>& fine :
       {check_tensor(given.w2_name, given.w2, {DType::u8}, w2),
        check_tensor(given.w13_name, given.w13, {DType::u8},
                     {shape.experts, rows, shape.hidden / 2}),
        check_tensor(given.w13_scale_name, given.w13_scale, {DType::u8, scale},
                     {shape.experts, rows, shape.hidden / block}),
        check_tensor(given.w2_scale_name, given.w2_scale, {DType::u8, scale},
                     {shape.experts, shape.hidden, shape.intermediate / block})})
    if (!fine) return fine.why();
  return shape;
}

// Strides are those of the loaded tensors: fewer hidden columns and rows may be in use.
checkpoint::MatrixWeights matrix(const MoeShape& loaded, std::uint64_t rows, std::uint64_t k,
                                 const TensorView& codes, const TensorView& scales) {
  const std::uint64_t blocks = k / checkpoint::block_size(loaded.format);
  return {.codes = {codes.bytes, rows * (k / 2), k / 2},
          .scales = {scales.bytes, rows * blocks, blocks}};
}

Result<checkpoint::LayerWeights> layer_weights(const BigTensors& given, const MoeShape& loaded,
                                               const ConversionOptions& options) {
  const std::uint64_t hidden = options.hidden == 0 ? loaded.hidden : options.hidden;
  const std::uint64_t block = checkpoint::block_size(loaded.format);
  if (hidden > loaded.hidden || hidden % block != 0)
    return usage("vllm.tensor", "more hidden columns are in use than the tensors have")
        .at(given.w2_name)
        .expects(fmt::format("at most {}, in whole blocks of {}", loaded.hidden, block),
                 fmt::format("{}", hidden));
  checkpoint::LayerWeights result{
      .shape = loaded,
      .w13 = matrix(loaded, loaded.w13_rows(), loaded.hidden, given.w13, given.w13_scale),
      .w2 = matrix(loaded, loaded.hidden, loaded.intermediate, given.w2, given.w2_scale)};
  result.shape.hidden = hidden;
  return result;
}

constexpr std::initializer_list<DType> kBiasTypes{DType::bf16, DType::f16, DType::f32};

Result<Done> add_biases(const Mxfp4Tensors& given, const MoeShape& loaded,
                        checkpoint::LayerWeights& to) {
  if (is_given(given.w13_bias)) {
    if (const auto fine = check_tensor("w13_bias", given.w13_bias, kBiasTypes,
                                       {loaded.experts, loaded.w13_rows()});
        !fine)
      return fine.why();
    to.w13.bias = {.bytes = given.w13_bias.bytes, .dtype = given.w13_bias.dtype};
  }
  if (is_given(given.w2_bias)) {
    if (const auto fine =
            check_tensor("w2_bias", given.w2_bias, kBiasTypes, {loaded.experts, loaded.hidden});
        !fine)
      return fine.why();
    to.w2.bias = {.bytes = given.w2_bias.bytes,
                  .dtype = given.w2_bias.dtype,
                  .expert_stride = loaded.hidden * moe::element_bytes(given.w2_bias.dtype)};
  }
  return Done{};
}

// [E], [E, 1] or [E, 2] where `pairs` may be; how many experts there are is found.
Result<std::vector<float>> scalars(std::string_view name, const TensorView& given, bool pairs) {
  const tensor::Shape& shape = given.shape;
  const bool fits =
      shape.size() == 1 || (shape.size() == 2 && (shape[1] == 1 || (pairs && shape[1] == 2)));
  if (!fits || shape[0] == 0)
    return usage("vllm.tensor", "a tensor has another shape")
        .at(name)
        .expects(pairs ? "[experts] or [experts, 2]" : "[experts]",
                 is_given(given) ? tensor::text(shape) : std::string("none given"));
  return floats_of(name, given);
}

Error other_experts(std::string_view name, std::uint64_t experts, const TensorView& given) {
  return usage("vllm.tensor", "a tensor is of another number of experts")
      .at(name)
      .expects(fmt::format("{} experts", experts), tensor::text(given.shape));
}

struct NvFp4Numbers {
  std::vector<float> w13_globals{}, w2_globals{}, w13_inputs{}, w2_inputs{};
};

Result<NvFp4Numbers> numbers_of(const NvFp4Tensors& given, const MoeShape& shape) {
  NvFp4Numbers result;
  const auto read = [&](std::string_view name, const TensorView& from, bool pairs,
                        std::vector<float>& to) -> Result<Done> {
    Result<std::vector<float>> values = scalars(name, from, pairs);
    if (!values) return values.why();
    to = *std::move(values);
    return Done{};
  };
  const bool gated = shape.gated();
  for (const Result<Done>& fine :
       {read("w13_scale_2", given.w13_scale_2, gated, result.w13_globals),
        read("w2_scale_2", given.w2_scale_2, false, result.w2_globals)})
    if (!fine) return fine.why();
  if (given.w13_scale_2.shape[0] != shape.experts)
    return other_experts("w13_scale_2", shape.experts, given.w13_scale_2);
  if (given.w2_scale_2.shape[0] != shape.experts)
    return other_experts("w2_scale_2", shape.experts, given.w2_scale_2);
  if (is_given(given.a13_scale) != is_given(given.a2_scale))
    return usage("vllm.tensor", "input scales are given for one of the two GEMMs")
        .at(is_given(given.a13_scale) ? "a2_scale" : "a13_scale")
        .expects("both or none", "one");
  if (!is_given(given.a13_scale)) return result;
  for (const Result<Done>& fine : {read("a13_scale", given.a13_scale, gated, result.w13_inputs),
                                   read("a2_scale", given.a2_scale, false, result.w2_inputs)})
    if (!fine) return fine.why();
  if (given.a2_scale.shape[0] != given.a13_scale.shape[0])
    return other_experts("a2_scale", given.a13_scale.shape[0], given.a2_scale);
  return result;
}

// Input scales of all ranks' experts: a layout that shares one scale takes the largest, others need
// those of this rank.
Result<Done> fit_inputs(const NvFp4Tensors& given, const MoeShape& shape, bool is_shared,
                        NvFp4Numbers& numbers) {
  if (numbers.w13_inputs.empty() || given.a13_scale.shape[0] == shape.experts) return Done{};
  if (!is_shared) return other_experts("a13_scale", shape.experts, given.a13_scale);
  for (std::vector<float>* all : {&numbers.w13_inputs, &numbers.w2_inputs}) {
    // A scale that is unusable stays to be found.
    const auto bad = std::ranges::find_if(*all, [](float x) { return !(x > 0); });
    *all = {bad == all->end() ? std::ranges::max(*all) : *bad};
  }
  return Done{};
}

// The gate's of each expert, or the up's without a gate: the one that kernels have.
std::vector<float> first_of_each(const std::vector<float>& values, std::uint64_t experts) {
  std::vector<float> result(experts);
  for (std::uint64_t e = 0; e < experts; ++e) result[e] = values[e * (values.size() / experts)];
  return result;
}

}  // namespace

TensorView KernelWeights::tensor(std::string_view name) const {
  const auto all = tensors();
  const auto found = std::ranges::find(all, name, &convert::PackedTensorSpec::name);
  if (found == all.end()) return {};
  const auto at = static_cast<std::size_t>(found - all.begin());
  TensorView result{.dtype = found->dtype, .shape = found->shape};
  if (at < state_->views.size()) result.bytes = state_->views[at];
  return result;
}

std::vector<float> KernelWeights::numbers(std::string_view name) const {
  const TensorView found = tensor(name);
  if (found.bytes.empty() || !moe::is_activation_type(found.dtype)) return {};
  std::vector<float> values(found.bytes.size() / moe::element_bytes(found.dtype));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = convert::get_float(found.bytes, found.dtype, i);
  return values;
}

Result<MoeShape> shape_of(const Mxfp4Tensors& tensors, RowOrder order) {
  return check_big(big(tensors), WeightFormat::mxfp4, order);
}
Result<MoeShape> shape_of(const NvFp4Tensors& tensors, RowOrder order) {
  return check_big(big(tensors), WeightFormat::nvfp4, order);
}

RowOrder Converter::order_or(RowOrder usual) const {
  if (!options.is_act_and_mul) return RowOrder::single;
  return options.w13_order.value_or(usual);
}

Result<convert::Recipe> Converter::recipe(WeightFormat format) const {
  const auto row = require_row(backend, format, context);
  if (!row) return row.why();
  const auto policy = policy_of(context, format);
  if (!policy) return policy.why();
  Result<const layout::Layout*> layout = backends::layout_of({.backend = **row,
                                                              .policy_date = (*policy)->policy_date,
                                                              .device = context.device,
                                                              .tp_size = options.tp_size,
                                                              .activation = options.activation,
                                                              .environment = context.environment});
  const bool is_external =
      !layout && (layout.why().id == "layout.external" || layout.why().id == "layout.unspecified");
  if (is_external && options.takes_external)
    layout = backends::require_layout(fmt::format("as_loaded.{}", formats::name(format)), {});
  if (!layout) return layout.why();
  if (!options.generation.empty())
    layout = backends::require_layout((*layout)->id, options.generation);
  if (!layout) return layout.why();
  convert::Recipe result{.layout = *layout, .params_type = options.params_dtype};
  result.sizing = {.backend = *row, .device = context.device, .activation = options.activation};
  return result;
}

Result<KernelWeights> Converter::plan(const MoeShape& shape, DType bias_type) const {
  const auto found = recipe(shape.format);
  if (!found) return found.why();
  const auto padded = convert::padded_sizes(found->sizing, shape, {}, checkpoint::SplitRule::equal);
  if (!padded) return padded.why();
  auto packer =
      convert::LayerPacker::make(*found->layout, {.experts = shape.experts,
                                                  .real = {shape.hidden, shape.intermediate},
                                                  .padded = *padded,
                                                  .order = shape.order,
                                                  .has_bias = shape.has_bias,
                                                  .bias_type = bias_type,
                                                  .params_type = options.params_dtype});
  if (!packer) return packer.why();
  return KernelWeights(*std::move(packer));
}

Result<KernelWeights> Converter::convert(const checkpoint::LayerWeights& given) const {
  const auto found = recipe(given.shape.format);
  if (!found) return found.why();
  const auto view = checkpoint::LayerWeightsView::make(given);
  if (!view) return view.why();
  const auto job =
      convert::layer_job(convert::MemoryLayer{.shape = view->shape(), .weights = *view}, *found);
  if (!job) return job.why();
  auto packer = convert::LayerPacker::make(*found->layout, job->problem);
  if (!packer) return packer.why();
  KernelWeights result(*std::move(packer));
  KernelWeights::State& state = *result.state_;
  if (options.out.empty()) {
    for (const convert::PackedTensorSpec& tensor : state.packer.tensors()) {
      Result<tensor::Buffer> memory = tensor::Buffer::allocate(tensor.bytes);
      if (!memory) return memory.why();
      state.targets.push_back(memory->bytes());
      state.memory.push_back(*std::move(memory));
    }
  } else {
    state.targets.assign(options.out.begin(), options.out.end());
  }
  const auto done =
      convert::pack_layer(*job, state.packer, state.targets, {.threads = options.threads});
  if (!done) return done.why();
  state.views.assign(state.targets.begin(), state.targets.end());
  return result;
}

Result<KernelWeights> Converter::convert(const Mxfp4Tensors& tensors, RowOrder usual) const {
  const auto shape = shape_of(tensors, order_or(usual));
  if (!shape) return shape.why();
  auto given = layer_weights(big(tensors), *shape, options);
  if (!given) return given.why();
  if (const auto fine = add_biases(tensors, *shape, *given); !fine) return fine.why();
  return convert(*given);
}

Result<NvFp4KernelWeights> Converter::convert(const NvFp4Tensors& tensors, RowOrder usual) const {
  const auto shape = shape_of(tensors, order_or(usual));
  if (!shape) return shape.why();
  auto given = layer_weights(big(tensors), *shape, options);
  if (!given) return given.why();
  auto numbers = numbers_of(tensors, *shape);
  if (!numbers) return numbers.why();
  const auto found = recipe(WeightFormat::nvfp4);
  if (!found) return found.why();
  const layout::ScalarTransform* scalars = found->layout->scalars;
  const bool is_shared = scalars != nullptr && scalars->inputs == layout::InputUse::shared;
  if (const auto fits = fit_inputs(tensors, *shape, is_shared, *numbers); !fits) return fits.why();
  given->w13.global_scales = numbers->w13_globals;
  given->w2.global_scales = numbers->w2_globals;
  given->w13.input_scales = numbers->w13_inputs;
  given->w2.input_scales = numbers->w2_inputs;
  Result<KernelWeights> packed = convert(*given);
  if (!packed) return packed.why();
  NvFp4KernelWeights result{.packed = *std::move(packed)};
  const bool is_folded = scalars != nullptr && scalars->has_folded_exponents;
  result.w13_scale_2 = is_folded ? result.packed.numbers("w13_scale_2")
                                 : first_of_each(numbers->w13_globals, shape->experts);
  result.w2_scale_2 = is_folded ? result.packed.numbers("w2_scale_2") : numbers->w2_globals;
  result.a13_scale = result.packed.numbers("a13_scale");
  result.a2_scale = result.packed.numbers("a2_scale");
  // Emulation multiplies by the reciprocal of the largest.
  const bool emulates = scalars == &layout::kGlobalScales && !numbers->w13_inputs.empty();
  if (emulates) {
    result.a13_scale = {1.0f / std::ranges::max(numbers->w13_inputs)};
    result.a2_scale = {1.0f / std::ranges::max(numbers->w2_inputs)};
  }
  return result;
}

Result<KernelWeights> kernel_format(std::string_view backend, const MoeShape& shape,
                                    const Context& context, const ConversionOptions& options,
                                    DType bias_type) {
  return Converter{backend, context, options}.plan(shape, bias_type);
}

}  // namespace fp4moe::vllm
