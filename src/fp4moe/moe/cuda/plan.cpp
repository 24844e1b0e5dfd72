#include "fp4moe/moe/cuda/plan.hpp"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/kernels/cuda/sm90/launches.hpp"

namespace fp4moe::moe::cuda {
namespace {

constexpr std::uint64_t kMostSize = 1 << 20;                  // of hidden and intermediate
constexpr std::uint64_t kMostSlots = std::uint64_t{1} << 28;  // of batches
constexpr std::uint64_t kMostRanked = std::uint64_t{1} << sm90::kRankBits;  // of tokens' choices
// Rows are counted in 32 bits.
static_assert(kMostSlots + std::uint64_t{8} * sm90::kMostExperts <= 0xFFFFFFFF);
constexpr std::uint64_t kRawBytes = std::uint64_t{16} << 20;  // of float32 rows that stay near

// Tokens of a tile, for so many slots of an expert on average or fewer: of experts whose second
// matrix has at least so many units in a row, and of others.
constexpr std::uint32_t kLongRow = 32;
struct TileRow {
  std::uint64_t mean, short_mean;
  std::uint32_t tokens;
};
constexpr TileRow kTileRows[] = {{16, 14, sm90::kTileBounds[0]},
                                 {50, 50, sm90::kTileBounds[1]},
                                 {70, 70, sm90::kTileBounds[2]},
                                 {100, 100, sm90::kTileBounds[3]}};

static_assert(sm90::own_tiles(3 * kTileRows[0].tokens, 0) == 3);

static_assert(static_cast<int>(sm90::Act::gelu_tanh_no_mul) ==
              static_cast<int>(Activation::gelu_tanh_no_mul));
static_assert(static_cast<int>(sm90::Act::situ) == static_cast<int>(Activation::situ));
static_assert(static_cast<int>(sm90::Quantise::fp8_token) ==
              static_cast<int>(ActivationKey::fp8_token));
static_assert(static_cast<int>(sm90::Quantise::nvfp4) == static_cast<int>(ActivationKey::nvfp4));
static_assert(static_cast<int>(sm90::First::steps) == static_cast<int>(FirstRounding::steps));
static_assert(static_cast<int>(sm90::Middle::gate_and_result) ==
              static_cast<int>(MiddleRounding::gate_and_result));
static_assert(static_cast<int>(sm90::Second::steps) == static_cast<int>(SecondRounding::steps));
static_assert(static_cast<int>(sm90::WeightKind::bf16_with_global) ==
              static_cast<int>(WeightRounding::bf16_with_global));

// Words of kernels are those of the library, in its order.
template <class Word, class Ours>
Word word(Ours value) {
  return static_cast<Word>(static_cast<std::uint32_t>(value));
}

Result<Done> check_quantising(ActivationKey key) {
  if (key != ActivationKey::nvfp4_token) return Done{};
  return usage("cuda.limits", "the kernels have no scale of each token for NVFP4 activations")
      .expects("activations in 16 bits or another form", oracle::name(key))
      .try_this("use the CPU engine");
}

Result<Done> check_limits(const weights::MoeShape& shape) {
  if (shape.experts > sm90::kMostExperts)
    return usage("cuda.limits", "more experts than the kernels count")
        .expects(fmt::format("at most {} on a rank", sm90::kMostExperts),
                 fmt::format("{}", shape.experts))
        .try_this("split the experts among ranks, or use the CPU engine");
  if (shape.hidden > kMostSize || shape.intermediate > kMostSize)
    return usage("cuda.limits", "sizes that the kernels do not take")
        .expects(fmt::format("at most {}", kMostSize),
                 fmt::format("hidden {}, intermediate {}", shape.hidden, shape.intermediate))
        .try_this("use the CPU engine");
  return Done{};
}

// Adapters and scales of whole rows keep a row of h near.
Result<Done> check_kept_rows(std::uint64_t units, std::uint64_t rank) {
  const std::uint64_t bytes = (units * sm90::kUnit + 2 * rank) * sizeof(float);
  if (bytes <= kActivateMostShared) return Done{};
  return usage("cuda.limits", "a row of the activation's output does not fit into shared memory")
      .expects(fmt::format("at most {} bytes", kActivateMostShared), fmt::format("{}", bytes))
      .try_this("split the layer among ranks, or use the CPU engine");
}

bool is_fused_act(sm90::Act act) {
  return act == sm90::Act::swigluoai || act == sm90::Act::swigluoai_uninterleave ||
         act == sm90::Act::silu;
}

// The first product's epilogue knows three activations, rounds only their result, and quantises it
// by the 32 columns that it has at once. It has one factor for all inputs.
bool fuses(const sm90::Layer& layer) {
  const bool is_near =
      layer.quantise != sm90::Quantise::fp8_block128 && layer.quantise != sm90::Quantise::fp8_token;
  return layer.is_gated != 0 && is_fused_act(layer.act) && layer.first == sm90::First::none &&
         layer.middle != sm90::Middle::gate_and_result && is_near && layer.input_scales_each == 0;
}

// Rows of the second product that must not be rounded before they are weighed, or whose factors
// differ from expert to expert.
bool needs_raw(const sm90::Layer& layer) {
  return layer.second == sm90::Second::weighted || layer.second == sm90::Second::steps ||
         layer.weight == sm90::WeightKind::bf16_with_global || layer.hidden_scales_each != 0;
}

bool is_near(const sm90::Layer& layer, std::uint64_t slots) {
  return slots * layer.hidden * sizeof(float) <= kRawBytes;
}

std::uint64_t unit_bytes(std::uint64_t rows, std::uint64_t units, std::uint64_t element) {
  return rows * units * sm90::kUnit * element;
}

// Whether all experts read the same tokens, block by block: no scale of their own, none of a row.
bool stages_once(const sm90::Layer& layer) {
  return layer.quantise == sm90::Quantise::none ||
         (layer.input_scales_each == 0 && layer.quantise != sm90::Quantise::fp8_token);
}

}  // namespace

Result<sm90::Layer> describe(const ExpertsProblem& problem) {
  if (const auto fine = check(problem); !fine) return fine.why();
  const weights::MoeShape& shape = problem.shape;
  if (const auto fine = check_limits(shape); !fine) return fine.why();
  if (const auto fine = check_quantising(problem.quantises); !fine) return fine.why();
  const Numerics& numerics = problem.numerics;
  const bool is_nvfp4 = shape.format == weights::WeightFormat::nvfp4;
  if (numerics.weights_in_bf16 && is_nvfp4)
    return error(ErrorCode::lacking, "cuda.numerics", "the kernels do not round weights")
        .expects("numerics whose weights stay exact", numerics.id)
        .try_this("use the reference engine");
  const auto hidden_units = static_cast<std::uint32_t>(ceil_div(shape.hidden, sm90::kUnit));
  // A rank whose share is empty has one unit of zeros: kernels need not know of it.
  const auto middle_units = static_cast<std::uint32_t>(
      ceil_div(std::max<std::uint64_t>(shape.intermediate, 1), sm90::kUnit));
  sm90::Layer made{.experts = static_cast<std::uint32_t>(shape.experts),
                   .hidden = static_cast<std::uint32_t>(shape.hidden),
                   .intermediate = static_cast<std::uint32_t>(shape.intermediate),
                   .is_gated = shape.gated() ? 1U : 0U,
                   .is_nvfp4 = is_nvfp4 ? 1U : 0U,
                   .act = word<sm90::Act>(problem.activation),
                   .alpha = static_cast<float>(problem.params.alpha),
                   .beta = static_cast<float>(problem.params.beta),
                   .limit = static_cast<float>(problem.params.limit),
                   .situ_beta = static_cast<float>(problem.params.situ_beta),
                   .situ_linear_beta = static_cast<float>(problem.params.situ_linear_beta),
                   .first = word<sm90::First>(numerics.first),
                   .middle = word<sm90::Middle>(numerics.middle),
                   .second = word<sm90::Second>(numerics.second),
                   .weight = word<sm90::WeightKind>(numerics.weight),
                   .rounds_sum = numerics.rounds_sum ? 1U : 0U,
                   .activations_in_bf16 = numerics.activations_in_bf16 ? 1U : 0U,
                   .quantise = word<sm90::Quantise>(problem.quantises),
                   .input_scales_each = problem.input_scales.size() > 1 ? 1U : 0U,
                   .hidden_scales_each = problem.hidden_scales.size() > 1 ? 1U : 0U};
  if (problem.quantises == ActivationKey::fp8_token)
    if (const auto fine = check_kept_rows(middle_units, 0); !fine) return fine.why();
  made.w13.groups = middle_units * (shape.gated() ? 2 : 1);
  made.w13.units = hidden_units;
  made.w2.groups = hidden_units;
  made.w2.units = middle_units;
  for (sm90::Matrix* matrix : {&made.w13, &made.w2})
    matrix->expert_bytes =
        std::uint64_t{matrix->groups} * matrix->units * sm90::record_bytes(is_nvfp4);
  return made;
}

sm90::Layer as_swiglu(sm90::Layer layer) {
  if (!is_fused_act(layer.act) || layer.middle == sm90::Middle::gate_and_result) return layer;
  if (layer.act == sm90::Act::silu) {
    layer.alpha = 1;
    layer.beta = 0;
  }
  layer.act = sm90::Act::swigluoai;
  return layer;
}

CallPlan plan_call(const sm90::Layer& layer, const CallSize& size) {
  if (size.slots() == 0 || layer.experts == 0) return {};
  CallPlan made{.path = Path::rows, .tile_tokens = tile_tokens(layer, size.slots())};
  const bool may_decode = size.form == OutputForm::summed && !size.has_adapters &&
                          size.tokens <= sm90::kDecodeTokens && size.top_k <= sm90::kMostChoices &&
                          stages_once(layer) && layer.intermediate != 0;
  if (may_decode) {
    made.decode = sm90::decode_shape(layer, static_cast<std::uint32_t>(size.tokens));
    if (made.decode.tile_rows != 0) made.path = Path::decode;
  }
  made.fuses = fuses(layer) && !size.has_adapters;
  made.rounds =
      !needs_raw(layer) && !size.has_adapters && !(size.in_float32 && is_near(layer, size.slots()));
  made.sorts = made.fuses && !size.is_batched &&
               sm90::may_sort_own(size.slots(), layer.experts, made.tile_tokens);
  return made;
}

std::uint32_t first_tiles(const sm90::Layer& layer, std::uint32_t tile, std::uint32_t blocks) {
  const auto pieces = std::max<std::uint64_t>(ceil_div(layer.w13.groups, sm90::consumers(tile)), 1);
  return static_cast<std::uint32_t>(ceil_div(std::uint64_t{2} * blocks, pieces) + 1);
}

std::uint32_t tile_tokens(const sm90::Layer& layer, std::uint64_t slots) {
  for (const TileRow& row : kTileRows)
    if (slots <= layer.experts * (layer.w2.units >= kLongRow ? row.mean : row.short_mean))
      return row.tokens;
  return sm90::kTileTokens;
}
std::uint64_t most_tiles(std::uint64_t slots, std::uint64_t experts) {
  return sm90::own_tiles(static_cast<std::uint32_t>(slots), static_cast<std::uint32_t>(experts));
}
std::uint64_t most_rows(std::uint64_t slots, std::uint64_t experts) {
  return sm90::own_rows(static_cast<std::uint32_t>(slots), static_cast<std::uint32_t>(experts));
}

std::uint64_t WorkspaceLimits::slots(std::uint64_t experts) const {
  return std::max(tokens * top_k, experts * capacity);
}

WorkspaceKey workspace_key(const sm90::Layer& layer) {
  return {.experts = layer.experts,
          .hidden = layer.hidden,
          .hidden_units = layer.w13.units,
          .hidden_groups = layer.w2.groups,
          .middle_units = layer.w2.units,
          .middle_groups = layer.w13.groups,
          .fuses = fuses(layer),
          .needs_raw = needs_raw(layer)};
}

Result<WorkspacePlan> plan_workspace(const sm90::Layer& layer, const WorkspaceLimits& limits,
                                     std::uint32_t blocks) {
  const WorkspaceKey key = workspace_key(layer);
  const auto standard = checked_multiply(limits.tokens, limits.top_k);
  const auto batched = checked_multiply(key.experts, limits.capacity);
  if (!standard || !batched || *standard > kMostRanked || *batched > kMostSlots)
    return usage("cuda.limits", "more rows at once than the kernels count")
        .expects(fmt::format("at most {} choices of tokens, {} rows of experts in batches",
                             kMostRanked, kMostSlots),
                 fmt::format("{} tokens of {} choices, {} experts of {} rows", limits.tokens,
                             limits.top_k, key.experts, limits.capacity))
        .try_this("compute the tokens in several calls");
  const std::uint64_t slots = limits.slots(key.experts), rows = most_rows(slots, key.experts);
  const bool has_rank = limits.most_rank != 0;
  if (has_rank)
    if (const auto fine = check_kept_rows(key.middle_units, limits.most_rank); !fine)
      return fine.why();
  // Float32 rows of the second product: of all slots, or of as many as stay near.
  const std::uint64_t raw_slots =
      key.needs_raw || has_rank
          ? slots
          : std::min(slots, kRawBytes / (std::uint64_t{key.hidden} * sizeof(float)));
  WorkspacePlan made;
  const auto set = [&](Region region, std::uint64_t bytes) {
    made.bytes[static_cast<std::size_t>(region)] = bytes;
  };
  set(Region::weights, slots * sizeof(float));
  set(Region::tiles, most_tiles(slots, key.experts) * sizeof(sm90::Tile));
  set(Region::tile_count, 4 * sizeof(std::uint32_t));
  set(Region::done, most_tiles(slots, key.experts) * sizeof(std::uint32_t));
  set(Region::finished, sm90::kFinished * sizeof(std::uint32_t));
  set(Region::rank_of_slot, round_up(slots, 4) * sizeof(std::int32_t));
  set(Region::totals, std::uint64_t{key.experts} * sm90::kApart * sizeof(std::uint32_t));
  set(Region::row_of_slot, slots * sizeof(std::int32_t));
  set(Region::slot_of_row, rows * sizeof(std::int32_t));
  set(Region::expert_of_row, rows * sizeof(std::int32_t));
  set(Region::tile_of_row, rows / 8 * sizeof(std::int32_t));
  if (key.fuses) {
    const auto own = static_cast<std::uint32_t>(std::min<std::uint64_t>(slots, sm90::kOwnSlots));
    set(Region::own, blocks * sm90::own_bytes(own, key.experts));
  }
  set(Region::x, unit_bytes(rows, key.hidden_units, 2));
  set(Region::y, std::max(unit_bytes(rows, key.hidden_groups, 2),
                          unit_bytes(most_rows(raw_slots, key.experts), key.hidden_groups, 4)));
  set(Region::h, unit_bytes(rows, key.middle_units, 2));
  if (!key.fuses || has_rank) set(Region::raw, unit_bytes(rows, key.middle_groups, 4));
  if (has_rank) set(Region::low, rows * limits.most_rank * sizeof(float));
  const auto few = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      limits.tokens * limits.top_k, std::uint64_t{sm90::kDecodeTokens} * limits.top_k));
  if (few != 0) {
    set(Region::partial,
        std::uint64_t{blocks} * 4 * sm90::kUnit * sm90::kDecodeColumns * sizeof(std::uint64_t));
    set(Region::hidden, unit_bytes(few, key.middle_units, sizeof(std::uint64_t)));
    set(Region::sums, unit_bytes(few, key.hidden_groups, sizeof(std::uint64_t)));
    set(Region::counters, sm90::kDecodeCounters * sizeof(std::uint32_t));
  }
  for (std::size_t i = 0; i < kRegions; ++i) {
    made.at[i] = made.total;
    made.total += round_up(made.bytes[i], kMemoryAlignment);
  }
  return made;
}

}  // namespace fp4moe::moe::cuda
