#include "fp4moe/convert/pack/layer_job.hpp"

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/oracle/sizes.hpp"

namespace fp4moe::convert {
namespace {

using checkpoint::LayerTensors;
using checkpoint::MoeShape;

Result<layout::Sizes> backend_sizes(const Sizing& sizing, const MoeShape& shape,
                                    std::uint64_t share) {
  const Result<oracle::Sizes> rounded =
      oracle::round_sizes(*sizing.backend, sizing.device, sizing.activation, {shape.hidden, share});
  if (!rounded) return rounded.why();
  const Result<oracle::Sizes> padded =
      oracle::converted_sizes(*sizing.backend, shape.gated(), *rounded);
  if (!padded) return padded.why();
  return layout::Sizes{padded->hidden, padded->intermediate};
}

Error too_small(std::string_view option, std::uint64_t needed, std::uint64_t given) {
  return usage("convert.padding", "a padded size cannot be smaller than what it holds")
      .at(option)
      .expects(fmt::format("at least {}", needed), std::to_string(given));
}

// All biases of a layer have one type, which is what unpacking gives back.
Result<tensor::DType> bias_type(const LayerTensors& layer) {
  std::optional<tensor::DType> type;
  for (const auto* places : {&layer.gate, &layer.up, &layer.down}) {
    for (const checkpoint::ProjectionPlaces& place : *places) {
      if (place.bias.tensor == nullptr) continue;
      const tensor::TensorEntry& entry = place.bias.tensor->entry;
      if (type && *type != entry.dtype)
        return invalid("convert.bias_type", "the biases of a layer have several types")
            .at(entry.name)
            .expects(tensor::name(*type), tensor::name(entry.dtype));
      type = entry.dtype;
    }
  }
  return type.value_or(tensor::DType::bf16);
}

}  // namespace

Result<layout::Sizes> padded_sizes(const Sizing& sizing, const MoeShape& shape,
                                   checkpoint::Rank tensor_parallel, checkpoint::SplitRule rule) {
  const auto first = checkpoint::split_intermediate(
      shape.intermediate, checkpoint::block_size(shape.format), {0, tensor_parallel.size}, rule);
  if (!first) return first.why();
  layout::Sizes sizes{shape.hidden, first->size()};
  if (sizing.backend != nullptr) {
    // The reference rounds the divided size; what a rank is handed must fit into it.
    const auto rounded =
        backend_sizes(sizing, shape, ceil_div(shape.intermediate, tensor_parallel.size));
    if (!rounded) return rounded.why();
    if (!sizing.intermediate && rounded->intermediate < first->size())
      return error(ErrorCode::no_backend, "convert.slice",
                   "a rank's part of the weights does not fit the backend's rounded size")
          .expects(fmt::format("at least {}", first->size()),
                   fmt::format("{} of {}", rounded->intermediate, sizing.backend->name))
          .try_this("Use another backend, or split the experts instead: --ep R/N");
    sizes = *rounded;
  }
  if (sizing.hidden && *sizing.hidden < shape.hidden)
    return too_small("--pad-hidden", shape.hidden, *sizing.hidden);
  if (sizing.intermediate && *sizing.intermediate < first->size())
    return too_small("--pad-intermediate", first->size(), *sizing.intermediate);
  return layout::Sizes{sizing.hidden.value_or(sizes.hidden),
                       sizing.intermediate.value_or(sizes.intermediate)};
}

namespace {

struct JobFacts {
  checkpoint::MoeShape shape{};  // of the whole layer
  checkpoint::SplitRule rule{};
  tensor::DType bias_type{};
  std::string prefix{};
};

// All but the source.
Result<LayerJob> job_without_source(const JobFacts& layer, const Recipe& recipe) {
  const MoeShape& shape = layer.shape;
  const checkpoint::Rank tp = recipe.slice.tensor_parallel, ep = recipe.slice.expert_parallel;
  const auto range = checkpoint::split_intermediate(
      shape.intermediate, checkpoint::block_size(shape.format), tp, layer.rule);
  if (!range) return Error(range.why()).at(layer.prefix);
  if (range->size() == 0)
    return usage("slice.empty", "the tensor-parallel rank holds no rows of this layer")
        .at(layer.prefix)
        .expects("at least one scale block for each rank", fmt::format("none on rank {}", tp.rank))
        .try_this("Use fewer ranks, or expert parallel");
  auto experts = checkpoint::local_experts(shape.experts, ep, recipe.slice.placement);
  if (!experts) return experts.why();
  if (experts->empty())
    return usage("slice.experts", "the expert-parallel rank holds no experts of this layer")
        .at(layer.prefix)
        .expects(fmt::format("at most {} ranks", shape.experts), std::to_string(ep.size));
  const auto padded = padded_sizes(recipe.sizing, shape, tp, layer.rule);
  if (!padded) return Error(padded.why()).at(layer.prefix);

  LayerJob job;
  job.problem = {.experts = experts->size(),
                 .real = {shape.hidden, range->size()},
                 .padded = *padded,
                 .order = shape.order,
                 .has_bias = shape.has_bias,
                 .bias_type = layer.bias_type,
                 .params_type = recipe.params_type,
                 .global_experts = shape.experts};
  job.experts = *std::move(experts);
  return job;
}

}  // namespace

Result<LayerJob> layer_job(const checkpoint::Checkpoint& checkpoint, std::size_t number,
                           const Recipe& recipe) {
  const LayerTensors& layer = checkpoint.layers()[number];
  const auto bias = bias_type(layer);
  if (!bias) return bias.why();
  Result<LayerJob> job = job_without_source(
      {layer.shape, checkpoint::split_rule(checkpoint, layer), *bias, layer.prefix}, recipe);
  if (job) job->source = checkpoint::layer_source(checkpoint, number, recipe.slice);
  return job;
}

Result<LayerJob> layer_job(const MemoryLayer& layer, const Recipe& recipe) {
  Result<LayerJob> job =
      job_without_source({layer.shape, layer.rule, layer.weights.bias_type(), {}}, recipe);
  if (!job) return job.why();
  const auto mine =
      layer.weights.slice(recipe.slice.tensor_parallel, layer.rule, layer.shape.intermediate);
  if (!mine) return mine.why();
  auto source = checkpoint::layer_source(*mine, layer.shape.experts, job->experts);
  if (!source) return source.why();
  job->source = *std::move(source);
  return job;
}

}  // namespace fp4moe::convert
