// The path `rows`: what its kernels are given, and their launches one after the other.
#include <algorithm>
#include <array>
#include <iterator>
#include <limits>

#include "fp4moe/kernels/cuda/sm90/launches.hpp"
#include "fp4moe/moe/cuda/device_step.hpp"
#include "fp4moe/moe/cuda/ranges.hpp"

namespace fp4moe::moe::cuda {

using kernels::cuda::Function;

namespace {

// How a kernel is launched.
struct Geometry {
  std::uint32_t blocks = 1, threads = 1, shared_bytes = 0;
};

// Whether tokens are what tensor cores read already, so that the product takes them from where they
// are.
bool is_plain(const sm90::Layer& layer, const sm90::Call& call, float raise) {
  const bool is_quantised = layer.quantise != sm90::Quantise::none && call.x_is_quantised == 0;
  return call.x.type == sm90::Type::bf16 && !is_quantised && raise == 1.0f &&
         layer.hidden % sm90::kUnit == 0 && call.x.stride % 8 == 0 &&
         call.x.stride < std::uint64_t{1} << 31 &&
         reinterpret_cast<std::uintptr_t>(call.x.data) % 16 == 0;
}

// 2^32 / choices, rounded up; 0 for 2^32.
constexpr std::uint32_t part_of(std::uint32_t choices) {
  return std::numeric_limits<std::uint32_t>::max() / choices + 1;
}

sm90::DeviceLora lora_of(const DeviceAdapters& given, std::uint32_t experts, float* low) {
  if (given.pairs == nullptr) return {};
  return {.pairs = given.pairs,
          .adapters = given.of_token,
          .experts = experts,
          .most_rank = static_cast<std::uint32_t>(given.most_rank),
          .low = low};
}

// How the first product ends, and what it makes of h.
sm90::Epilogue first_epilogue(const sm90::Layer& layer, bool fuses) {
  if (!fuses) return sm90::Epilogue::raw;
  return layer.quantise == sm90::Quantise::none ? sm90::Epilogue::hidden : sm90::Epilogue::placed;
}
sm90::HiddenFormat hidden_format(const sm90::Layer& layer) {
  return {.quantise = layer.quantise,
          .middle = layer.middle,
          .activations_in_bf16 = layer.activations_in_bf16,
          .scales = layer.hidden_scales,
          .scales_each = layer.hidden_scales_each};
}

}  // namespace

// What the kernels of the path `rows` are given.
struct DeviceLayer::RowsParams {
  sm90::PrepareParams prepare{};
  sm90::GatherParams gather{};
  sm90::ProductParams first{}, second{};
  sm90::ActivateParams activate{};
  sm90::CombineParams combine{};
};

std::array<sm90::Product, 2> DeviceLayer::products(const Step& step) const {
  const Workspace& space = step.space;
  const bool fuses = step.plan.fuses;
  const float raise = sm90::product_raise(step.plan.tile_tokens, layer_->is_nvfp4 != 0);
  const sm90::Layer swiglu = as_swiglu(*layer_);
  auto* x = space.at<std::uint8_t>(Region::x);
  auto* h = space.at<std::uint8_t>(Region::h);
  sm90::Rows rows = step.call.x;
  if (!is_plain(*layer_, step.call, raise))
    rows = {.data = x, .stride = std::uint64_t{layer_->w13.units} * sm90::kUnit};
  const sm90::Product first{
      .matrix = layer_->w13,
      .tiles = step.plan.sorts ? nullptr : x,
      .rows = rows,
      .epilogue = first_epilogue(*layer_, fuses),
      .out = fuses ? static_cast<void*>(h) : space.at<float>(Region::raw),
      .out_units = fuses ? layer_->w2.units : 0,
      .is_gated = layer_->is_gated,
      .alpha = swiglu.alpha,
      .beta = swiglu.beta,
      .limit = layer_->limit,
      .hidden = hidden_format(*layer_),
      .raise = raise,
      .input_factor = (step.call.x_is_quantised != 0 ? step.call.x_factor : input_factor_) / raise};
  const sm90::Product second{
      .matrix = layer_->w2,
      .tiles = h,
      .epilogue = step.plan.rounds ? sm90::Epilogue::rounded : sm90::Epilogue::raw,
      .out = space.at<std::uint8_t>(Region::y),
      .raise = raise,
      .input_factor = hidden_factor_ / raise};
  return {first, second};
}

DeviceLayer::RowsParams DeviceLayer::rows_params(const Step& step) const {
  const Workspace& space = step.space;
  const sm90::Sorted sorted = space.tables();
  const auto [first, second] = products(step);
  const sm90::DeviceLora lora =
      lora_of(step.given.adapters, layer_->experts, space.at<float>(Region::low));
  const auto blocks = static_cast<std::uint32_t>(device_->facts().multiprocessors);
  const std::uint32_t tile = step.plan.tile_tokens;
  const std::uint32_t stages = sm90::product_shape(tile, layer_->is_nvfp4 != 0).stages;
  const float raise = first.raise;
  const bool sorts = step.plan.sorts;
  sm90::Late late{};
  if (!sorts && tile > sm90::kMostFetched && is_plain(*layer_, step.call, raise))
    late = {.first = first_tiles(*layer_, tile, blocks),
            .choices = step.call.counts != nullptr ? 1 : step.call.top_k};
  auto* x = space.at<std::uint8_t>(Region::x);
  const std::uint64_t own_bytes = space.plan_.bytes[static_cast<std::size_t>(Region::own)];
  sm90::OwnSlots own{};
  if (sorts)
    own = {.slots = step.call.tokens * step.call.top_k,
           .experts = layer_->experts,
           .tile_tokens = tile,
           .part = part_of(step.call.top_k),
           .tables = space.at<std::uint8_t>(Region::own),
           .stride = own_bytes / blocks};
  return {
      .prepare = {.route = step.route,
                  .rankers = sm90::prepare_rankers(
                      step.route, std::uint64_t{step.call.tokens} * step.call.top_k),
                  .call = step.call,
                  .layer = *layer_,
                  .to = sorted,
                  .rows = sorts && first.rows.data == x ? x : nullptr,
                  .raise = raise},
      .gather = {.call = step.call,
                 .layer = *layer_,
                 .tile_tokens = tile,
                 .sorted = sorted,
                 .tiles = x,
                 .filled = late.first,
                 .raise = raise},
      .first = {.of = {first, step.plan.fuses ? second : sm90::Product{}},
                .late = late,
                .sorted = sorted,
                .own = own,
                .work = sorted.work,
                .stages = stages},
      .second = {.of = {{}, second}, .sorted = sorted, .work = sorted.work + 1, .stages = stages},
      .activate = {.call = step.call,
                   .layer = *layer_,
                   .sorted = sorted,
                   .raw = space.at<float>(Region::raw),
                   .tiles = space.at<std::uint8_t>(Region::h),
                   .lora = lora,
                   .raise = raise},
      .combine = {.call = step.call,
                  .layer = *layer_,
                  .sorted = sorted,
                  .rows = second.out,
                  .told = sm90::told_blocks(own, blocks),
                  .lora = lora}};
}

Result<Done> DeviceLayer::run_rows(const Step& step) const {
  const RowsParams params = rows_params(step);
  const auto blocks = static_cast<std::uint32_t>(device_->facts().multiprocessors);
  const std::uint64_t tokens = step.call.tokens, slots = tokens * step.call.top_k;
  const std::uint32_t tile = step.plan.tile_tokens;
  const auto bound = std::ranges::find(sm90::kTileBounds, tile) - std::begin(sm90::kTileBounds);
  const Function product = kernels_->products[static_cast<std::size_t>(bound)];
  const sm90::ProductShape shape = sm90::product_shape(tile, layer_->is_nvfp4 != 0);
  const Geometry multiply{blocks, shape.threads, shape.shared_bytes};
  const bool sorts = step.plan.sorts, rounds = params.prepare.rows != nullptr;
  const Geometry prepare{
      params.prepare.rankers + (rounds ? sm90::prepare_rounders(*layer_, tokens, blocks) : 0),
      sm90::kPrepareThreads, sm90::prepare_shared(step.route.columns)};
  const Geometry gather{sm90::gather_blocks(*layer_, tokens, blocks), sm90::kGatherThreads,
                        sm90::gather_shared(layer_->experts)};
  const Geometry activate{sm90::activate_blocks(most_rows(slots, layer_->experts), blocks),
                          sm90::kActivateThreads,
                          sm90::activate_shared(*layer_, params.activate.lora)};
  const std::uint32_t wide = sm90::combine_wide(step.plan.rounds, step.call.top_k);
  const Geometry combine{sm90::combine_blocks(*layer_, step.given.out.rows, wide, blocks),
                         sm90::kCombineThreads};
  struct Stage {
    const char* name;
    bool runs;
    Function function;
    const Geometry& geometry;
    const void* params;
  };
  const Stage stages[] = {
      {"prepare", step.call.counts == nullptr, kernels_->prepare, prepare, &params.prepare},
      {"gather", !sorts, kernels_->gather, gather, &params.gather},
      {"product", true, product, multiply, &params.first},
      {"activate", !step.plan.fuses, kernels_->activate, activate, &params.activate},
      {"second product", !step.plan.fuses, product, multiply, &params.second},
      {"combine", true, step.plan.rounds ? kernels_->combine_rounded : kernels_->combine, combine,
       &params.combine}};
  for (const Stage& stage : stages) {
    if (!stage.runs) continue;
    const Range range(stage.name);
    const auto launched = device_->launch({.function = stage.function,
                                           .blocks = stage.geometry.blocks,
                                           .threads = stage.geometry.threads,
                                           .shared_bytes = stage.geometry.shared_bytes,
                                           .overlaps = true,
                                           .params = stage.params},
                                          step.stream, step.inside);
    if (!launched) return launched.why();
  }
  return Done{};
}

}  // namespace fp4moe::moe::cuda
