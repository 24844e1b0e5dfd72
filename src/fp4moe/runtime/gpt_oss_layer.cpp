#include "fp4moe/runtime/gpt_oss_layer.hpp"

#include <utility>

#include "fp4moe/checkpoint/layer_weights_view.hpp"

namespace fp4moe::runtime {

Result<MoeLayer> gpt_oss_layer(const GptOssExperts& given, LayerOptions options) {
  const checkpoint::LayerWeights weights{.shape = {.format = checkpoint::WeightFormat::mxfp4,
                                                   .experts = given.experts,
                                                   .hidden = given.hidden,
                                                   .intermediate = given.intermediate,
                                                   .order = checkpoint::RowOrder::interleaved},
                                         .w13 = {.codes = {given.gate_up_proj_blocks},
                                                 .scales = {given.gate_up_proj_scales},
                                                 .bias = {given.gate_up_proj_bias}},
                                         .w2 = {.codes = {given.down_proj_blocks},
                                                .scales = {given.down_proj_scales},
                                                .bias = {given.down_proj_bias}}};
  const Result<checkpoint::LayerWeightsView> view = checkpoint::LayerWeightsView::make(weights);
  if (!view) return view.why();
  LayerDescription description{.activation = oracle::Activation::swigluoai,
                               .top_k = given.top_k,
                               .split = checkpoint::SplitRule::ceil_blocks};
  description.router = moe::routing::RouterOptions{.method = moe::routing::Method::renormalize};
  Result<MoeLayer> layer = MoeLayer::create(description, *view, std::move(options));
  if (!layer) return layer.why();
  if (Result<Done> done = layer->load(); !done) return done.why();
  if (Result<Done> done = layer->process(); !done) return done.why();
  return layer;
}

}  // namespace fp4moe::runtime
