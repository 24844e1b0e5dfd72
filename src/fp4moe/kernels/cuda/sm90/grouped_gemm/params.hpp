// Parameters of the grouped GEMM: GEMM1 and GEMM2 of all experts, in one launch or in two.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/routing_tables.hpp"
#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90 {

// How h is rounded and quantized between the GEMMs, as in LayerParams.
struct HiddenQuantization {
  Quantization quantization = Quantization::none;
  MiddleRounding middle = MiddleRounding::none;
  std::uint32_t activations_in_bf16 = 0;
  const float* scales = nullptr;
  std::uint32_t scales_each = 0;
};

enum class Epilogue : std::uint32_t {
  swiglu,            // activation (swigluoai, swigluoai_uninterleave, silu), bf16 into token tiles
  swiglu_quantized,  // the same, quantized in blocks of at most 32 columns and dequantized
  raw_f32,           // accumulators, float32 [rows][64 * m_blocks]
  scaled_bf16,       // accumulator * factor + bias, bf16 [rows][64 * m_blocks]
};

// A weight matrix times the tokens of every tile.
struct Gemm {
  WeightMatrix matrix{};
  const std::uint8_t* tiles = nullptr;  // tokens, of matrix.k_blocks; null: they are in `rows`
  // Tokens in their own order: whole K blocks, 16-byte aligned rows, less than 4 GiB apart.
  ConstDeviceRows rows{};
  Epilogue epilogue = Epilogue::raw_f32;
  void* out = nullptr;
  std::uint32_t out_k_blocks = 0;  // of the token tiles of h
  std::uint32_t is_gated = 0;      // always 1 for the swiglu epilogues
  float alpha = 1, beta = 0, limit = 0;
  HiddenQuantization hidden{};          // of swiglu_quantized
  const float* token_scales = nullptr;  // grouped_gemm_fp8: [rows], multiply the sums; null: all 1
  float prescale = 1;                   // of the tokens, and of the h that is written
  float input_factor = 1;  // divided by prescale; multiplies the accumulator, except raw_f32
};

// Every block sorts the assignments for itself: faster than a gather launch for few assignments.
struct BlockSortParams {
  std::uint32_t assignments = 0;
  std::uint32_t experts = 0;  // local; 0: gather has written the tables
  std::uint32_t tile_tokens = 0;
  std::uint32_t inverse_top_k = 0;  // 2^32 / top_k, rounded up; 0: top_k is 1
  std::uint8_t* tables = nullptr;   // of every block: token tiles, then the token of each row
  std::uint64_t stride = 0;         // bytes from block to block
};
inline constexpr std::uint32_t kBlockSortShare = 128;  // assignments a block writes for combine
// Blocks that write tables for combine.
constexpr std::uint32_t table_writer_blocks(const BlockSortParams& sort, std::uint32_t blocks) {
  if (sort.experts == 0) return 1;
  const std::uint32_t shares = (sort.assignments + kBlockSortShare - 1) / kBlockSortShare;
  return shares < blocks ? shares : blocks;
}
inline constexpr std::uint32_t kMaxBlockSortAssignments = 8192, kMaxBlockSortExperts = 640;

// Shared memory of the sort, the only place with its sizes. Its parts follow each other:
//
//   tiles          [max_tiles] TokenTile
//   token_of_row   [max_rows], 16 bits each
//   partial        partial sums of at most 32 warps
//   experts        tables of experts (ExpertSharedStorage)
//
// Tiles and token_of_row also go to global memory of the block, in the same layout.
struct BlockSortStorage {
  static constexpr std::uint32_t kPartialBytes = 32 * ExpertSharedStorage::kPartialBytes;

  static constexpr std::uint64_t tile_bytes(std::uint32_t assignments, std::uint32_t experts) {
    return std::uint64_t{max_tiles(assignments, experts)} * sizeof(TokenTile);
  }
  static constexpr std::uint64_t row_bytes(std::uint32_t assignments, std::uint32_t experts) {
    return std::uint64_t{max_rows(assignments, experts)} * 2;
  }
  static constexpr std::uint64_t global_bytes(std::uint32_t assignments, std::uint32_t experts) {
    return tile_bytes(assignments, experts) + row_bytes(assignments, experts);
  }
  static constexpr std::uint64_t shared_bytes(std::uint32_t assignments, std::uint32_t experts) {
    return global_bytes(assignments, experts) + kPartialBytes +
           std::uint64_t{ExpertSharedStorage::words(experts)} * 4;
  }
};

// One warp of each block copies tokens from gemms[0].rows into later tiles of gemms[0].tiles.
struct DeferredGatherParams {
  std::uint32_t first_tile = 0xFFFFFFFF;  // gather has filled the tiles before it
  std::uint32_t top_k = 1;                // assignments of a row of x
};

// gemms[0] is GEMM1, gemms[1] GEMM2; one of them may have no M blocks. With both, GEMM2 reads the h
// that GEMM1 writes, tile by tile.
struct GroupedGemmParams {
  Gemm gemms[2]{};
  DeferredGatherParams deferred_gather{};
  RoutingTables tables{};
  BlockSortParams block_sort{};
  std::uint32_t* work_counter =
      nullptr;               // tables.work_counters, + 1 for the second of two launches
  std::uint32_t stages = 0;  // of grouped_gemm_shape
};

}  // namespace fp4moe::kernels::cuda::sm90
