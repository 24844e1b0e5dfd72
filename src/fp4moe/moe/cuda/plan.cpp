#include "fp4moe/moe/cuda/plan.hpp"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/kernels/cuda/sm90/activate/params.hpp"

namespace fp4moe::moe::cuda {
namespace {

constexpr std::uint64_t kMaxSize = 1 << 20;                        // of hidden and intermediate
constexpr std::uint64_t kMaxAssignments = std::uint64_t{1} << 28;  // rows of batches
constexpr std::uint64_t kMaxRankedAssignments = std::uint64_t{1}
                                                << sm90::kRankBits;  // tokens x top_k
// Rows are counted in 32 bits.
static_assert(kMaxAssignments + std::uint64_t{8} * sm90::kMaxExperts <= 0xFFFFFFFF);
constexpr std::uint64_t kRawBytes = std::uint64_t{16}
                                    << 20;  // of float32 rows of GEMM2 that stay in L2

// Max tokens of a tile, by the mean number of assignments of an expert: `mean` for layers whose w2
// has at least kLongRow K blocks, `short_mean` for others.
constexpr std::uint32_t kLongRow = 32;
struct TileRow {
  std::uint64_t mean, short_mean;
  std::uint32_t tokens;
};
constexpr TileRow kTileRows[] = {{16, 14, sm90::kTileSizes[0]},
                                 {50, 50, sm90::kTileSizes[1]},
                                 {70, 70, sm90::kTileSizes[2]},
                                 {100, 100, sm90::kTileSizes[3]}};

static_assert(sm90::max_tiles(3 * kTileRows[0].tokens, 0) == 3);

// The same for the family sm80, for all layers.
struct Sm80TileRow {
  std::uint64_t mean;
  std::uint32_t tokens;
};
constexpr Sm80TileRow kSm80TileRows[] = {{20, sm80::kTileSizes[0]}, {56, sm80::kTileSizes[1]}};
constexpr std::uint32_t kMaxSm80Tile = sm80::kTileSizes[2];
static_assert(sm80::kTileSizes[0] >= kTileRows[0].tokens);  // of max_tiles

// Quantization has the same keys in the same order, except the last: check_quantizing refuses it.
constexpr sm90::Quantization quantization_of(ActivationKey key) {
  return static_cast<sm90::Quantization>(key);
}
static_assert(quantization_of(ActivationKey::none) == sm90::Quantization::none &&
              quantization_of(ActivationKey::mxfp8) == sm90::Quantization::mxfp8 &&
              quantization_of(ActivationKey::mxfp4) == sm90::Quantization::mxfp4 &&
              quantization_of(ActivationKey::nvfp4) == sm90::Quantization::nvfp4 &&
              quantization_of(ActivationKey::fp8_static_tensor) ==
                  sm90::Quantization::fp8_static_tensor &&
              quantization_of(ActivationKey::fp8_block128) == sm90::Quantization::fp8_block128 &&
              quantization_of(ActivationKey::fp8_token) == sm90::Quantization::fp8_token);

Result<Done> check_quantizing(ActivationKey key) {
  if (key != ActivationKey::nvfp4_token) return Done{};
  return usage("cuda.limits", "the kernels have no scale of each token for NVFP4 activations")
      .expects("activations in 16 bits or another form", oracle::name(key))
      .try_this("use the CPU engine");
}

Result<Done> check_limits(const checkpoint::MoeShape& shape) {
  if (shape.experts > sm90::kMaxExperts)
    return usage("cuda.limits", "too many experts")
        .expects(fmt::format("at most {} on a rank", sm90::kMaxExperts),
                 fmt::format("{}", shape.experts))
        .try_this("split the experts among ranks, or use the CPU engine");
  if (shape.hidden > kMaxSize || shape.intermediate > kMaxSize)
    return usage("cuda.limits", "sizes are too large")
        .expects(fmt::format("at most {}", kMaxSize),
                 fmt::format("hidden {}, intermediate {}", shape.hidden, shape.intermediate))
        .try_this("use the CPU engine");
  return Done{};
}

// LoRA and one scale per row need a row of h in shared memory.
Result<Done> check_row_fits(std::uint32_t k_blocks, std::uint64_t rank, std::uint64_t max) {
  const std::uint64_t bytes = sm90::ActivateSharedStorage::bytes(k_blocks, rank);
  if (bytes <= max) return Done{};
  return usage("cuda.limits", "a row of the activation's output does not fit into shared memory")
      .expects(fmt::format("at most {} bytes", max), fmt::format("{}", bytes))
      .try_this("split the layer among ranks, or use the CPU engine");
}

bool is_fused_act(sm90::Activation act) {
  return act == sm90::Activation::swigluoai || act == sm90::Activation::swigluoai_uninterleave ||
         act == sm90::Activation::silu;
}

// The epilogue of GEMM1 has three activations, and rounds only their result.
bool is_epilogue_activation(const sm90::LayerParams& layer) {
  return layer.is_gated != 0 && is_fused_act(layer.act) &&
         layer.first == sm90::FirstRounding::none &&
         layer.middle != sm90::MiddleRounding::gate_and_result;
}

// E4M3 with a scale for each token or for every 128 columns.
bool has_wide_fp8_blocks(const sm90::LayerParams& layer) {
  return layer.quantization == sm90::Quantization::fp8_block128 ||
         layer.quantization == sm90::Quantization::fp8_token;
}

// The epilogue quantizes in blocks of at most 32 columns (sm80: not at all), and has one input scale for
// all experts.
bool has_fused_activation(const sm90::LayerParams& layer, Family family) {
  const bool has_small_blocks = family == Family::sm80
                                    ? layer.quantization == sm90::Quantization::none
                                    : !has_wide_fp8_blocks(layer);
  return is_epilogue_activation(layer) && has_small_blocks && layer.input_scales_each == 0;
}

// FP8 tensor cores are taken if the mean number of assignments of an expert is at least so high: between
// measured numbers (docs/cuda-results.md). With fewer, reading and dequantizing weights takes most of
// the time.
constexpr std::uint64_t kMinFp8Mean = 24, kMinFp8BlockMean = 96;
std::uint64_t min_fp8_mean(const sm90::LayerParams& layer) {
  return layer.quantization == sm90::Quantization::fp8_token ? kMinFp8Mean : kMinFp8BlockMean;
}
// Tiles are small up to this one. The kernel for block scales has large tiles only.
constexpr std::uint64_t kSmallFp8Mean = 56;
static_assert(kMinFp8BlockMean > kSmallFp8Mean);
std::uint32_t fp8_tile_tokens(const sm90::LayerParams& layer, std::uint64_t assignments) {
  return sm90::grouped_gemm_fp8::kTileSizes[assignments <= layer.experts * kSmallFp8Mean ? 0 : 1];
}

// True if rows of GEMM2 must not be rounded before the weight is applied, or have one factor per
// expert.
bool needs_raw(const sm90::LayerParams& layer) {
  return layer.second == sm90::SecondRounding::weighted ||
         layer.second == sm90::SecondRounding::steps ||
         layer.weight == sm90::WeightRounding::bf16_with_global || layer.hidden_scales_each != 0;
}

bool fits_l2(const sm90::LayerParams& layer, std::uint64_t assignments) {
  return assignments * layer.hidden * sizeof(float) <= kRawBytes;
}

std::uint64_t row_bytes(std::uint64_t rows, std::uint64_t blocks, std::uint64_t element) {
  return rows * blocks * sm90::kBlockK * element;
}

// True if all experts read the same tokens: no scale per expert, no scale per row.
bool shares_tokens(const sm90::LayerParams& layer) {
  return layer.quantization == sm90::Quantization::none ||
         (layer.input_scales_each == 0 && layer.quantization != sm90::Quantization::fp8_token);
}

}  // namespace

Result<sm90::LayerParams> describe(const ExpertsProblem& problem, std::uint64_t activate_shared) {
  if (const auto fine = check(problem); !fine) return fine.why();
  const checkpoint::MoeShape& shape = problem.shape;
  if (const auto fine = check_limits(shape); !fine) return fine.why();
  if (const auto fine = check_quantizing(problem.quantizes); !fine) return fine.why();
  const Numerics& numerics = problem.numerics;
  const bool is_nvfp4 = shape.format == checkpoint::WeightFormat::nvfp4;
  if (numerics.weights_in_bf16 && is_nvfp4)
    return error(ErrorCode::unavailable, "cuda.numerics", "the kernels do not round weights")
        .expects("numerics whose weights stay exact", numerics.id)
        .try_this("use the reference engine");
  const auto hidden_blocks = static_cast<std::uint32_t>(ceil_div(shape.hidden, sm90::kBlockK));
  // A rank whose share is empty has one block of zeros: kernels need no special case.
  const auto middle_blocks = static_cast<std::uint32_t>(
      ceil_div(std::max<std::uint64_t>(shape.intermediate, 1), sm90::kBlockK));
  sm90::LayerParams result{.experts = static_cast<std::uint32_t>(shape.experts),
                           .hidden = static_cast<std::uint32_t>(shape.hidden),
                           .intermediate = static_cast<std::uint32_t>(shape.intermediate),
                           .is_gated = shape.gated() ? 1U : 0U,
                           .is_nvfp4 = is_nvfp4 ? 1U : 0U,
                           .act = problem.activation,
                           .alpha = static_cast<float>(problem.params.alpha),
                           .beta = static_cast<float>(problem.params.beta),
                           .limit = static_cast<float>(problem.params.limit),
                           .situ_beta = static_cast<float>(problem.params.situ_beta),
                           .situ_linear_beta = static_cast<float>(problem.params.situ_linear_beta),
                           .first = numerics.first,
                           .middle = numerics.middle,
                           .second = numerics.second,
                           .weight = numerics.weight,
                           .is_sum_rounded = numerics.rounds_sum ? 1U : 0U,
                           .activations_in_bf16 = numerics.activations_in_bf16 ? 1U : 0U,
                           .quantization = quantization_of(problem.quantizes),
                           .input_scales_each = problem.input_scales.size() > 1 ? 1U : 0U,
                           .hidden_scales_each = problem.hidden_scales.size() > 1 ? 1U : 0U};
  if (problem.quantizes == ActivationKey::fp8_token)
    if (const auto fine = check_row_fits(middle_blocks, 0, activate_shared); !fine)
      return fine.why();
  result.w13.m_blocks = middle_blocks * (shape.gated() ? 2 : 1);
  result.w13.k_blocks = hidden_blocks;
  result.w2.m_blocks = hidden_blocks;
  result.w2.k_blocks = middle_blocks;
  for (sm90::WeightMatrix* matrix : {&result.w13, &result.w2})
    matrix->expert_bytes =
        std::uint64_t{matrix->m_blocks} * matrix->k_blocks * sm90::weight_tile_bytes(is_nvfp4);
  return result;
}

sm90::LayerParams as_swiglu(sm90::LayerParams layer) {
  if (!is_fused_act(layer.act) || layer.middle == sm90::MiddleRounding::gate_and_result)
    return layer;
  if (layer.act == sm90::Activation::silu) {
    layer.alpha = 1;
    layer.beta = 0;
  }
  layer.act = sm90::Activation::swigluoai;
  return layer;
}

bool has_fp8_kernels(const sm90::LayerParams& layer, Family family) {
  return family == Family::sm90 && has_wide_fp8_blocks(layer) && layer.is_nvfp4 == 0 &&
         is_epilogue_activation(layer) && layer.activations_in_bf16 == 0;
}
bool computes_in_fp8(const sm90::LayerParams& layer, Family family) {
  return has_fp8_kernels(layer, family) && layer.w13.row_scales != nullptr &&
         layer.w2.row_scales != nullptr;
}

CallPlan plan_call(const sm90::LayerParams& layer, const CallSize& size, Family family,
                   DeviceLayerOptions options) {
  if (size.assignments() == 0 || layer.experts == 0) return {};
  CallPlan result{.path = Path::rows,
                  .tile_tokens = tile_tokens(layer, size.assignments(), family)};
  result.has_fused_activation = has_fused_activation(layer, family) && !size.has_adapters;
  result.has_bf16_rows = !needs_raw(layer) && !size.has_adapters &&
                         !(size.in_float32 && fits_l2(layer, size.assignments()));
  result.prescale = sm90::activation_prescale(result.tile_tokens, layer.is_nvfp4 != 0);
  if (family == Family::sm80) return result;
  const bool may_decode = options.allow_decode && size.form == OutputForm::summed &&
                          !size.has_adapters && size.tokens <= sm90::kMaxDecodeTokens &&
                          size.top_k <= sm90::kMaxTopK && shares_tokens(layer) &&
                          layer.intermediate != 0;
  if (may_decode) {
    result.decode = sm90::decode_shape(layer, static_cast<std::uint32_t>(size.tokens));
    if (result.decode.tile_tokens != 0) result.path = Path::decode;
  }
  result.is_fp8 = options.allow_fp8 && result.path == Path::rows &&
                  computes_in_fp8(layer, family) && !size.has_adapters && !size.is_quantized &&
                  size.assignments() >= layer.experts * min_fp8_mean(layer);
  if (result.is_fp8) {
    result.tile_tokens = fp8_tile_tokens(layer, size.assignments());
    result.has_fused_activation = true;
    result.prescale = 1;
    return result;
  }
  result.is_block_sorted =
      result.has_fused_activation && !size.is_batched &&
      sm90::can_block_sort(size.assignments(), layer.experts, result.tile_tokens);
  return result;
}

std::uint32_t initial_tiles(const sm90::LayerParams& layer, std::uint32_t tile,
                            std::uint32_t blocks) {
  const auto work_tiles =
      std::max<std::uint64_t>(ceil_div(layer.w13.m_blocks, sm90::math_warpgroups(tile)), 1);
  return static_cast<std::uint32_t>(ceil_div(std::uint64_t{2} * blocks, work_tiles) + 1);
}

std::uint32_t tile_tokens(const sm90::LayerParams& layer, std::uint64_t assignments,
                          Family family) {
  if (family == Family::sm80) {
    for (const Sm80TileRow& row : kSm80TileRows)
      if (assignments <= layer.experts * row.mean) return row.tokens;
    return kMaxSm80Tile;
  }
  for (const TileRow& row : kTileRows)
    if (assignments <= layer.experts * (layer.w2.k_blocks >= kLongRow ? row.mean : row.short_mean))
      return row.tokens;
  return sm90::kMaxTileTokens;
}
std::uint64_t max_tiles(std::uint64_t assignments, std::uint64_t experts) {
  return sm90::max_tiles(static_cast<std::uint32_t>(assignments),
                         static_cast<std::uint32_t>(experts));
}
std::uint64_t max_rows(std::uint64_t assignments, std::uint64_t experts) {
  return sm90::max_rows(static_cast<std::uint32_t>(assignments),
                        static_cast<std::uint32_t>(experts));
}

std::uint64_t WorkspaceLimits::assignments(std::uint64_t experts) const {
  return std::max(tokens * top_k, experts * capacity);
}

WorkspaceKey workspace_key(const sm90::LayerParams& layer, Family family) {
  return {.experts = layer.experts,
          .hidden = layer.hidden,
          .w13_m_blocks = layer.w13.m_blocks,
          .w13_k_blocks = layer.w13.k_blocks,
          .w2_m_blocks = layer.w2.m_blocks,
          .w2_k_blocks = layer.w2.k_blocks,
          .has_fused_activation = has_fused_activation(layer, family),
          .needs_raw = needs_raw(layer),
          .has_fp8_kernels = has_fp8_kernels(layer, family)};
}

DeviceLimits limits_of(const kernels::cuda::Device& device) {
  return {.blocks = static_cast<std::uint32_t>(device.facts().multiprocessors),
          .family = device.family(),
          .activate_shared = activate_max_shared(device.facts().shared_bytes)};
}

Result<WorkspacePlan> plan_workspace(const sm90::LayerParams& layer, const WorkspaceLimits& limits,
                                     const DeviceLimits& device) {
  const WorkspaceKey key = workspace_key(layer, device.family);
  const std::uint32_t blocks = device.blocks;
  const bool is_sm90 = device.family == Family::sm90;
  const auto standard = checked_multiply(limits.tokens, limits.top_k);
  const auto batched = checked_multiply(key.experts, limits.capacity);
  if (!standard || !batched || *standard > kMaxRankedAssignments || *batched > kMaxAssignments)
    return usage("cuda.limits", "too many tokens")
        .expects(fmt::format("at most {} choices of tokens, {} rows of experts in batches",
                             kMaxRankedAssignments, kMaxAssignments),
                 fmt::format("{} tokens of {} choices, {} experts of {} rows", limits.tokens,
                             limits.top_k, key.experts, limits.capacity))
        .try_this("compute the tokens in several calls");
  const std::uint64_t assignments = limits.assignments(key.experts),
                      rows = max_rows(assignments, key.experts);
  const bool has_rank = limits.max_rank != 0;
  if (has_rank)
    if (const auto fine = check_row_fits(key.w2_k_blocks, limits.max_rank, device.activate_shared);
        !fine)
      return fine.why();
  // Float32 rows of GEMM2: of all assignments, or of as many as fit into L2.
  const std::uint64_t raw_assignments =
      key.needs_raw || has_rank
          ? assignments
          : std::min(assignments, kRawBytes / (std::uint64_t{key.hidden} * sizeof(float)));
  WorkspacePlan result;
  const auto set = [&](Region region, std::uint64_t bytes) {
    result.bytes[static_cast<std::size_t>(region)] = bytes;
  };
  set(Region::weights, assignments * sizeof(float));
  set(Region::tiles, max_tiles(assignments, key.experts) * sizeof(sm90::TokenTile));
  set(Region::tile_count, 4 * sizeof(std::uint32_t));
  set(Region::tile_progress, max_tiles(assignments, key.experts) * sizeof(std::uint32_t));
  set(Region::combine_signals, sm90::kCombineSignals * sizeof(std::uint32_t));
  set(Region::rank_of_assignment, round_up(assignments, 4) * sizeof(std::int32_t));
  set(Region::expert_counts,
      std::uint64_t{key.experts} * sm90::kCounterStride * sizeof(std::uint32_t));
  set(Region::row_of_assignment, assignments * sizeof(std::int32_t));
  set(Region::assignment_of_row, rows * sizeof(std::int32_t));
  set(Region::expert_of_row, rows * sizeof(std::int32_t));
  set(Region::tile_of_row_group, rows / 8 * sizeof(std::int32_t));
  if (key.has_fused_activation && is_sm90) {
    const auto sorted = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(assignments, sm90::kMaxBlockSortAssignments));
    set(Region::block_sort, blocks * sm90::BlockSortStorage::global_bytes(sorted, key.experts));
  }
  set(Region::x, row_bytes(rows, key.w13_k_blocks, 2));
  set(Region::y, std::max(row_bytes(rows, key.w2_m_blocks, 2),
                          row_bytes(max_rows(raw_assignments, key.experts), key.w2_m_blocks, 4)));
  set(Region::h, row_bytes(rows, key.w2_k_blocks, 2));
  if (key.has_fp8_kernels) {
    const auto fp8_bytes = [&](std::uint32_t k_blocks) {
      return rows * sm90::grouped_gemm_fp8::token_blocks(k_blocks) *
             sm90::grouped_gemm_fp8::token_row_bytes(true);
    };
    set(Region::x, std::max(row_bytes(rows, key.w13_k_blocks, 2), fp8_bytes(key.w13_k_blocks)));
    set(Region::h_fp8, fp8_bytes(key.w2_k_blocks));
    set(Region::token_scales, 2 * rows * sizeof(float));
  }
  if (!key.has_fused_activation || has_rank) set(Region::raw, row_bytes(rows, key.w13_m_blocks, 4));
  if (has_rank) set(Region::low, rows * limits.max_rank * sizeof(float));
  const auto few = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      limits.tokens * limits.top_k, std::uint64_t{sm90::kMaxDecodeTokens} * limits.top_k));
  if (few != 0 && is_sm90) {
    set(Region::partial_sums, std::uint64_t{blocks} * 4 * sm90::kBlockM * sm90::kDecodeTileTokens *
                                  sizeof(std::uint64_t));
    set(Region::hidden, row_bytes(few, key.w2_k_blocks, sizeof(std::uint64_t)));
    set(Region::gemm2_sums, row_bytes(few, key.w2_m_blocks, sizeof(std::uint64_t)));
    set(Region::counters, sm90::kDecodeCounters * sizeof(std::uint32_t));
  }
  for (std::size_t i = 0; i < kRegions; ++i) {
    result.at[i] = result.total;
    result.total += round_up(result.bytes[i], kMemoryAlignment);
  }
  return result;
}

}  // namespace fp4moe::moe::cuda
