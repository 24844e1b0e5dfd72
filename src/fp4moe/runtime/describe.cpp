#include "fp4moe/runtime/describe.hpp"

#include <cmath>
#include <utility>

#include "fp4moe/base/error_json.hpp"
#include "fp4moe/convert/folder/manifest.hpp"
#include "fp4moe/moe/cuda/device_session.hpp"

namespace fp4moe::runtime {
namespace {

Json describe_layer(const Model& model, std::size_t number) {
  Json result{{"index", model.layer_index(number)}, {"hidden", model.hidden(number)}};
  const Result<LayerFacts> facts = model.facts(number);
  if (!facts) {
    result["error"] = to_json(facts.why());
    return result;
  }
  const checkpoint::MoeShape& shape = facts->model.shape;
  result.update({{"prefix", facts->prefix},
                 {"format", checkpoint::name(shape.format)},
                 {"experts", shape.experts},
                 {"intermediate", shape.intermediate},
                 {"top_k", facts->router.top_k},
                 {"has_bias", shape.has_bias},
                 {"activation", oracle::name(facts->model.layer.activation)},
                 {"routing", moe::routing::name(facts->router.method)},
                 {"notes", facts->notes}});
  return result;
}

}  // namespace

Json describe(const Model& model) {
  Json layers = Json::array();
  for (std::size_t number = 0; number < model.layers(); ++number)
    layers.push_back(describe_layer(model, number));
  Json result{{"path", model.path()},
              {"is_converted", model.is_converted()},
              {"layers", std::move(layers)}};
  if (const convert::Manifest* manifest = model.manifest())
    result["converted"] = {{"layout", manifest->layout},
                           {"generation", manifest->generation},
                           {"backend", manifest->backend},
                           {"tp", convert::text(manifest->slice.tensor_parallel)},
                           {"ep", convert::text(manifest->slice.expert_parallel)},
                           {"placement", convert::name(manifest->slice.placement)},
                           {"experts_only", manifest->experts_only},
                           {"source", manifest->source_path},
                           {"dialect", manifest->dialect}};
  return result;
}

Json describe(const MoeLayer& layer) {
  const Choice& choice = layer.choice();
  const moe::ExpertsProblem& problem = layer.problem();
  const moe::Experts* experts = layer.experts();
  Json json{{"backend", choice.backend->name},
            {"policy", choice.policy->name},
            {"vllm", choice.release ? oracle::to_json(*choice.release) : Json()},
            {"why", choice.why},
            {"layout", convert::layout_text(choice.layout->id, choice.layout->generation)},
            {"numerics", problem.numerics.id},
            {"quantizes", oracle::name(problem.quantizes)},
            {"quantises", oracle::name(problem.quantizes)},  // the old spelling
            {"routing", moe::routing::name(layer.facts().router.method)},
            {"activation", moe::row(problem.activation).name},
            {"alpha", problem.params.alpha},
            {"beta", problem.params.beta},
            {"limit", std::isinf(problem.params.limit) ? Json() : Json(problem.params.limit)},
            {"format", checkpoint::name(problem.shape.format)},
            {"hidden", problem.shape.hidden},
            {"intermediate", problem.shape.intermediate},
            {"experts", layer.facts().model.shape.experts},
            {"local_experts", problem.shape.experts},
            {"top_k", layer.facts().router.top_k},
            {"weights_bytes", layer.weights().bytes()},
            {"threads", layer.pool().threads()},
            {"has_own_threads", !layer.pool().is_borrowed()},
            {"is_processed", experts != nullptr},
            {"is_monolithic", layer.is_monolithic()},
            {"warnings", layer.warnings()}};
  if (experts != nullptr) {
    json["engine"] = experts->engine();
    json["kernel"] = experts->kernel();
    if (const moe::cuda::DeviceLayer* device = moe::cuda::device_layer(experts))
      json["wide_rows"] = device->wide_rows();
  }
  return json;
}

}  // namespace fp4moe::runtime
