// fp4moe_layer_from_weights, _from_gpt_oss and _load_weights: layers without a file.
#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/capi/border.hpp"
#include "fp4moe/capi/routing.hpp"
#include "fp4moe/capi/rows.hpp"
#include "fp4moe/checkpoint/layer_weights_view.hpp"
#include "fp4moe/runtime/gpt_oss_layer.hpp"

namespace fp4moe::capi {
namespace {

using checkpoint::LayerWeights;
using checkpoint::LayerWeightsView;
using checkpoint::MatrixWeights;
using checkpoint::RowOrder;

// One of the words that a table knows.
template <class Value, class Names>
Result<Value> word_of(const char* given, std::string_view what, const Names& names) {
  const Result<std::string> word = require_text(given, what);
  if (!word) return word.why();
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == *word) return static_cast<Value>(i);
  return usage("weights.word", fmt::format("unknown {}", what))
      .expects(fmt::format("one of {}", fmt::join(names, ", ")),
               fmt::format("'{}'", printable(*word)));
}

constexpr std::array<std::string_view, 3> kRowOrders{
    name(RowOrder::interleaved), name(RowOrder::halves), name(RowOrder::single)};

std::span<const std::byte> bytes_of(const void* data, std::uint64_t bytes) {
  return {static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)};
}

Result<std::span<const float>> floats_of(const float* data, std::uint64_t count, const char* what) {
  if (const auto fine = check_numbers(data, count, 1, what); !fine) return fine.why();
  return std::span<const float>(data, static_cast<std::size_t>(count));
}

Result<Done> take_matrix(const fp4moe_matrix* pointer, MatrixWeights& to) {
  if (pointer == nullptr) return Done{};
  const auto given = take_struct(pointer, "fp4moe_matrix");
  if (!given) return given.why();
  for (const std::uint64_t bytes : {given->codes_bytes, given->scales_bytes, given->bias_bytes})
    if (bytes > PTRDIFF_MAX)
      return usage("rows.size", "weights are larger than any memory")
          .expects("less than 2^63 bytes", fmt::format("{}", bytes));
  // A pointer without a size would else count as nothing.
  if ((given->codes != nullptr && given->codes_bytes == 0) ||
      (given->scales != nullptr && given->scales_bytes == 0) ||
      (given->bias != nullptr && given->bias_bytes == 0))
    return usage("weights.size", "memory is given without its size").expects("bytes", "0");
  to.codes = {bytes_of(given->codes, given->codes_bytes), given->codes_expert_stride,
              given->codes_row_stride};
  to.scales = {bytes_of(given->scales, given->scales_bytes), given->scales_expert_stride,
               given->scales_row_stride};
  const auto globals =
      floats_of(given->global_scales, given->global_scales_count, "the global scales");
  if (!globals) return globals.why();
  const auto inputs = floats_of(given->input_scales, given->input_scales_count, "the input scales");
  if (!inputs) return inputs.why();
  to.global_scales = *globals;
  to.input_scales = *inputs;
  to.bias.bytes = bytes_of(given->bias, given->bias_bytes);
  to.bias.expert_stride = given->bias_expert_stride;
  if (given->bias_dtype != 0) {
    const auto dtype = dtype_of(given->bias_dtype, "biases");
    if (!dtype) return dtype.why();
    to.bias.dtype = *dtype;
  }
  return Done{};
}

Result<LayerWeightsView> take_weights(const fp4moe_weights* pointer) {
  const auto given = take_struct(pointer, "fp4moe_weights");
  if (!given) return given.why();
  const auto format = word_of<checkpoint::WeightFormat>(given->format, "weight format",
                                                        formats::kWeightFormatNames);
  if (!format) return format.why();
  const auto order = word_of<RowOrder>(given->row_order, "row order of w13", kRowOrders);
  if (!order) return order.why();
  LayerWeights result{.shape = {.format = *format,
                                .experts = given->experts,
                                .hidden = given->hidden,
                                .intermediate = given->intermediate,
                                .order = *order}};
  for (const auto& [from, to] :
       {std::pair{given->w13, &result.w13}, std::pair{given->gate, &result.gate},
        std::pair{given->up, &result.up}, std::pair{given->w2, &result.w2}})
    if (const auto fine = take_matrix(from, *to); !fine) return fine.why();
  return LayerWeightsView::make(result);
}

std::optional<double> constant(const double* given) {
  return given == nullptr ? std::nullopt : std::optional(*given);
}

Result<runtime::LayerDescription> take_description(const fp4moe_layer_description* pointer,
                                                   std::uint64_t experts) {
  const auto given = take_struct(pointer, "fp4moe_layer_description");
  if (!given) return given.why();
  const Result<std::string> word = require_text(given->activation, "the layer's activation");
  if (!word) return word.why();
  runtime::LayerDescription result{.activation = oracle::activation_from_name(*word),
                                   .alpha = constant(given->alpha),
                                   .beta = constant(given->beta),
                                   .limit = constant(given->limit),
                                   .top_k = given->top_k,
                                   .weight_on_input = given->weight_on_input != 0,
                                   .experts = given->experts,
                                   .intermediate = given->intermediate,
                                   .split = given->split_blocks != 0
                                                ? checkpoint::SplitRule::ceil_blocks
                                                : checkpoint::SplitRule::equal};
  if (!result.activation)
    return usage("description.activation", "there is no such activation")
        .expects("one of docs/run.md, such as silu or swigluoai",
                 fmt::format("'{}'", printable(*word)));
  if (given->routing == nullptr) return result;
  auto router =
      take_routing(given->routing, result.experts == 0 ? experts : result.experts, result.top_k);
  if (!router) return router.why();
  result.router = *std::move(router);
  return result;
}

struct FromWeightsCall {
  const fp4moe_layer_description* description;
  const fp4moe_weights* weights;
  const fp4moe_layer_options* options;
  fp4moe_layer** layer;
};

Result<Done> layer_from_weights(const FromWeightsCall& call) {
  if (const auto fine = clear(call.layer, "the place for the layer"); !fine) return fine.why();
  const auto view = take_weights(call.weights);
  if (!view) return view.why();
  const auto description = take_description(call.description, view->shape().experts);
  if (!description) return description.why();
  const auto given = take_options(call.options, "fp4moe_layer_options");
  if (!given) return given.why();
  Result<runtime::LayerOptions> options = layer_options(*given);
  if (!options) return options.why();
  auto result = runtime::MoeLayer::create(*description, *view, std::move(*options));
  if (!result) return result.why();
  *call.layer = add(std::make_shared<OpenLayer>(std::move(*result)));
  return Done{};
}

struct FromGptOssCall {
  const fp4moe_gpt_oss_experts* experts;
  const fp4moe_layer_options* options;
  fp4moe_layer** layer;
};

// Memory of so many rows of so many bytes for each expert; null: none.
Result<std::span<const std::byte>> dense_memory(const void* data, std::uint64_t experts,
                                                std::uint64_t rows, std::uint64_t row_bytes) {
  if (data == nullptr) return std::span<const std::byte>{};
  const std::optional<std::uint64_t> bytes = checked_product(std::array{experts, rows, row_bytes});
  if (bytes && *bytes <= PTRDIFF_MAX) return bytes_of(data, *bytes);
  return usage("rows.size", "weights are larger than any memory")
      .expects("less than 2^63 bytes", fmt::format("{} x {} x {}", experts, rows, row_bytes));
}

Result<Done> layer_from_gpt_oss(const FromGptOssCall& call) {
  if (const auto fine = clear(call.layer, "the place for the layer"); !fine) return fine.why();
  const auto given = take_struct(call.experts, "fp4moe_gpt_oss_experts");
  if (!given) return given.why();
  const auto options_given = take_options(call.options, "fp4moe_layer_options");
  if (!options_given) return options_given.why();
  Result<runtime::LayerOptions> options = layer_options(*options_given);
  if (!options) return options.why();
  runtime::GptOssExperts experts{.experts = given->experts,
                                 .hidden = given->hidden,
                                 .intermediate = given->intermediate,
                                 .top_k = given->top_k == 0 ? 4 : given->top_k};
  const std::uint64_t hidden = given->hidden, intermediate = given->intermediate;
  const std::optional<std::uint64_t> w13_rows = checked_multiply(2, intermediate);
  struct TensorSource {
    const void* data;
    std::span<const std::byte>* to;
    std::uint64_t rows, row_bytes;
  };
  const std::uint64_t rows = w13_rows.value_or(UINT64_MAX);
  for (const TensorSource& place :
       {TensorSource{given->gate_up_proj_blocks, &experts.gate_up_proj_blocks, rows, hidden / 2},
        TensorSource{given->gate_up_proj_scales, &experts.gate_up_proj_scales, rows, hidden / 32},
        TensorSource{given->gate_up_proj_bias, &experts.gate_up_proj_bias, rows, 2},
        TensorSource{given->down_proj_blocks, &experts.down_proj_blocks, hidden, intermediate / 2},
        TensorSource{given->down_proj_scales, &experts.down_proj_scales, hidden, intermediate / 32},
        TensorSource{given->down_proj_bias, &experts.down_proj_bias, hidden, 2}}) {
    const auto memory = dense_memory(place.data, given->experts, place.rows, place.row_bytes);
    if (!memory) return memory.why();
    *place.to = *memory;
  }
  auto result = runtime::gpt_oss_layer(experts, std::move(*options));
  if (!result) return result.why();
  log_all(FP4MOE_LOG_WARNING, result->weights().packer().warnings());
  *call.layer = add(std::make_shared<OpenLayer>(std::move(*result)));
  return Done{};
}

Result<Done> load_weights(runtime::MoeLayer& layer, const fp4moe_weights* pointer) {
  const auto view = take_weights(pointer);
  if (!view) return view.why();
  if (const auto done = layer.load(*view); !done) return done.why();
  log_all(FP4MOE_LOG_WARNING, layer.weights().packer().warnings());
  return Done{};
}

}  // namespace
}  // namespace fp4moe::capi

namespace capi = fp4moe::capi;

extern "C" {

fp4moe_status fp4moe_layer_from_weights(const fp4moe_layer_description* description,
                                        const fp4moe_weights* weights,
                                        const fp4moe_layer_options* options, fp4moe_layer** layer) {
  return capi::guarded([&] {
    return capi::layer_from_weights({description, weights, options, layer});
  });
}

fp4moe_status fp4moe_layer_from_gpt_oss(const fp4moe_gpt_oss_experts* experts,
                                        const fp4moe_layer_options* options, fp4moe_layer** layer) {
  return capi::guarded([&] { return capi::layer_from_gpt_oss({experts, options, layer}); });
}

fp4moe_status fp4moe_layer_load_weights(fp4moe_layer* layer, const fp4moe_weights* weights) {
  return capi::on_layer(
      layer, [&](capi::OpenLayer& open) { return capi::load_weights(open.layer, weights); });
}

}  // extern "C"
