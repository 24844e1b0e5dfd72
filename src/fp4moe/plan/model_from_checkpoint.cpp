#include <fmt/format.h>

#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/plan/model.hpp"

namespace fp4moe::plan {

Result<Model> model_from_checkpoint(const std::string& path) {
  const auto checkpoint = checkpoint::Checkpoint::open(path);
  if (!checkpoint) return checkpoint.why();
  return model_from_checkpoint(*checkpoint, path);
}

Result<Model> model_from_checkpoint(const checkpoint::Checkpoint& checkpoint,
                                    const std::string& path) {
  const auto layers = checkpoint.layers();
  if (layers.empty())
    return invalid("plan.layers", "the checkpoint has no MoE layer to plan").in(path);
  const checkpoint::LayerTensors& first = layers.front();
  for (const checkpoint::LayerTensors& layer : layers)
    if (!(layer.shape == first.shape))
      return invalid("plan.shapes", "the MoE layers have different shapes")
          .in(path)
          .at(layer.prefix)
          .expects(fmt::format("{} experts of {} x {}, as {}", first.shape.experts,
                               first.shape.hidden, first.shape.intermediate, first.prefix),
                   fmt::format("{} experts of {} x {}", layer.shape.experts, layer.shape.hidden,
                               layer.shape.intermediate));

  Model model =
      model_of_layer(checkpoint.config(), first.shape, checkpoint::split_rule(checkpoint, first));
  model.name = path;
  model.layers = layers.size();
  if (first.row->dialect == checkpoint::Dialect::compressed_tensors)
    model.names = oracle::BufferNames::compressed_tensors;
  return model;
}

}  // namespace fp4moe::plan
