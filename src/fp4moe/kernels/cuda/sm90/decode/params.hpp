// Parameters, block shape and shared memory of the decode kernel: a whole layer for at most
// kMaxDecodeTokens tokens in one cooperative launch, one block per SM. Tokens in standard rows, output
// summed, no LoRA.
#pragma once
#include <algorithm>
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/route/params.hpp"
#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90 {

inline constexpr std::uint32_t kMaxDecodeTokens = 16;
inline constexpr std::uint32_t kDecodeTileTokens = 8;  // of one expert at once: the N of its mma
inline constexpr std::uint32_t kDecodeCounters = 2;

// Blocks exchange float32 values in tagged words: the value in the lower half, the number of the
// launch (epoch) in the upper half. A reader spins until the epoch is its own. All memory is 0
// before the first launch.
struct DecodeParams {
  CallParams call{};
  LayerParams layer{};
  RouteParams route{};                    // columns 0: ids and weights are given
  std::uint32_t tile_tokens = 8;          // see decode_shape
  std::uint32_t stages = 0;               // of the weight pipeline
  std::uint64_t* partial_sums = nullptr;  // tagged [blocks][4][64 * kDecodeTileTokens]
  std::uint64_t* hidden = nullptr;      // tagged [assignments][64 * w2.k_blocks], see hidden_offset
  std::uint64_t* gemm2_sums = nullptr;  // tagged [assignments][64 * w2.m_blocks]
  std::uint32_t* counters = nullptr;    // [kDecodeCounters]: launches so far, finished blocks

  friend bool operator==(const DecodeParams&, const DecodeParams&) = default;
};

// Two specialized kernels cover most calls. They know at compile time: bf16 in and out, gated
// SwiGLU, no rounding in between, experts given or chosen by up to kMaxRegisterLogits plain logits.
// One has bf16 activations, the other quantized ones. A call fits a specialization if the
// specialization does not change its parameters.
constexpr DecodeParams quantized_specialization(DecodeParams p) {
  p.layer.is_gated = 1;
  p.layer.act = Activation::swigluoai;
  p.layer.first = FirstRounding::none;
  p.layer.middle = MiddleRounding::none;
  p.layer.second = SecondRounding::none;
  p.layer.weight = WeightRounding::none;
  p.layer.is_sum_rounded = 0;
  p.call.x.type = ElementType::bf16;
  p.call.x_is_quantized = 0;
  p.call.out.type = ElementType::bf16;
  if (p.route.columns > kMaxRegisterLogits) p.route.columns = kMaxRegisterLogits;
  p.route.weight = p.route.key;
  p.route.groups = 1;
  p.route.scores_in_logits_type = 0;
  p.route.weights_in_bf16 = 0;
  p.route.bias = nullptr;
  return p;
}
constexpr DecodeParams bf16_specialization(DecodeParams p) {
  p.layer.quantization = Quantization::none;
  p.layer.activations_in_bf16 = 0;
  p.layer.input_scales = nullptr;
  p.layer.hidden_scales = nullptr;
  return quantized_specialization(p);
}

// Four math warpgroups, one loader warp, three epilogue warps.
inline constexpr std::uint32_t kDecodeMathWarpgroups = 4;
inline constexpr std::uint32_t kDecodeThreads = (kDecodeMathWarpgroups + 1) * 128;
inline constexpr std::uint32_t kMaxSms = 144;  // of any Hopper GPU

// Shared memory of a block, the only place with its offsets:
//
//   header          barriers and tables (DecodeHeader in storage.cuh), then up to a multiple of 1024
//   tokens          K blocks x tile_tokens x 128 bytes, swizzled: x for GEMM1, then h for GEMM2
//   stage[stages]   kStageKBlocks weight tiles
//   partial[2][warpgroups][kDecodeTileTokens][kPartialStride]   float32, double buffered
struct DecodeSharedStorage {
  std::uint32_t token_bytes = 0, tile_bytes = 0;  // tile_bytes: of a weight tile

  static constexpr std::uint32_t kAlignment = 1024;
  static constexpr std::uint32_t kHeaderBytes =
      17 * 1024;  // with the bytes that alignment may skip
  static constexpr std::uint32_t kStageKBlocks = 2 * kDecodeMathWarpgroups;
  static constexpr std::uint32_t kMaxStages = 8;
  static constexpr std::uint32_t kPartialStride =
      68;  // floats: lanes of a warp hit different banks
  static constexpr std::uint32_t kPartialBytes =
      2 * kDecodeMathWarpgroups * kPartialStride * kDecodeTileTokens * 4;

  // The first multiple of the alignment from `address` on.
  static constexpr std::uint32_t aligned(std::uint32_t address) {
    return (address + kAlignment - 1) / kAlignment * kAlignment;
  }
  // `x_blocks` and `h_blocks`: K blocks of GEMM1 and GEMM2.
  static constexpr std::uint32_t token_tile_bytes(std::uint32_t tile_tokens, std::uint32_t x_blocks,
                                                  std::uint32_t h_blocks) {
    return std::max(tile_tokens * x_blocks, kDecodeTileTokens * h_blocks) * kBlockRowBytes;
  }
  constexpr std::uint32_t stage_bytes() const { return kStageKBlocks * tile_bytes; }
  constexpr std::uint32_t bytes(std::uint32_t stages) const {
    return kHeaderBytes + token_bytes + kPartialBytes + stages * stage_bytes();
  }
};

struct DecodeShape {
  std::uint32_t tile_tokens = 0;  // 0: the layer does not fit
  std::uint32_t stages = 0;
  std::uint32_t shared_bytes = 0;
};
constexpr DecodeShape decode_shape(const LayerParams& layer, std::uint32_t tokens) {
  using Storage = DecodeSharedStorage;
  const std::uint32_t tile_tokens = tokens <= 8 ? 8 : 16;
  const Storage storage{
      Storage::token_tile_bytes(tile_tokens, layer.w13.k_blocks, layer.w2.k_blocks),
      weight_tile_bytes(layer.is_nvfp4 != 0)};
  // K blocks of the experts of all assignments, times blocks, are counted in 32 bits.
  constexpr std::uint64_t kMaxKBlocks =
      (std::uint64_t{1} << 32) / (std::uint64_t{kMaxDecodeTokens} * kMaxTopK);
  const std::uint64_t k_blocks = std::max(std::uint64_t{layer.w13.m_blocks} * layer.w13.k_blocks,
                                          std::uint64_t{layer.w2.m_blocks} * layer.w2.k_blocks);
  if (k_blocks * kMaxSms > kMaxKBlocks) return {};
  if (tokens > kMaxDecodeTokens || storage.bytes(3) > kMaxSharedBytes) return {};
  const std::uint32_t stages = std::min<std::uint32_t>(
      Storage::kMaxStages, (kMaxSharedBytes - storage.bytes(0)) / storage.stage_bytes());
  return {tile_tokens, stages, storage.bytes(stages)};
}

}  // namespace fp4moe::kernels::cuda::sm90
