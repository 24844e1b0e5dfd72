#include "fp4moe/moe/cuda/device_layer.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/kernels/cuda/sm90/launches.hpp"
#include "fp4moe/moe/cuda/device_step.hpp"
#include "fp4moe/moe/cuda/device_weights.hpp"
#include "fp4moe/moe/cuda/ranges.hpp"

namespace fp4moe::moe::cuda {
namespace {

using kernels::cuda::Function;
using kernels::cuda::Memory;
using kernels::cuda::Stream;

sm90::Type type_of(DType dtype) {
  return dtype == DType::bf16  ? sm90::Type::bf16
         : dtype == DType::f16 ? sm90::Type::f16
                               : sm90::Type::f32;
}

template <class To, class From>
To rows_of(const From& rows) {
  return {.data = rows.data,
          .type = type_of(rows.dtype),
          .rows = static_cast<std::uint32_t>(rows.rows),
          .stride = rows.stride / element_bytes(rows.dtype)};
}

sm90::Form form_of(OutputForm form) {
  return form == OutputForm::summed  ? sm90::Form::summed
         : form == OutputForm::slots ? sm90::Form::slots
                                     : sm90::Form::batches;
}

CallSize size_of(const DeviceCall& call) {
  return {.tokens = call.x.rows,
          .top_k = call.counts != nullptr   ? 1
                   : call.router != nullptr ? call.router->top_k()
                                            : call.top_k,
          .form = call.form,
          .has_adapters = call.adapters.pairs != nullptr,
          .in_float32 = call.out.dtype == DType::f32,
          .is_batched = call.counts != nullptr};
}

sm90::Call kernel_call(const DeviceCall& call, const CallSize& size) {
  return {.x = rows_of<sm90::Rows>(call.x),
          .tokens = static_cast<std::uint32_t>(size.tokens),
          .top_k = static_cast<std::uint32_t>(size.top_k),
          .x_is_quantised = call.is_quantised ? 1U : 0U,
          .x_factor = call.is_quantised ? call.factor : 1.0f,
          .ids = call.ids,
          .weights = call.weights,
          .expert_map = call.expert_map,
          .map_size = static_cast<std::uint32_t>(call.map_size),
          .first_expert = call.first_expert,
          .counts = call.counts,
          .capacity = static_cast<std::uint32_t>(call.capacity),
          .weight_on_input = call.weight_on_input ? 1U : 0U,
          .form = form_of(call.form),
          .out = rows_of<sm90::MutableRows>(call.out)};
}

}  // namespace

Result<DeviceLayer> DeviceLayer::make(std::shared_ptr<const kernels::cuda::Device> device,
                                      const ExpertsProblem& problem, const ExpertSource& source,
                                      DeviceLayerOptions options) {
  const Range range("fp4moe make layer");
  Result<sm90::Layer> layer = describe(problem);
  if (!layer) return layer.why();
  if (source.shape.experts != problem.shape.experts ||
      source.shape.hidden != problem.shape.hidden ||
      source.shape.intermediate != problem.shape.intermediate ||
      source.shape.format != problem.shape.format || source.shape.gated() != problem.shape.gated())
    return usage("experts.layout", "the weights are not those of the problem")
        .expects(fmt::format("{} experts of {} x {}", problem.shape.experts,
                             problem.shape.intermediate, problem.shape.hidden),
                 fmt::format("{} experts of {} x {}", source.shape.experts,
                             source.shape.intermediate, source.shape.hidden));
  DeviceLayer made;
  made.device_ = std::move(device);
  made.problem_ = problem;
  made.options_ = options;
  made.layer_ = std::make_shared<sm90::Layer>(*layer);
  if (const auto found = made.find_kernels(); !found) return found.why();
  Result<DeviceWeights> weights = DeviceWeights::make(made.device_, source, *made.layer_);
  if (!weights) return weights.why();
  made.weights_ = std::make_shared<const DeviceWeights>(std::move(*weights));
  if (const auto placed = made.place_scales(); !placed) return placed.why();
  return made;
}

Result<DeviceLayer> DeviceLayer::alike(const ExpertsProblem& problem) const {
  Result<sm90::Layer> layer = describe(problem);
  if (!layer) return layer.why();
  if (problem.shape != problem_.shape)
    return usage("experts.layout", "a layer alike has the same shape")
        .expects(fmt::format("{} experts of {} x {}", problem_.shape.experts,
                             problem_.shape.intermediate, problem_.shape.hidden),
                 fmt::format("{} experts of {} x {}", problem.shape.experts,
                             problem.shape.intermediate, problem.shape.hidden));
  DeviceLayer made;
  made.device_ = device_;
  made.problem_ = problem;
  made.options_ = options_;
  made.weights_ = weights_;
  made.kernels_ = kernels_;
  made.layer_ = std::make_shared<sm90::Layer>(*layer);
  made.layer_->w13 = layer_->w13;
  made.layer_->w2 = layer_->w2;
  made.layer_->down_global = layer_->down_global;
  if (const auto placed = made.place_scales(); !placed) return placed.why();
  return made;
}

std::uint64_t DeviceLayer::weight_bytes() const { return weights_->bytes(); }

Result<Done> DeviceLayer::find_kernels() {
  kernels_ = std::make_shared<Kernels>();
  const std::string_view format = layer_->is_nvfp4 != 0 ? "nvfp4" : "mxfp4";
  std::vector<std::pair<Function*, std::string>> wanted{
      {&kernels_->prepare, "prepare"},
      {&kernels_->gather, "gather"},
      {&kernels_->activate, "activate"},
      {&kernels_->combine, "combine"},
      {&kernels_->combine_rounded, "combine_rounded"}};
  if (options_.decodes) {
    wanted.emplace_back(&kernels_->decode, fmt::format("decode_{}", format));
    wanted.emplace_back(&kernels_->decode_plain, fmt::format("decode_plain_{}", format));
    wanted.emplace_back(&kernels_->decode_quantised, fmt::format("decode_quantised_{}", format));
  }
  for (std::size_t i = 0; i < kernels_->products.size(); ++i)
    wanted.emplace_back(&kernels_->products[i],
                        fmt::format("product{}_{}", sm90::kTileBounds[i], format));
  for (const auto& [to, name] : wanted) {
    const Result<Function> found = device_->function(fmt::format("fp4moe_sm90_{}", name));
    if (!found) return found.why();
    *to = *found;
  }
  std::vector<std::pair<Function, std::uint32_t>> shared{{kernels_->activate, kActivateMostShared}};
  if (options_.decodes)
    for (const Function decode :
         {kernels_->decode, kernels_->decode_plain, kernels_->decode_quantised})
      shared.emplace_back(decode, sm90::kSharedBytes);
  for (const Function product : kernels_->products)
    shared.emplace_back(product, sm90::kSharedBytes);
  for (const auto& [function, bytes] : shared)
    if (const auto done = device_->allow_shared(function, bytes); !done) return done.why();
  return Done{};
}

// Scales of quantised activations, x's and h's.
Result<Done> DeviceLayer::place_scales() {
  const std::size_t first = problem_.input_scales.size(), second = problem_.hidden_scales.size();
  const auto factor = [&](const std::vector<float>& scales) {
    if (scales.size() != 1 || layer_->activations_in_bf16 != 0) return 1.0f;
    return shared_factor({.key = problem_.quantises, .global_scale = scales[0]});
  };
  input_factor_ = factor(problem_.input_scales);
  hidden_factor_ = factor(problem_.hidden_scales);
  if (first + second == 0) return Done{};
  Result<Memory> memory = device_->allocate((first + second) * sizeof(float));
  if (!memory) return memory.why();
  scales_ = std::move(*memory);
  std::vector<float> all = problem_.input_scales;
  all.insert(all.end(), problem_.hidden_scales.begin(), problem_.hidden_scales.end());
  const auto sent = device_->upload(scales_.data(), std::as_bytes(std::span(all)), nullptr);
  if (!sent) return sent.why();
  if (const auto done = device_->wait(nullptr); !done) return done.why();
  if (first != 0) layer_->input_scales = scales_.as<const float>();
  if (second != 0) layer_->hidden_scales = scales_.as<const float>() + first;
  return Done{};
}

Result<std::uint64_t> DeviceLayer::workspace_bytes(const WorkspaceLimits& limits) const {
  const auto plan =
      plan_workspace(*layer_, limits, static_cast<std::uint32_t>(device_->facts().multiprocessors));
  if (!plan) return plan.why();
  return plan->total;
}

Result<Workspace> DeviceLayer::reserve(const WorkspaceLimits& limits) const {
  const auto plan =
      plan_workspace(*layer_, limits, static_cast<std::uint32_t>(device_->facts().multiprocessors));
  if (!plan) return plan.why();
  Workspace made;
  made.device_ = device_;
  made.key_ = workspace_key(*layer_);
  made.plan_ = *plan;
  made.limits_ = limits;
  Result<Memory> memory = device_->allocate(std::max<std::uint64_t>(plan->total, 1));
  if (!memory) return memory.why();
  made.memory_ = std::move(*memory);
  // Decode counts launches from 0, prepare slots, products pieces, and what blocks leave is of
  // none. The rest is cleared so that rows of padding, which are multiplied but never looked at,
  // hold numbers.
  const auto cleared = device_->clear(made.memory_.data(), 0, plan->total, nullptr);
  if (!cleared) return cleared.why();
  if (const auto done = device_->wait(nullptr); !done) return done.why();
  return made;
}

sm90::Sorted Workspace::tables() const {
  auto* counts = at<std::uint32_t>(Region::tile_count);
  return {.tiles = at<sm90::Tile>(Region::tiles),
          .tile_count = counts,
          .work = counts + 1,
          .done = at<std::uint32_t>(Region::done),
          .finished = at<std::uint32_t>(Region::finished),
          .rank_of_slot = at<std::int32_t>(Region::rank_of_slot),
          .totals = at<std::uint32_t>(Region::totals),
          .row_of_slot = at<std::int32_t>(Region::row_of_slot),
          .slot_of_row = at<std::int32_t>(Region::slot_of_row),
          .expert_of_row = at<std::int32_t>(Region::expert_of_row),
          .tile_of_row = at<std::int32_t>(Region::tile_of_row)};
}

CallPlan DeviceLayer::plan(const CallSize& size) const {
  CallPlan made = plan_call(*layer_, size);
  if (made.path == Path::decode && !options_.decodes) made.path = Path::rows;
  return made;
}

std::string_view DeviceLayer::kernel(const CallSize& size) const {
  return plan(size).path == Path::decode ? "sm90/decode" : "sm90/rows";
}

Result<Done> DeviceLayer::apply(const DeviceCall& call, const Workspace& space,
                                Stream stream) const {
  const Range range("fp4moe layer");
  const auto inside = device_->enter();
  if (!inside) return inside.why();
  if (const auto fine = check_call(call, space); !fine) return fine.why();
  const CallSize size = size_of(call);
  Step step{.given = call, .space = space, .inside = *inside, .stream = stream, .plan = plan(size)};
  if (step.plan.path == Path::nothing) return clear_output(call, stream);
  step.call = kernel_call(call, size);
  if (call.router != nullptr) {
    step.route = call.router->params();
    step.route.logits = rows_of<sm90::Rows>(call.logits);
    step.route.tokens = step.call.tokens;
    step.route.weights = space.at<float>(Region::weights);
    step.call.weights = step.route.weights;
  }
  return step.plan.path == Path::decode ? decode(step) : run_rows(step);
}

// Nobody computes anything: what would be summed is zero.
Result<Done> DeviceLayer::clear_output(const DeviceCall& call, Stream stream) const {
  if (call.form == OutputForm::batches) return Done{};
  const MutableRows& out = call.out;
  const std::uint64_t row = out.columns * element_bytes(out.dtype);
  if (out.stride == row) return device_->clear(out.data, 0, out.rows * row, stream);
  for (std::uint64_t i = 0; i < out.rows; ++i)
    if (const auto done = device_->clear(out.row(i), 0, row, stream); !done) return done.why();
  return Done{};
}

Result<Done> DeviceLayer::decode(const Step& step) const {
  const Workspace& space = step.space;
  const sm90::DecodeParams params{.call = step.call,
                                  .layer = as_swiglu(*layer_),
                                  .route = step.route,
                                  .tile_rows = step.plan.decode.tile_rows,
                                  .stages = step.plan.decode.stages,
                                  .partial = space.at<std::uint64_t>(Region::partial),
                                  .hidden = space.at<std::uint64_t>(Region::hidden),
                                  .sums = space.at<std::uint64_t>(Region::sums),
                                  .counters = space.at<std::uint32_t>(Region::counters)};
  const Function function = sm90::plain(params) == params       ? kernels_->decode_plain
                            : sm90::quantised(params) == params ? kernels_->decode_quantised
                                                                : kernels_->decode;
  return device_->launch({.function = function,
                          .blocks = static_cast<std::uint32_t>(device_->facts().multiprocessors),
                          .threads = sm90::kDecodeThreads,
                          .shared_bytes = step.plan.decode.shared_bytes,
                          .is_cooperative = true,
                          .overlaps = true,
                          .params = &params},
                         step.stream, step.inside);
}

}  // namespace fp4moe::moe::cuda
