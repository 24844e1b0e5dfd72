// fp4moe_layer_*: a layer's life. Its calls: call.cpp; layers from weights: weights.cpp.
#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "fp4moe/capi/border.hpp"
#include "fp4moe/runtime/describe.hpp"

namespace fp4moe::capi {
namespace {

using runtime::MoeLayer;

struct CreateCall {
  const fp4moe_model* model;
  std::uint64_t number;
  const fp4moe_layer_options* options;
  fp4moe_layer** layer;
};

Result<Done> create_layer(const CreateCall& call) {
  if (const auto fine = clear(call.layer, "the place for the layer"); !fine) return fine.why();
  const auto model = find(call.model);
  if (!model) return model.why();
  const auto given = take_options(call.options, "fp4moe_layer_options");
  if (!given) return given.why();
  Result<runtime::LayerOptions> options = layer_options(*given);
  if (!options) return options.why();
  Result<MoeLayer> result = (*model)->layer(call.number, std::move(*options));
  if (!result) return result.why();
  log_all(FP4MOE_LOG_NOTE, result->facts().notes);
  *call.layer = add(std::make_shared<OpenLayer>(std::move(*result), *model, call.number));
  return Done{};
}

Result<Done> load_layer(MoeLayer& layer) {
  if (const auto done = layer.load(); !done) return done.why();
  log_all(FP4MOE_LOG_WARNING, layer.weights().packer().warnings());
  return Done{};
}

Result<Done> process_layer(OpenLayer& open) {
  open.session.reset();  // it has the weights of before
  return open.layer.process();
}

Result<Done> shape_of(const MoeLayer& layer, fp4moe_shape* to) {
  Result<fp4moe_shape> result = take_struct(to, "fp4moe_shape");
  if (!result) return result.why();
  const checkpoint::MoeShape& local = layer.problem().shape;
  const std::size_t size = result->size;
  *result = {.size = size,
             .hidden = local.hidden,
             .intermediate = local.intermediate,
             .experts = layer.facts().model.shape.experts,
             .local_experts = local.experts,
             .top_k = layer.facts().router.top_k};
  std::memcpy(to, &*result, std::min(size, sizeof *result));
  return Done{};
}

}  // namespace
}  // namespace fp4moe::capi

namespace capi = fp4moe::capi;
using capi::OpenLayer;

extern "C" {

fp4moe_status fp4moe_layer_create(const fp4moe_model* model, uint64_t number,
                                  const fp4moe_layer_options* options, fp4moe_layer** layer) {
  return capi::guarded([&] { return capi::create_layer({model, number, options, layer}); });
}

void fp4moe_layer_destroy(fp4moe_layer* layer) { capi::close(layer); }

fp4moe_status fp4moe_layer_load(fp4moe_layer* layer) {
  return capi::on_layer(layer, [](OpenLayer& open) { return capi::load_layer(open.layer); });
}

fp4moe_status fp4moe_layer_load_expert(fp4moe_layer* layer, uint64_t position) {
  return capi::on_layer(layer, [&](OpenLayer& open) { return open.layer.load_expert(position); });
}

fp4moe_status fp4moe_layer_process(fp4moe_layer* layer) {
  return capi::on_layer(layer, [](OpenLayer& open) { return capi::process_layer(open); });
}

fp4moe_status fp4moe_layer_shape(const fp4moe_layer* layer, fp4moe_shape* shape) {
  return capi::on_layer(layer, [&](OpenLayer& open) { return capi::shape_of(open.layer, shape); });
}

fp4moe_status fp4moe_layer_info(const fp4moe_layer* layer, char** json) {
  return capi::guarded([&]() -> fp4moe::Result<fp4moe::Done> {
    if (const auto fine = capi::clear(json, "the place for the text"); !fine) return fine.why();
    const auto found = capi::find(layer);
    if (!found) return found.why();
    const std::lock_guard lock((*found)->mutex);
    return capi::give(fp4moe::runtime::describe((*found)->layer), json);
  });
}

}  // extern "C"
