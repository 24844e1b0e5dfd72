// Block shape and shared memory of the grouped GEMM on FP8 tensor cores: what the host must know to
// launch it, and the token tiles that it reads.
//
// Kernels fp4moe_sm90_grouped_gemm_fp8_token_n{64,160} take tokens with one scale each,
// fp4moe_sm90_grouped_gemm_fp8_block_n160 tokens with a scale for every 128 columns.
//
// A token tile in E4M3, block of 128 columns after block (see dequantize_e4m3.cuh for the order of
// columns inside 32):
//
//   [blocks][rows of the tile][128] E4M3, 16-byte chunk c of row r at c ^ r % 8
//           [rows of the tile] float32: block scales, where each block has its own
#pragma once
#include <algorithm>
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/grouped_gemm/shape.hpp"
#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90::grouped_gemm_fp8 {

inline constexpr std::uint32_t kTileSizes[] = {64, 160};
inline constexpr std::uint32_t kMaxTileTokens = kTileSizes[1];

// K blocks of weights in a block of tokens, in a pipeline stage.
inline constexpr std::uint32_t kTokenKBlocks = 2, kStageKBlocks = 2;
constexpr std::uint32_t token_blocks(std::uint32_t k_blocks) {
  return (k_blocks + kTokenKBlocks - 1) / kTokenKBlocks;
}
constexpr std::uint32_t token_row_bytes(bool has_block_scales) {
  return kBlockRowBytes + (has_block_scales ? 4 : 0);
}

// A math warp has two arrays of sums: those of the tensor cores are added to float32 ones. With few
// tokens there are registers for three warpgroups.
constexpr std::uint32_t math_warpgroups(std::uint32_t tile_tokens) {
  return tile_tokens <= 64 ? 3 : 2;
}

// Block scales that a row may span: see dequantize_e4m3.cuh.
inline constexpr std::uint32_t kMaxScaleSpan = 14, kMaxE4m3Exponent = 6;
// The smallest of a row's largest scales: its factor is a normal float32 number.
inline constexpr std::uint32_t kMinRowScale = 140;

// Shared memory of a block, the only place with its offsets. They count from an address that is a
// multiple of 1024:
//
//   header          as in grouped_gemm
//   tables          E4M3 codes for every block scale
//   stage[stages]   weights: two weight tiles for each math warpgroup
//                   tokens:  a block of 128 columns, with its scales
//   epilogue[warpgroups]   as in grouped_gemm, then a scale for each token
struct Fp8SharedStorage {
  std::uint32_t tile_tokens = 0;
  bool has_block_scales = false;

  static constexpr std::uint32_t kAlignment = SharedStorage::kAlignment;
  static constexpr std::uint32_t kTableBytes = 4096;
  static constexpr std::uint32_t kTables = SharedStorage::kHeaderBytes;
  static constexpr std::uint32_t kFirstStage = kTables + kTableBytes;
  static constexpr std::uint32_t kEpilogueScales = SharedStorage::kEpilogueBytes;
  static constexpr std::uint32_t kEpilogueBytes = kEpilogueScales + kMaxTileTokens * 4;

  static constexpr std::uint32_t aligned(std::uint32_t address) {
    return SharedStorage::aligned(address);
  }
  constexpr std::uint32_t weight_bytes() const {
    return aligned(kStageKBlocks * math_warpgroups(tile_tokens) * weight_tile_bytes(false));
  }
  constexpr std::uint32_t stage_bytes() const {
    return aligned(weight_bytes() + tile_tokens * token_row_bytes(has_block_scales));
  }
  // Offsets from the first stage.
  constexpr std::uint32_t epilogue(std::uint32_t stages, std::uint32_t warpgroup) const {
    return stages * stage_bytes() + warpgroup * kEpilogueBytes;
  }
  // All of it, and the bytes that alignment may skip.
  constexpr std::uint32_t bytes(std::uint32_t stages) const {
    return kAlignment + kFirstStage + epilogue(stages, math_warpgroups(tile_tokens));
  }
  constexpr std::uint32_t max_stages() const {
    return std::min((kMaxSharedBytes - bytes(0)) / stage_bytes(), 8u);
  }
};

struct Shape {
  std::uint32_t threads = 0, stages = 0, shared_bytes = 0;
};
constexpr Shape shape(std::uint32_t tile_tokens, bool has_block_scales) {
  const Fp8SharedStorage storage{tile_tokens, has_block_scales};
  const std::uint32_t stages = storage.max_stages();
  return {(math_warpgroups(tile_tokens) + 1) * 128, stages, storage.bytes(stages)};
}
static_assert(shape(64, true).stages == 8 && shape(160, true).stages == 7);

}  // namespace fp4moe::kernels::cuda::sm90::grouped_gemm_fp8
