// Block shape and shared memory of the grouped GEMM: what the host must know to launch it.
//
// Kernels fp4moe_sm90_grouped_gemm_n{32,64,88,128,192}_{mxfp4,nvfp4} take token tiles of at most so
// many tokens. Each math warpgroup multiplies one M block (64 rows).
#pragma once
#include <algorithm>
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/grouped_gemm/params.hpp"
#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90 {

inline constexpr std::uint32_t kTileSizes[] = {32, 64, 88, 128, kMaxTileTokens};
// Largest tile whose tokens the kernel can gather itself, from rows that are not in tiles.
inline constexpr std::uint32_t kMaxGatheredTokens = 88;

inline constexpr std::uint32_t kMathWarpgroups = 4;
// The accumulators of the largest tiles take the registers of one warpgroup.
constexpr std::uint32_t math_warpgroups(std::uint32_t tile_tokens) {
  return tile_tokens <= 128 ? kMathWarpgroups : kMathWarpgroups - 1;
}
inline constexpr std::uint32_t kGroupedGemmThreads = (kMathWarpgroups + 1) * 128;
// K blocks of a pipeline stage. Acquire and release of a stage take about twenty instructions.
constexpr std::uint32_t stage_k_blocks(std::uint32_t tile_tokens) {
  return tile_tokens <= 64 ? 4 : tile_tokens <= 88 ? 3 : 2;
}

// Shared memory of a block, the only place with its offsets. They count from an address that is a
// multiple of 1024, as swizzled tokens need it:
//
//   header          barriers, queue of work tiles, scheduler (SharedHeader in storage.cuh)
//   stage[stages]   weights: stage_k_blocks weight tiles for each math warpgroup
//                   tokens:  stage_k_blocks x tile_tokens x 128 bytes, swizzled
//   epilogue[warpgroups]   accumulators on their way to global memory, then 64 biases, 2 factors
//   deferred        ring of the deferred gather
//
// Before they hold operands, the stages behind the first one are the scratch memory of the block's
// sort (BlockSortStorage).
struct SharedStorage {
  std::uint32_t tile_tokens = 0;
  bool is_nvfp4 = false;

  static constexpr std::uint32_t kAlignment = 1024;
  static constexpr std::uint32_t kHeaderBytes = 1024;
  static constexpr std::uint32_t kFirstStage = kHeaderBytes;
  static constexpr std::uint32_t kEpilogueTokenBytes = 4096;
  static constexpr std::uint32_t kEpilogueBias = kEpilogueTokenBytes;
  static constexpr std::uint32_t kEpilogueFactors = kEpilogueBias + kBlockM * 4;
  static constexpr std::uint32_t kEpilogueBytes = kEpilogueTokenBytes + 512;
  static constexpr std::uint32_t kDeferredBlockBytes = kRowGroup * kBlockRowBytes;

  // The first multiple of the alignment from `address` on.
  static constexpr std::uint32_t aligned(std::uint32_t address) {
    return (address + kAlignment - 1) / kAlignment * kAlignment;
  }
  constexpr std::uint32_t weight_bytes() const {
    const std::uint32_t tiles = stage_k_blocks(tile_tokens) * math_warpgroups(tile_tokens);
    return aligned(tiles * weight_tile_bytes(is_nvfp4));
  }
  constexpr std::uint32_t stage_bytes() const {
    return weight_bytes() + stage_k_blocks(tile_tokens) * tile_tokens * kBlockRowBytes;
  }
  // K blocks of 8 rows that the deferred gather has in flight: as many as there is space for.
  constexpr std::uint32_t deferred_k_blocks() const {
    return tile_tokens <= kMaxGatheredTokens ? 0 : tile_tokens > 128 ? 16 : is_nvfp4 ? 7 : 10;
  }
  // Offsets from the first stage.
  constexpr std::uint32_t stage(std::uint32_t index) const { return index * stage_bytes(); }
  constexpr std::uint32_t sort_scratch() const { return stage(1); }
  constexpr std::uint32_t epilogue(std::uint32_t stages, std::uint32_t warpgroup) const {
    return stages * stage_bytes() + warpgroup * kEpilogueBytes;
  }
  constexpr std::uint32_t deferred(std::uint32_t stages) const {
    return epilogue(stages, math_warpgroups(tile_tokens));
  }
  // All of it, and the bytes that alignment may skip.
  constexpr std::uint32_t bytes(std::uint32_t stages) const {
    return kAlignment + kFirstStage + deferred(stages) + deferred_k_blocks() * kDeferredBlockBytes;
  }
  constexpr std::uint32_t max_stages() const {
    return std::min((kMaxSharedBytes - bytes(0)) / stage_bytes(), 8u);
  }
};

struct GroupedGemmShape {
  std::uint32_t threads = 0, stages = 0, shared_bytes = 0;
};
constexpr GroupedGemmShape grouped_gemm_shape(std::uint32_t tile_tokens, bool is_nvfp4) {
  const SharedStorage storage{tile_tokens, is_nvfp4};
  const std::uint32_t stages = storage.max_stages();
  return {(math_warpgroups(tile_tokens) + 1) * 128, stages, storage.bytes(stages)};
}
static_assert(grouped_gemm_shape(88, false).stages == 3 &&
              grouped_gemm_shape(88, true).stages == 3 &&
              grouped_gemm_shape(128, false).stages == 4 &&
              grouped_gemm_shape(128, true).stages == 4 &&
              grouped_gemm_shape(192, false).stages == 3 &&
              grouped_gemm_shape(192, true).stages == 3);

static_assert(kMaxBlockSortExperts <= kGroupedGemmThreads);
constexpr bool fits_block_sort(std::uint32_t tile_tokens, bool is_nvfp4) {
  const SharedStorage storage{tile_tokens, is_nvfp4};
  return BlockSortStorage::shared_bytes(kMaxBlockSortAssignments, kMaxBlockSortExperts) <=
         storage.stage(storage.max_stages()) - storage.sort_scratch();
}
static_assert(fits_block_sort(32, false) && fits_block_sort(64, false) &&
              fits_block_sort(88, false) && fits_block_sort(32, true) &&
              fits_block_sort(64, true) && fits_block_sort(88, true));
constexpr bool can_block_sort(std::uint64_t assignments, std::uint32_t experts,
                              std::uint32_t tile_tokens) {
  return tile_tokens <= kMaxGatheredTokens && assignments <= kMaxBlockSortAssignments &&
         experts <= kMaxBlockSortExperts;
}

// The factor that tokens are multiplied by when they are written into tiles. Kernels for few tokens
// do not scale MXFP4 weights, see dequantize.cuh.
constexpr float activation_prescale(std::uint32_t tile_tokens, bool is_nvfp4) {
  return tile_tokens <= 32 && !is_nvfp4 ? 0x1p64f : 1.0f;
}

}  // namespace fp4moe::kernels::cuda::sm90
