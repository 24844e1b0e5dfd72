// The path `rows`: the parameters of its kernels, and their launches one after the other.
#include <algorithm>
#include <array>
#include <limits>

#include "fp4moe/kernels/cuda/sm80/grouped_gemm/params.hpp"
#include "fp4moe/kernels/cuda/sm80/grouped_gemm/shape.hpp"
#include "fp4moe/kernels/cuda/sm90/activate/params.hpp"
#include "fp4moe/kernels/cuda/sm90/combine/params.hpp"
#include "fp4moe/kernels/cuda/sm90/gather/params.hpp"
#include "fp4moe/kernels/cuda/sm90/gather_fp8/params.hpp"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm/shape.hpp"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm_fp8/shape.hpp"
#include "fp4moe/kernels/cuda/sm90/quantize_hidden/params.hpp"
#include "fp4moe/kernels/cuda/sm90/route/params.hpp"
#include "fp4moe/moe/cuda/device_step.hpp"
#include "fp4moe/moe/cuda/ranges.hpp"

namespace fp4moe::moe::cuda {

using kernels::cuda::Function;

namespace {

// How a kernel is launched.
struct Geometry {
  std::uint32_t blocks = 1, threads = 1, shared_bytes = 0;
};

// True if the GEMM can read the tokens from the caller's memory.
bool is_readable_in_place(const sm90::LayerParams& layer, const sm90::CallParams& call,
                          float prescale) {
  const bool is_quantizing =
      layer.quantization != sm90::Quantization::none && call.x_is_quantized == 0;
  return call.x.type == sm90::ElementType::bf16 && !is_quantizing && prescale == 1.0f &&
         layer.hidden % sm90::kBlockK == 0 && call.x.stride % 8 == 0 &&
         call.x.stride < std::uint64_t{1} << 31 &&
         reinterpret_cast<std::uintptr_t>(call.x.data) % 16 == 0;
}

// 2^32 / top_k, rounded up; 0 for 2^32.
constexpr std::uint32_t inverse_of(std::uint32_t top_k) {
  return std::numeric_limits<std::uint32_t>::max() / top_k + 1;
}

sm90::LoraParams lora_params(const DeviceCall& call, std::uint32_t experts, float* low) {
  if (call.adapters.pairs == nullptr) return {};
  return {.pairs = call.adapters.pairs,
          .adapters = call.in.adapters.data(),
          .experts = experts,
          .max_rank = static_cast<std::uint32_t>(call.adapters.max_rank),
          .low = low};
}

sm90::Epilogue gemm1_epilogue(const sm90::LayerParams& layer, const CallPlan& plan) {
  if (!plan.has_fused_activation) return sm90::Epilogue::raw_f32;
  return plan.is_fp8 || layer.quantization == sm90::Quantization::none
             ? sm90::Epilogue::swiglu
             : sm90::Epilogue::swiglu_quantized;
}
bool has_block_scales(const sm90::LayerParams& layer) {
  return layer.quantization == sm90::Quantization::fp8_block128;
}
sm90::HiddenQuantization hidden_quantization(const sm90::LayerParams& layer) {
  return {.quantization = layer.quantization,
          .middle = layer.middle,
          .activations_in_bf16 = layer.activations_in_bf16,
          .scales = layer.hidden_scales,
          .scales_each = layer.hidden_scales_each};
}

}  // namespace

// The parameters of all kernels of the path `rows`.
struct DeviceLayer::RowsParams {
  sm90::PrepareParams prepare{};
  sm90::GatherParams gather{};
  sm90::GatherFp8Params gather_fp8{};
  sm90::QuantizeHiddenParams quantize_hidden{};
  sm90::RouteGatherParams route_gather{};              // of sm80
  sm90::GroupedGemmParams gemm1{}, gemm2{};            // of sm90
  sm80::GroupedGemmParams sm80_gemm1{}, sm80_gemm2{};  // of sm80
  sm90::ActivateParams activate{};
  sm90::CombineParams combine{};
};

// The scales of the rows of x (gemm 0) or h (gemm 1), where each has one of its own.
float* DeviceLayer::token_scales(const Step& step, std::size_t gemm) const {
  if (!step.plan.is_fp8 || layer_->quantization != sm90::Quantization::fp8_token) return nullptr;
  const std::uint64_t bytes =
      step.space.plan_.bytes[static_cast<std::size_t>(Region::token_scales)];
  return step.space.at<float>(Region::token_scales) + gemm * (bytes / sizeof(float) / 2);
}

std::array<sm90::Gemm, 2> DeviceLayer::gemms(const Step& step) const {
  const Workspace& space = step.space;
  const bool has_fused_activation = step.plan.has_fused_activation;
  const float prescale = step.plan.prescale;
  const sm90::LayerParams swiglu = as_swiglu(*layer_);
  auto* x = space.at<std::uint8_t>(Region::x);
  auto* h = space.at<std::uint8_t>(Region::h);
  sm90::ConstDeviceRows rows = step.call.x;
  if (!is_readable_in_place(*layer_, step.call, prescale))
    rows = {.data = x, .stride = std::uint64_t{layer_->w13.k_blocks} * sm90::kBlockK};
  const float input_factor = step.call.x_is_quantized != 0 ? step.call.x_factor : input_factor_;
  const sm90::Gemm gemm1{
      .matrix = layer_->w13,
      .tiles = step.plan.is_block_sorted ? nullptr : x,
      .rows = rows,
      .epilogue = gemm1_epilogue(*layer_, step.plan),
      .out = has_fused_activation ? static_cast<void*>(h) : space.at<float>(Region::raw),
      .out_k_blocks = has_fused_activation ? layer_->w2.k_blocks : 0,
      .is_gated = layer_->is_gated,
      .alpha = swiglu.alpha,
      .beta = swiglu.beta,
      .limit = layer_->limit,
      .hidden = hidden_quantization(*layer_),
      .token_scales = token_scales(step, 0),
      .prescale = prescale,
      .input_factor = input_factor / prescale};
  const sm90::Gemm gemm2{
      .matrix = layer_->w2,
      .tiles = step.plan.is_fp8 ? space.at<std::uint8_t>(Region::h_fp8) : h,
      .epilogue = step.plan.has_bf16_rows ? sm90::Epilogue::scaled_bf16 : sm90::Epilogue::raw_f32,
      .out = space.at<std::uint8_t>(Region::y),
      .token_scales = token_scales(step, 1),
      .prescale = prescale,
      .input_factor = hidden_factor_ / prescale};
  return {gemm1, gemm2};
}

DeviceLayer::RowsParams DeviceLayer::rows_params(const Step& step) const {
  const Workspace& space = step.space;
  const sm90::RoutingTables tables = space.tables();
  const auto [gemm1, gemm2] = gemms(step);
  const sm90::LoraParams lora =
      lora_params(step.given, layer_->experts, space.at<float>(Region::low));
  const auto blocks = static_cast<std::uint32_t>(device_->facts().multiprocessors);
  const std::uint32_t tile_tokens = step.plan.tile_tokens;
  const bool is_sm80 = device_->family() == Family::sm80;
  const bool is_fp8 = step.plan.is_fp8;
  const std::uint32_t stages =
      is_sm80  ? sm80_gemm_shape(tile_tokens).stages
      : is_fp8 ? sm90::grouped_gemm_fp8::shape(tile_tokens, has_block_scales(*layer_)).stages
               : sm90::grouped_gemm_shape(tile_tokens, layer_->is_nvfp4 != 0).stages;
  const float prescale = gemm1.prescale;
  const bool is_block_sorted = step.plan.is_block_sorted;
  sm90::DeferredGatherParams deferred{};
  if (!is_sm80 && !is_fp8 && !is_block_sorted && tile_tokens > sm90::kMaxGatheredTokens &&
      is_readable_in_place(*layer_, step.call, prescale))
    deferred = {.first_tile = initial_tiles(*layer_, tile_tokens, blocks),
                .top_k = step.call.counts != nullptr ? 1 : step.call.top_k};
  const bool is_fused = step.plan.has_fused_activation && !is_fp8;  // both GEMMs in one launch
  auto* x = space.at<std::uint8_t>(Region::x);
  sm90::BlockSortParams block_sort{};
  if (is_block_sorted)
    block_sort = {
        .assignments = step.call.tokens * step.call.top_k,
        .experts = layer_->experts,
        .tile_tokens = tile_tokens,
        .inverse_top_k = inverse_of(step.call.top_k),
        .tables = space.at<std::uint8_t>(Region::block_sort),
        .stride = space.plan_.bytes[static_cast<std::size_t>(Region::block_sort)] / blocks};
  const sm90::GatherParams gather{.call = step.call,
                                  .layer = *layer_,
                                  .tile_tokens = tile_tokens,
                                  .tables = tables,
                                  .tiles = x,
                                  .filled_tiles = deferred.first_tile,
                                  .prescale = prescale};
  return {.prepare = {.route = step.route,
                      .rank_blocks = sm90::prepare_rank_blocks(
                          step.route, std::uint64_t{step.call.tokens} * step.call.top_k),
                      .call = step.call,
                      .layer = *layer_,
                      .tables = tables,
                      .rows = is_block_sorted && gemm1.rows.data == x ? x : nullptr,
                      .prescale = prescale},
          .gather = gather,
          .gather_fp8 = {.gather = gather, .token_scales = token_scales(step, 0)},
          .quantize_hidden = {.tables = tables,
                              .quantization = layer_->quantization,
                              .h = space.at<std::uint8_t>(Region::h),
                              .k_blocks = layer_->w2.k_blocks,
                              .tiles = space.at<std::uint8_t>(Region::h_fp8),
                              .token_scales = token_scales(step, 1)},
          .route_gather = {.route = step.route, .gather = gather},
          .gemm1 = {.gemms = {gemm1, is_fused ? gemm2 : sm90::Gemm{}},
                    .deferred_gather = deferred,
                    .tables = tables,
                    .block_sort = block_sort,
                    .work_counter = tables.work_counters,
                    .stages = stages},
          .gemm2 = {.gemms = {{}, gemm2},
                    .tables = tables,
                    .work_counter = tables.work_counters + 1,
                    .stages = stages},
          .sm80_gemm1 = {.gemm = gemm1,
                         .tiles = tables.tiles,
                         .tile_count = tables.tile_count,
                         .assignment_of_row = tables.assignment_of_row,
                         .stages = stages},
          .sm80_gemm2 = {.gemm = gemm2,
                         .tiles = tables.tiles,
                         .tile_count = tables.tile_count,
                         .assignment_of_row = tables.assignment_of_row,
                         .stages = stages},
          .activate = {.call = step.call,
                       .layer = *layer_,
                       .tables = tables,
                       .raw = space.at<float>(Region::raw),
                       .tiles = space.at<std::uint8_t>(Region::h),
                       .lora = lora,
                       .prescale = prescale},
          .combine = {.call = step.call,
                      .layer = *layer_,
                      .tables = tables,
                      .rows = gemm2.out,
                      .table_writers = sm90::table_writer_blocks(block_sort, blocks),
                      .lora = lora}};
}

Result<Done> DeviceLayer::run_rows(const Step& step) const {
  const RowsParams params = rows_params(step);
  const auto blocks = static_cast<std::uint32_t>(device_->facts().multiprocessors);
  const std::uint64_t tokens = step.call.tokens, assignments = tokens * step.call.top_k;
  const std::uint32_t tile_tokens = step.plan.tile_tokens;
  const bool is_sm80 = device_->family() == Family::sm80, is_fp8 = step.plan.is_fp8;
  const Function grouped_gemm = !is_fp8 ? kernels_->grouped_gemms.at(tile_tokens)
                                : has_block_scales(*layer_)
                                    ? kernels_->fp8_block_gemms.at(tile_tokens)
                                    : kernels_->fp8_token_gemms.at(tile_tokens);
  const auto gemm_geometry = [&](const sm90::WeightMatrix& matrix) -> Geometry {
    if (is_sm80)
      return {sm80::grouped_gemm_blocks(assignments, layer_->experts, matrix.m_blocks, tile_tokens),
              sm80::kGemmThreads, sm80_gemm_shape(tile_tokens).shared_bytes};
    if (is_fp8) {
      const auto shape = sm90::grouped_gemm_fp8::shape(tile_tokens, has_block_scales(*layer_));
      return {blocks, shape.threads, shape.shared_bytes};
    }
    const auto shape = sm90::grouped_gemm_shape(tile_tokens, layer_->is_nvfp4 != 0);
    return {blocks, shape.threads, shape.shared_bytes};
  };
  const Geometry gemm1 = gemm_geometry(layer_->w13), gemm2 = gemm_geometry(layer_->w2);
  const bool has_fused_activation = step.plan.has_fused_activation;
  const std::uint32_t convert_blocks =
      params.prepare.rows == nullptr ? 0 : sm90::prepare_convert_blocks(*layer_, tokens, blocks);
  const Geometry prepare{params.prepare.rank_blocks + convert_blocks, sm90::kPrepareThreads,
                         sm90::prepare_shared_bytes(step.route.columns)};
  const bool is_routed_in_gather =
      is_sm80 && sm90::can_route_in_gather(step.call, *layer_, step.route.columns);
  const Geometry gather{sm90::gather_blocks(*layer_, tokens, blocks), sm90::kGatherThreads,
                        is_routed_in_gather
                            ? sm90::route_gather_shared_bytes(layer_->experts, step.route.columns)
                            : sm90::gather_shared_bytes(layer_->experts)};
  const Geometry gather_fp8{sm90::gather_fp8_blocks(tokens, blocks), sm90::kGatherThreads,
                            sm90::gather_shared_bytes(layer_->experts)};
  const Geometry quantize_hidden{
      sm90::quantize_hidden_blocks(max_rows(assignments, layer_->experts), blocks),
      sm90::kQuantizeHiddenThreads};
  const Geometry activate{sm90::activate_blocks(max_rows(assignments, layer_->experts), blocks),
                          sm90::kActivateThreads,
                          sm90::activate_shared_bytes(*layer_, params.activate.lora)};
  const std::uint32_t segments = sm90::combine_segments(step.plan.has_bf16_rows, step.call.top_k);
  const Geometry combine{sm90::combine_blocks(*layer_, step.given.out.rows, segments, blocks),
                         sm90::kCombineThreads};
  struct Stage {
    const char* name;
    bool runs;
    Function function;
    const Geometry& geometry;
    const void* params;
  };
  const Stage stages[] = {
      {"prepare", step.call.counts == nullptr && !is_routed_in_gather, kernels_->prepare, prepare,
       &params.prepare},
      {"route_gather", is_routed_in_gather, kernels_->route_gather, gather, &params.route_gather},
      {"gather", !step.plan.is_block_sorted && !is_routed_in_gather && !is_fp8, kernels_->gather,
       gather, &params.gather},
      {"gather_fp8", is_fp8, kernels_->gather_fp8, gather_fp8, &params.gather_fp8},
      {"grouped gemm", true, grouped_gemm, gemm1,
       is_sm80 ? static_cast<const void*>(&params.sm80_gemm1) : &params.gemm1},
      {"activate", !has_fused_activation, kernels_->activate, activate, &params.activate},
      {"quantize hidden", is_fp8, kernels_->quantize_hidden, quantize_hidden,
       &params.quantize_hidden},
      {"second grouped gemm", is_sm80 || is_fp8 || !has_fused_activation, grouped_gemm, gemm2,
       is_sm80 ? static_cast<const void*>(&params.sm80_gemm2) : &params.gemm2},
      {"combine_f32", true,
       step.plan.has_bf16_rows ? kernels_->combine_bf16 : kernels_->combine_f32, combine,
       &params.combine}};
  for (const Stage& stage : stages) {
    if (!stage.runs) continue;
    const Range range(stage.name);
    const auto launched = device_->launch({.function = stage.function,
                                           .blocks = stage.geometry.blocks,
                                           .threads = stage.geometry.threads,
                                           .shared_bytes = stage.geometry.shared_bytes,
                                           .has_pdl = true,
                                           .params = stage.params},
                                          step.stream, step.inside);
    if (!launched) return launched.why();
  }
  return Done{};
}

}  // namespace fp4moe::moe::cuda
