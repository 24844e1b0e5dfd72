// Configuration, roles and shared memory of a block of the grouped GEMM. Byte offsets are those of
// SharedStorage in shape.hpp.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/dequantize.cuh"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm/scheduler.cuh"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm/shape.hpp"

namespace fp4moe::kernels::cuda::sm90::grouped_gemm {

// Named barriers. 0 is __syncthreads.
inline constexpr std::uint32_t kEpilogueBarrier = 1;  // and one for each further warpgroup
inline constexpr std::uint32_t kFirstTokensBarrier = kEpilogueBarrier + kMathWarpgroups;

// The role of a warp. Roles have neighboring warps, in their order.
enum class Role : std::uint32_t {
  math,               // all warps of the math warpgroups
  weight_loader,      // 1 warp
  token_loader,       // 2 warps where tokens may be gathered, else 1
  deferred_gather,    // 1 warp where tokens are not gathered, else none
  completion_signal,  // 1 lane of 1 warp
};
inline constexpr std::uint32_t kRoles = 5;
// The last warp of a role. Config::kRoleWarps: the number of warps of each.
template <class Config>
consteval std::uint32_t last_warp(Role role) {
  std::uint32_t end = 0;
  for (std::uint32_t i = 0; i <= static_cast<std::uint32_t>(role); ++i)
    end += Config::kRoleWarps[i];
  return end - 1;
}

// The kernel for token tiles of at most `tokens` tokens.
template <class WeightFormat, int tokens>
struct Config {
  using Format = WeightFormat;
  static constexpr int kTileTokens = tokens;
  static constexpr std::uint32_t kWeightBytes =  // of a stage
      SharedStorage{tokens, Format::kIsNvfp4}.weight_bytes();
  static constexpr std::uint32_t kStageBytes =
      SharedStorage{tokens, Format::kIsNvfp4}.stage_bytes();
  static constexpr std::uint32_t kSortScratch =
      SharedStorage{tokens, Format::kIsNvfp4}.sort_scratch();
  static constexpr std::uint32_t kStageKBlocks = stage_k_blocks(tokens);
  static constexpr std::uint32_t kTokenKBlocks = 1;  // K blocks of weights in a block of tokens
  static constexpr std::uint32_t kTokenRowBytes = kBlockRowBytes;
  static constexpr std::uint32_t kWarpgroups = math_warpgroups(tokens);
  static constexpr std::uint32_t kMathWarps = kWarpgroups * 4;
  static constexpr bool kGathersTokens = tokens <= kMaxGatheredTokens;
  static constexpr std::uint32_t kTokenLoaders = kGathersTokens ? 2 : 1;
  static constexpr std::uint32_t kRoleWarps[kRoles] = {kMathWarps, 1, kTokenLoaders,
                                                       kGathersTokens ? 0 : 1, 1};
  static constexpr bool kIsPrescaled = activation_prescale(tokens, Format::kIsNvfp4) != 1.0f;

  __device__ static constexpr SharedStorage storage() { return {tokens, Format::kIsNvfp4}; }
};

// Neighboring M blocks of one token tile, at most one for each math warpgroup. No M blocks: there
// is no more work.
struct WorkTile {
  TokenTile tile;
  std::uint32_t first_m_block, m_blocks;
  std::uint32_t gemm, tile_index;
  std::uint32_t is_late;  // of the last wave, see TileScheduler
};

inline constexpr std::uint32_t kMaxStages = 8, kQueueSize = 2;

// In front of the stages.
struct SharedHeader {
  std::uint64_t full[kMaxStages], empty[kMaxStages];              // mbarriers of the stages
  std::uint64_t queue_full[kQueueSize], queue_empty[kQueueSize];  // mbarriers of the queue
  WorkTile queue[kQueueSize];
  TileScheduler scheduler;
  std::uint32_t token_of_row[kMaxGatheredTokens];  // of the current tile
};
static_assert(sizeof(SharedHeader) <= SharedStorage::kHeaderBytes);

// The tables that the kernel reads its work from.
struct TileTables {
  const TokenTile* tiles;
  std::uint32_t count;
  const std::uint16_t* token_of_row;  // where tokens are gathered
};

// Past L1, which may hold what was there before gather.
__device__ inline TokenTile load_tile(const TokenTile* tiles, std::uint32_t index) {
  static_assert(sizeof(TokenTile) == sizeof(uint4));
  const uint4 words = __ldcg(reinterpret_cast<const uint4*>(tiles + index));
  TokenTile result;
  result.expert = static_cast<std::int32_t>(words.x);
  result.first_row = words.y;
  result.rows = words.z;
  result.expert_tiles = words.w;
  return result;
}

// `tile_at(index)` gives a token tile.
template <class TileAt>
__device__ WorkTile make_work_tile(const WorkTileIndex& index, const TileAt& tile_at) {
  if (index.m_blocks == 0) return {};
  return {tile_at(index.tile), index.first_m_block, index.m_blocks,
          index.gemm,          index.tile,          index.is_late};
}

}  // namespace fp4moe::kernels::cuda::sm90::grouped_gemm
