#include "fp4moe/moe/cuda/device_layer.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/moe/cuda/device_step.hpp"
#include "fp4moe/moe/cuda/device_weights.hpp"
#include "fp4moe/moe/cuda/ranges.hpp"

namespace fp4moe::moe::cuda {
namespace {

using kernels::cuda::Function;
using kernels::cuda::Memory;
using kernels::cuda::Stream;

sm90::ElementType type_of(DType dtype) {
  return dtype == DType::bf16  ? sm90::ElementType::bf16
         : dtype == DType::f16 ? sm90::ElementType::f16
                               : sm90::ElementType::f32;
}

template <class To, class From>
To rows_of(const From& rows) {
  return {.data = rows.data,
          .type = type_of(rows.dtype),
          .rows = static_cast<std::uint32_t>(rows.rows),
          .stride = rows.stride / element_bytes(rows.dtype)};
}

CallSize size_of(const DeviceCall& call) {
  return {.tokens = call.in.x.rows,
          .top_k = call.top_k(),
          .form = call.form,
          .has_adapters = call.adapters.pairs != nullptr,
          .in_float32 = call.out.dtype == DType::f32,
          .is_batched = call.in.format == TokenFormat::batched,
          .is_quantized = call.in.is_quantized};
}

sm90::CallParams kernel_call(const DeviceCall& call, const CallSize& size) {
  const Prepared& in = call.in;
  return {.x = rows_of<sm90::ConstDeviceRows>(in.x),
          .tokens = static_cast<std::uint32_t>(size.tokens),
          .top_k = static_cast<std::uint32_t>(size.top_k),
          .x_is_quantized = in.is_quantized ? 1U : 0U,
          .x_factor = in.is_quantized ? in.factor : 1.0f,
          .ids = in.ids.data(),
          .weights = in.weights.data(),
          .expert_map = call.expert_map.empty() ? nullptr : call.expert_map.data(),
          .map_size = static_cast<std::uint32_t>(call.expert_map.size()),
          .first_expert = call.first_expert,
          .counts = in.counts.data(),
          .capacity = static_cast<std::uint32_t>(in.capacity),
          .weight_on_input = call.weight_on_input ? 1U : 0U,
          .form = call.form,
          .out = rows_of<sm90::MutableDeviceRows>(call.out)};
}

}  // namespace

Result<DeviceLayer> DeviceLayer::make(std::shared_ptr<const kernels::cuda::Device> device,
                                      const ExpertsProblem& problem, const ExpertSource& source,
                                      DeviceLayerOptions options) {
  const Range range("fp4moe make layer");
  Result<sm90::LayerParams> layer =
      describe(problem, activate_max_shared(device->facts().shared_bytes));
  if (!layer) return layer.why();
  if (source.shape.experts != problem.shape.experts ||
      source.shape.hidden != problem.shape.hidden ||
      source.shape.intermediate != problem.shape.intermediate ||
      source.shape.format != problem.shape.format || source.shape.gated() != problem.shape.gated())
    return usage("experts.layout", "the shape of the weights differs")
        .expects(fmt::format("{} experts of {} x {}", problem.shape.experts,
                             problem.shape.intermediate, problem.shape.hidden),
                 fmt::format("{} experts of {} x {}", source.shape.experts,
                             source.shape.intermediate, source.shape.hidden));
  DeviceLayer result;
  result.device_ = std::move(device);
  result.problem_ = problem;
  result.options_ = options;
  result.layer_ = std::make_shared<sm90::LayerParams>(*layer);
  if (const auto fine = result.check_shared(); !fine) return fine.why();
  if (const auto found = result.find_kernels(); !found) return found.why();
  Result<DeviceWeights> weights = DeviceWeights::make(result.device_, source, *result.layer_);
  if (!weights) return weights.why();
  result.weights_ = std::make_shared<const DeviceWeights>(std::move(*weights));
  if (const auto placed = result.place_scales(); !placed) return placed.why();
  return result;
}

Result<DeviceLayer> DeviceLayer::with_numerics(const ExpertsProblem& problem,
                                               DeviceLayerOptions options) const {
  Result<sm90::LayerParams> layer =
      describe(problem, activate_max_shared(device_->facts().shared_bytes));
  if (!layer) return layer.why();
  if (problem.shape != problem_.shape)
    return usage("experts.layout", "the shape differs")
        .expects(fmt::format("{} experts of {} x {}", problem_.shape.experts,
                             problem_.shape.intermediate, problem_.shape.hidden),
                 fmt::format("{} experts of {} x {}", problem.shape.experts,
                             problem.shape.intermediate, problem.shape.hidden));
  DeviceLayer result;
  result.device_ = device_;
  result.problem_ = problem;
  result.options_ = options;
  result.options_.allow_decode = options.allow_decode && options_.allow_decode;
  result.weights_ = weights_;
  result.kernels_ = kernels_;
  result.layer_ = std::make_shared<sm90::LayerParams>(*layer);
  result.layer_->w13 = layer_->w13;
  result.layer_->w2 = layer_->w2;
  result.layer_->down_global = layer_->down_global;
  if (const auto placed = result.place_scales(); !placed) return placed.why();
  return result;
}

std::uint64_t DeviceLayer::weight_bytes() const { return weights_->bytes(); }
std::uint64_t DeviceLayer::wide_rows() const { return weights_->wide_rows(); }

// The properties that the kernels of the family need of any device.
Result<Done> DeviceLayer::check_shared() const {
  const std::uint64_t needed =
      device_->family() == Family::sm80 ? sm80::min_shared_bytes() : sm90::kMaxSharedBytes;
  if (device_->facts().shared_bytes >= needed) return Done{};
  return error(ErrorCode::unavailable, "cuda.limits", "a block has too little shared memory")
      .expects(fmt::format("at least {} bytes", needed),
               fmt::format("{} bytes on {}", device_->facts().shared_bytes, device_->facts().name))
      .try_this("use the CPU engine");
}

Result<Done> DeviceLayer::find_kernels() {
  kernels_ = std::make_shared<Kernels>();
  const std::string_view format = layer_->is_nvfp4 != 0 ? "nvfp4" : "mxfp4";
  std::vector<std::pair<Function*, std::string>> wanted{{&kernels_->prepare, "prepare"},
                                                        {&kernels_->gather, "gather"},
                                                        {&kernels_->activate, "activate"},
                                                        {&kernels_->combine_f32, "combine_f32"},
                                                        {&kernels_->combine_bf16, "combine_bf16"}};
  const bool is_sm80 = device_->family() == Family::sm80;
  std::vector<std::pair<Function*, std::uint32_t>> shared{
      {&kernels_->activate,
       static_cast<std::uint32_t>(activate_max_shared(device_->facts().shared_bytes))}};
  if (is_sm80) wanted.emplace_back(&kernels_->route_gather, "route_gather");
  if (options_.allow_decode && !is_sm80)
    for (const auto& [decode, kind] : {std::pair{&kernels_->decode_generic, "generic"},
                                       std::pair{&kernels_->decode_bf16, "bf16"},
                                       std::pair{&kernels_->decode_quantized, "quantized"}}) {
      wanted.emplace_back(decode, fmt::format("decode_{}_{}", kind, format));
      shared.emplace_back(decode, sm90::kMaxSharedBytes);
    }
  const std::span<const std::uint32_t> sizes =
      is_sm80 ? std::span<const std::uint32_t>(sm80::kTileSizes) : sm90::kTileSizes;
  for (const std::uint32_t tokens : sizes) {
    Function* const gemm = &kernels_->grouped_gemms[tokens];
    wanted.emplace_back(gemm, fmt::format("grouped_gemm_n{}_{}", tokens, format));
    shared.emplace_back(gemm,
                        is_sm80 ? sm80_gemm_shape(tokens).shared_bytes : sm90::kMaxSharedBytes);
  }
  if (!is_sm80 && layer_->is_nvfp4 == 0) {
    wanted.emplace_back(&kernels_->gather_fp8, "gather_fp8");
    wanted.emplace_back(&kernels_->quantize_hidden, "quantize_hidden");
    const auto want_fp8 = [&](std::map<std::uint32_t, Function>& gemms, std::string_view scales,
                              std::uint32_t tokens) {
      Function* const gemm = &gemms[tokens];
      wanted.emplace_back(gemm, fmt::format("grouped_gemm_fp8_{}_n{}", scales, tokens));
      shared.emplace_back(gemm, sm90::kMaxSharedBytes);
    };
    for (const std::uint32_t tokens : sm90::grouped_gemm_fp8::kTileSizes)
      want_fp8(kernels_->fp8_token_gemms, "token", tokens);
    want_fp8(kernels_->fp8_block_gemms, "block", sm90::grouped_gemm_fp8::kMaxTileTokens);
  }
  for (const auto& [to, name] : wanted) {
    const Result<Function> found = device_->function(
        fmt::format("fp4moe_{}_{}", kernels::cuda::name(device_->family()), name));
    if (!found) return found.why();
    *to = *found;
  }
  for (const auto& [function, bytes] : shared)
    if (const auto done = device_->allow_shared(*function, bytes); !done) return done.why();
  return Done{};
}

sm80::GroupedGemmShape DeviceLayer::sm80_gemm_shape(std::uint32_t tile_tokens) const {
  return sm80::grouped_gemm_shape(tile_tokens, layer_->is_nvfp4 != 0,
                                  device_->facts().shared_bytes);
}

// Uploads the scales of quantized activations, of x and of h.
Result<Done> DeviceLayer::place_scales() {
  const std::size_t first = problem_.input_scales.size(), second = problem_.hidden_scales.size();
  const auto factor = [&](const std::vector<float>& scales) {
    if (scales.size() != 1 || layer_->activations_in_bf16 != 0) return 1.0f;
    return shared_factor({.key = problem_.quantizes, .global_scale = scales[0]});
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
  const auto plan = plan_workspace(*layer_, limits, limits_of(*device_));
  if (!plan) return plan.why();
  return plan->total;
}

Result<Workspace> DeviceLayer::reserve(const WorkspaceLimits& limits) const {
  const auto plan = plan_workspace(*layer_, limits, limits_of(*device_));
  if (!plan) return plan.why();
  Workspace result;
  result.device_ = device_;
  result.key_ = workspace_key(*layer_, device_->family());
  result.plan_ = *plan;
  result.limits_ = limits;
  Result<Memory> memory = device_->allocate(std::max<std::uint64_t>(plan->total, 1));
  if (!memory) return memory.why();
  result.memory_ = std::move(*memory);
  // All counters and tags start at 0. The rest is cleared, too, so that results of padding rows, which are
  // never read, do not depend on what was in memory.
  const auto cleared = device_->clear(result.memory_.data(), 0, plan->total, nullptr);
  if (!cleared) return cleared.why();
  if (const auto done = device_->wait(nullptr); !done) return done.why();
  return result;
}

sm90::RoutingTables Workspace::tables() const {
  auto* counts = at<std::uint32_t>(Region::tile_count);
  return {.tiles = at<sm90::TokenTile>(Region::tiles),
          .tile_count = counts,
          .work_counters = counts + 1,
          .tile_progress = at<std::uint32_t>(Region::tile_progress),
          .combine_signals = at<std::uint32_t>(Region::combine_signals),
          .rank_of_assignment = at<std::int32_t>(Region::rank_of_assignment),
          .expert_counts = at<std::uint32_t>(Region::expert_counts),
          .row_of_assignment = at<std::int32_t>(Region::row_of_assignment),
          .assignment_of_row = at<std::int32_t>(Region::assignment_of_row),
          .expert_of_row = at<std::int32_t>(Region::expert_of_row),
          .tile_of_row_group = at<std::int32_t>(Region::tile_of_row_group)};
}

CallPlan DeviceLayer::plan(const CallSize& size) const {
  return plan_call(*layer_, size, device_->family(), options_);
}

bool DeviceLayer::has_fp8_gemms() const {
  return options_.allow_fp8 && computes_in_fp8(*layer_, device_->family());
}

std::string DeviceLayer::kernel() const {
  const std::string_view id = problem_.numerics.id;
  const bool is_own = id == "exact" || id == "native" || id == "fast";
  const std::string_view family = kernels::cuda::name(device_->family());
  std::string result =
      is_own ? fmt::format("{}/exact", family) : fmt::format("{}/match:{}", family, id);
  if (has_fp8_gemms())
    result += problem_.quantizes == ActivationKey::fp8_token ? "+fp8_token" : "+fp8_block";
  return result;
}

std::string_view DeviceLayer::kernel(const CallSize& size) const {
  if (device_->family() == Family::sm80) return "sm80/rows";
  const CallPlan found = plan(size);
  return found.path == Path::decode ? "sm90/decode" : found.is_fp8 ? "sm90/fp8" : "sm90/rows";
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
    step.route.logits = rows_of<sm90::ConstDeviceRows>(call.in.logits);
    step.route.tokens = step.call.tokens;
    step.route.weights = space.at<float>(Region::weights);
    step.call.weights = step.route.weights;
  }
  return step.plan.path == Path::decode ? decode(step) : run_rows(step);
}

// No expert computes anything: the sums are 0.
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
                                  .tile_tokens = step.plan.decode.tile_tokens,
                                  .stages = step.plan.decode.stages,
                                  .partial_sums = space.at<std::uint64_t>(Region::partial_sums),
                                  .hidden = space.at<std::uint64_t>(Region::hidden),
                                  .gemm2_sums = space.at<std::uint64_t>(Region::gemm2_sums),
                                  .counters = space.at<std::uint32_t>(Region::counters)};
  const Function function = sm90::bf16_specialization(params) == params ? kernels_->decode_bf16
                            : sm90::quantized_specialization(params) == params
                                ? kernels_->decode_quantized
                                : kernels_->decode_generic;
  return device_->launch({.function = function,
                          .blocks = static_cast<std::uint32_t>(device_->facts().multiprocessors),
                          .threads = sm90::kDecodeThreads,
                          .shared_bytes = step.plan.decode.shared_bytes,
                          .is_cooperative = true,
                          .has_pdl = true,
                          .params = &params},
                         step.stream, step.inside);
}

}  // namespace fp4moe::moe::cuda
