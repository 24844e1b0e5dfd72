// How much of a multiprocessor each kernel takes: what the host must know to launch it.
#pragma once
#include <algorithm>
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/params.hpp"

namespace fp4moe::kernels::cuda::sm90 {

inline constexpr std::uint32_t kSharedBytes = 227 * 1024;  // of a block, at most
inline constexpr std::uint32_t kTables = 1024;             // barriers and the like, in front

constexpr std::uint32_t record_bytes(bool is_nvfp4) { return is_nvfp4 ? 2304 : 2176; }

// Products: kernels fp4moe_sm90_product{32,64,88,128,192}_{mxfp4,nvfp4} take tiles of at most so
// many tokens. Warpgroups multiply 64 rows each, the first warp of one more feeds them. A stage
// holds some units of the rows of all warpgroups and of a tile's tokens.
inline constexpr std::uint32_t kTileBounds[] = {32, 64, 88, 128, kTileTokens};
inline constexpr std::uint32_t kMostFetched = 88;  // of a tile whose tokens are still in their rows

struct ProductShape {
  std::uint32_t threads = 0, stages = 0, shared_bytes = 0;
};
inline constexpr std::uint32_t kConsumers = 4;  // warpgroups that multiply, as a rule
// Sums of large tiles take the registers of one of them.
constexpr std::uint32_t consumers(std::uint32_t tile_tokens) {
  return tile_tokens <= 128 ? kConsumers : kConsumers - 1;
}
inline constexpr std::uint32_t kProductThreads = (kConsumers + 1) * 128;  // where products sort
// A stage takes some twenty instructions to take and give back: the more units, the better.
constexpr std::uint32_t stage_units(std::uint32_t tile_tokens) {
  return tile_tokens <= 64 ? 4 : tile_tokens <= 88 ? 3 : 2;
}
// Weights, then tokens, which are swizzled and want a multiple of 1024.
constexpr std::uint32_t product_weight_bytes(std::uint32_t tile_tokens, bool is_nvfp4) {
  const std::uint32_t records = stage_units(tile_tokens) * consumers(tile_tokens);
  return (records * record_bytes(is_nvfp4) + 1023) / 1024 * 1024;
}
constexpr std::uint32_t product_stage_bytes(std::uint32_t tile_tokens, bool is_nvfp4) {
  return product_weight_bytes(tile_tokens, is_nvfp4) + stage_units(tile_tokens) * tile_tokens * 128;
}
// Where each warpgroup's sums are laid out on their way to memory, and what they are multiplied by.
inline constexpr std::uint32_t kStagedTokens = 4096, kStaging = kStagedTokens + 512;
// Where tokens pass that a product of large tiles lays into them: units of eight rows, as many as
// there is room for behind the stages.
constexpr std::uint32_t late_units(std::uint32_t tile_tokens, bool is_nvfp4) {
  return tile_tokens <= kMostFetched ? 0 : tile_tokens > 128 ? 16 : is_nvfp4 ? 7 : 10;
}
constexpr ProductShape product_shape(std::uint32_t tile_tokens, bool is_nvfp4) {
  const std::uint32_t stage = product_stage_bytes(tile_tokens, is_nvfp4);
  const std::uint32_t late = late_units(tile_tokens, is_nvfp4) * 1024;
  const std::uint32_t fixed = 2 * kTables + consumers(tile_tokens) * kStaging + late;
  const std::uint32_t stages = std::min((kSharedBytes - fixed) / stage, 8u);
  return {(consumers(tile_tokens) + 1) * 128, stages, fixed + stages * stage};
}

static_assert(product_shape(88, false).stages == 3 && product_shape(88, true).stages == 3 &&
              product_shape(128, false).stages == 4 && product_shape(128, true).stages == 4 &&
              product_shape(192, false).stages == 3 && product_shape(192, true).stages == 3);
// Products of small tiles may sort for themselves, in the ring, behind the first stage.
static_assert(kOwnExperts <= kProductThreads);
constexpr bool has_own_room(std::uint32_t tile_tokens, bool is_nvfp4) {
  const std::uint64_t stages = product_shape(tile_tokens, is_nvfp4).stages;
  return own_space(kOwnSlots, kOwnExperts) <=
         (stages - 1) * product_stage_bytes(tile_tokens, is_nvfp4);
}
static_assert(has_own_room(32, false) && has_own_room(64, false) && has_own_room(88, false) &&
              has_own_room(32, true) && has_own_room(64, true) && has_own_room(88, true));
constexpr bool may_sort_own(std::uint64_t slots, std::uint32_t experts, std::uint32_t tile_tokens) {
  return tile_tokens <= kMostFetched && slots <= kOwnSlots && experts <= kOwnExperts;
}

// What tokens are multiplied by on their way into tiles: kernels for few tokens leave MXFP4 weights
// unscaled, see weights.cuh.
constexpr float product_raise(std::uint32_t tile_tokens, bool is_nvfp4) {
  return tile_tokens <= 32 && !is_nvfp4 ? 0x1p64f : 1.0f;
}

// Decode: tokens of one expert, a ring of weights, the sums of a group of rows twice over. Four
// warpgroups multiply, one warp feeds them, three finish sums. A stage holds two units for each.
inline constexpr std::uint32_t kDecodeThreads = (kConsumers + 1) * 128;
inline constexpr std::uint32_t kDecodeStageUnits = 2 * kConsumers;
inline constexpr std::uint32_t kDecodeTables = 17 * 1024;
inline constexpr std::uint32_t kSumStride =
    68;  // floats from column to column: no two lanes in one bank
inline constexpr std::uint32_t kMostBlocks = 144;  // multiprocessors of any Hopper
struct DecodeShape {
  std::uint32_t tile_rows = 0;  // 0: it does not fit
  std::uint32_t stages = 0;
  std::uint32_t shared_bytes = 0;
};
constexpr DecodeShape decode_shape(const Layer& layer, std::uint32_t tokens) {
  const std::uint32_t rows = tokens <= 8 ? 8 : 16;
  const std::uint32_t inputs = rows * layer.w13.units, hidden = kDecodeColumns * layer.w2.units;
  const std::uint32_t fixed = kDecodeTables + std::max(inputs, hidden) * 128 +
                              2 * kConsumers * kSumStride * kDecodeColumns * 4;
  const std::uint32_t stage = kDecodeStageUnits * record_bytes(layer.is_nvfp4 != 0);
  // Units of all slots' experts, times blocks, are counted in 32 bits.
  constexpr std::uint64_t kMostUnits =
      (std::uint64_t{1} << 32) / (std::uint64_t{kDecodeTokens} * kMostChoices);
  const std::uint64_t units = std::max(std::uint64_t{layer.w13.groups} * layer.w13.units,
                                       std::uint64_t{layer.w2.groups} * layer.w2.units);
  if (units * kMostBlocks > kMostUnits) return {};
  if (tokens > kDecodeTokens || fixed + 3 * stage > kSharedBytes) return {};
  const std::uint32_t stages = std::min<std::uint32_t>(8, (kSharedBytes - fixed) / stage);
  return {rows, stages, fixed + stages * stage};
}

}  // namespace fp4moe::kernels::cuda::sm90
