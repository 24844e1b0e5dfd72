#include "fp4moe/plan/model.hpp"

#include <fmt/format.h>

#include "fp4moe/weights/checkpoint.hpp"

namespace fp4moe::plan {
namespace {

using weights::ModelRow;
using weights::MoeShape;

oracle::Layer make_layer(const MoeShape& shape, std::optional<std::uint64_t> top_k) {
  oracle::Layer layer;
  layer.num_experts = layer.num_local_experts = shape.experts;
  layer.experts_per_token = top_k.value_or(1);
  layer.hidden = shape.hidden;
  layer.intermediate = shape.intermediate;
  layer.gated = shape.gated();
  layer.has_bias = shape.has_bias;
  if (shape.format == weights::WeightFormat::nvfp4)
    layer.activation_key =
        shape.has_input_scale ? oracle::ActivationKey::nvfp4 : oracle::ActivationKey::none;
  return layer;
}

// What the model's code computes between the two products, and how its router chooses.
void use_family(const ModelRow& row, oracle::Layer& layer) {
  const std::string activation = std::string(row.activation) + (layer.gated ? "" : "_no_mul");
  layer.activation = oracle::activation_from_name(activation).value_or(oracle::Activation::silu);
  layer.routing = oracle::routing_from_name(row.routing).value_or(oracle::Routing::unspecified);
}

const ModelRow* family_of(const weights::ModelConfig& config) {
  if (const ModelRow* row = weights::find_family(config.model_type)) return row;
  return weights::find_architecture(config.model_type);
}

}  // namespace

Model model_from_row(const ModelRow& row, std::optional<weights::WeightFormat> format) {
  Model model{.name = std::string(row.name),
              .family = std::string(row.model_type),
              .layers = weights::moe_layer_count(row)};
  model.shape = {.format = format.value_or(row.format),
                 .experts = row.experts,
                 .hidden = row.hidden,
                 .intermediate = row.intermediate,
                 .order = row.order,
                 .has_bias = row.bias};
  model.shape.has_input_scale = model.shape.format == weights::WeightFormat::nvfp4;
  if (row.model_type == "gpt_oss" && model.shape.format == weights::WeightFormat::mxfp4)
    model.rule = weights::SplitRule::ceil_blocks;
  model.layer = make_layer(model.shape, row.top_k);
  use_family(row, model.layer);
  return model;
}

Model model_of_shape(const MoeShape& shape, weights::SplitRule rule,
                     std::optional<std::uint64_t> top_k) {
  Model model{.shape = shape, .layers = 1, .rule = rule};
  model.layer = make_layer(shape, top_k);
  return model;
}

Model model_of_layer(const weights::ModelConfig& config, const MoeShape& shape,
                     weights::SplitRule rule) {
  Model model = model_of_shape(shape, rule, config.top_k);
  model.family = config.model_type;
  model.layer.swiglu_limit = config.swiglu_limit;
  if (const ModelRow* row = family_of(config)) {
    use_family(*row, model.layer);
  } else {
    model.layer.activation =
        model.layer.gated ? oracle::Activation::silu : oracle::Activation::relu2_no_mul;
    model.layer.routing = oracle::Routing::unspecified;
    model.notes.push_back(
        fmt::format("the model's family is not known here: activation {} is assumed",
                    oracle::name(model.layer.activation)));
  }
  return model;
}

Result<Model> model_from_checkpoint(const std::string& path) {
  const auto checkpoint = weights::Checkpoint::open(path);
  if (!checkpoint) return checkpoint.why();
  const auto layers = checkpoint->layers();
  if (layers.empty())
    return invalid("plan.layers", "the checkpoint has no MoE layer to plan").in(path);
  const weights::MoeLayer& first = layers.front();
  for (const weights::MoeLayer& layer : layers)
    if (!(layer.shape == first.shape))
      return invalid("plan.shapes", "the MoE layers have different shapes")
          .in(path)
          .at(layer.prefix)
          .expects(fmt::format("{} experts of {} x {}, as {}", first.shape.experts,
                               first.shape.hidden, first.shape.intermediate, first.prefix),
                   fmt::format("{} experts of {} x {}", layer.shape.experts, layer.shape.hidden,
                               layer.shape.intermediate));

  Model model =
      model_of_layer(checkpoint->config(), first.shape, weights::split_rule(*checkpoint, first));
  model.name = path;
  model.layers = layers.size();
  if (first.row->dialect == weights::Dialect::compressed_tensors)
    model.names = oracle::BufferNames::compressed_tensors;
  return model;
}

}  // namespace fp4moe::plan
