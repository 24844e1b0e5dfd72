// Block shape and shared memory of the grouped GEMM: what the host must know to launch it.
//
// Kernels fp4moe_sm80_grouped_gemm_n{32,64,128}_{mxfp4,nvfp4} take token tiles of at most so many
// tokens. A block has four warps. Each multiplies 16 rows of weights (n32, n64) or 32 (n128) by all
// tokens of a tile.
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>

#include "fp4moe/kernels/cuda/sm90/routing_tables.hpp"
#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm80 {

inline constexpr std::uint32_t kTileSizes[] = {32, 64, 128};
inline constexpr std::uint32_t kGemmWarps = 4, kGemmThreads = kGemmWarps * 32;
inline constexpr std::uint32_t kMaxStages = 4;

// Tiles of at most so many tokens wait for memory: their weights go straight to registers.
inline constexpr std::uint32_t kMaxFewTokens = 64;
// Blocks of 16 rows, the M of mma.sync, that a warp multiplies.
constexpr std::uint32_t warp_fragments(std::uint32_t tile_tokens) {
  return tile_tokens <= kMaxFewTokens ? 1 : 2;
}
// M blocks of 64 rows that a block multiplies.
constexpr std::uint32_t block_m_blocks(std::uint32_t tile_tokens) {
  return kGemmWarps * warp_fragments(tile_tokens) * 16 / sm90::kBlockM;
}
// K blocks of a pipeline stage.
constexpr std::uint32_t stage_k_blocks(std::uint32_t tile_tokens) {
  return tile_tokens <= 32 ? 4 : tile_tokens <= kMaxFewTokens ? 2 : 1;
}

// Shared memory of a block, the only place with its offsets. Every stage has, for each of its K
// blocks:
//
//   tokens   tile_tokens x 128 bytes, swizzled as in global memory; read by all warps
//   codes    16 bytes for each lane and fragment; written and read by that lane alone
//   scales   of the two rows of a lane, for each lane and fragment; also its own
//
// With few tokens there are no codes and no scales, and the K blocks of a stage have as many tokens as
// the tile.
struct SharedStorage {
  std::uint32_t tile_tokens = 0;
  bool is_nvfp4 = false;

  static constexpr std::uint32_t kLaneCodeBytes = 16, kAlignment = 128;

  constexpr std::uint32_t lane_scale_bytes() const { return is_nvfp4 ? 8 : 4; }
  constexpr std::uint32_t fragments() const {
    return tile_tokens <= kMaxFewTokens ? 0 : kGemmWarps * warp_fragments(tile_tokens);
  }
  constexpr std::uint32_t token_bytes() const { return tile_tokens * sm90::kBlockRowBytes; }
  constexpr std::uint32_t code_bytes() const { return fragments() * 32 * kLaneCodeBytes; }
  constexpr std::uint32_t k_block_bytes() const {
    return token_bytes() + code_bytes() + fragments() * 32 * lane_scale_bytes();
  }
  // Offsets from the K block. `fragment`: of the block.
  constexpr std::uint32_t codes(std::uint32_t fragment, std::uint32_t lane) const {
    return token_bytes() + (fragment * 32 + lane) * kLaneCodeBytes;
  }
  constexpr std::uint32_t scales(std::uint32_t fragment, std::uint32_t lane) const {
    return token_bytes() + code_bytes() + (fragment * 32 + lane) * lane_scale_bytes();
  }
  constexpr std::uint32_t stage_bytes() const {
    return stage_k_blocks(tile_tokens) * k_block_bytes();
  }
  constexpr std::uint32_t bytes(std::uint32_t stages) const { return stages * stage_bytes(); }
};

struct GroupedGemmShape {
  std::uint32_t stages = 0, shared_bytes = 0, blocks_per_sm = 0;
};

// Shared memory that the system takes of every block. An SM has that much more than a block may have.
inline constexpr std::uint32_t kSystemSharedBytes = 1024;

// Stages of the kernel for few tokens; others take two or more.
inline constexpr std::uint32_t kFewTokensStages = 3;

// The number of blocks on an SM: as many as the registers allow, if each still has enough stages.
// `max_shared`: of a block of this device. No stages: it has too little.
constexpr GroupedGemmShape grouped_gemm_shape(std::uint32_t tile_tokens, bool is_nvfp4,
                                              std::uint64_t max_shared) {
  const SharedStorage storage{tile_tokens, is_nvfp4};
  const bool is_few = tile_tokens <= kMaxFewTokens;
  const std::uint32_t max_blocks = tile_tokens <= 32 ? 4 : is_few ? 3 : 2;
  const std::uint32_t min_stages = is_few ? kFewTokensStages : 2;
  const std::uint32_t max_stages = is_few ? kFewTokensStages : kMaxStages;
  for (std::uint32_t blocks = max_blocks; blocks >= 1; --blocks) {
    const std::uint64_t each = (max_shared + kSystemSharedBytes) / blocks;
    if (each <= kSystemSharedBytes) continue;
    const auto stages = static_cast<std::uint32_t>(
        std::min<std::uint64_t>((each - kSystemSharedBytes) / storage.stage_bytes(), max_stages));
    if (stages >= min_stages) return {stages, storage.bytes(stages), blocks};
  }
  return {};
}
// Every kernel needs at least this much.
constexpr std::uint64_t min_shared_bytes() {
  return std::max(SharedStorage{kTileSizes[std::size(kTileSizes) - 1], true}.bytes(2),
                  SharedStorage{kMaxFewTokens}.bytes(kFewTokensStages));
}
// A block may have 48 KiB on any GPU, 99 KiB or more since 8.0: 163 on an A100, 227 on an H100.
static_assert(min_shared_bytes() <= 48 * 1024);
static_assert(grouped_gemm_shape(128, false, 99 * 1024).blocks_per_sm == 2 &&
              grouped_gemm_shape(128, true, 163 * 1024).stages == 3 &&
              grouped_gemm_shape(32, false, 227 * 1024).blocks_per_sm == 4);

// Blocks of a launch: one for every work tile that there may be.
constexpr std::uint32_t grouped_gemm_blocks(std::uint64_t assignments, std::uint32_t experts,
                                            std::uint32_t m_blocks, std::uint32_t tile_tokens) {
  const std::uint64_t tiles =
      assignments / tile_tokens + std::min<std::uint64_t>(assignments, experts);
  return sm90::clamp_blocks(tiles * sm90::ceil_div_u64(m_blocks, block_m_blocks(tile_tokens)),
                            0x7FFFFFFF);
}

}  // namespace fp4moe::kernels::cuda::sm80
