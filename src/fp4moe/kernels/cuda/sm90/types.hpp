// Types that all kernels of this folder share, for the host compiler and for nvcc: sizes, element
// types, rows of device memory, and the layer and the call as kernels see them. Every kernel has
// its own parameters in its folder (params.hpp).
//
// Vocabulary
//   token        a row of x
//   assignment   a pair (token, choice); its index is token * top_k + choice
//   row          an assignment in the order of experts; rows of an expert are neighbors
//   row group    8 neighboring rows of one expert; the last one may hold padding
//   token tile   neighboring row groups of one expert, at most kMaxTileTokens rows: the N of a GEMM
//   M block      64 rows of a weight matrix
//   K block      64 columns of a weight matrix, and of the activations
//   weight tile  one M block x one K block, in the layout native_sm90
//   GEMM1        x times w13 (gate and up); GEMM2: the hidden activations h times w2 (down)
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/device_lora.hpp"
#include "fp4moe/kernels/enums.hpp"

namespace fp4moe::kernels::cuda::sm90 {

inline constexpr std::uint32_t kBlockM = 64, kBlockK = 64;  // of a weight tile
inline constexpr std::uint32_t kBlockRowBytes = 128;        // BF16 activations of one K block
inline constexpr std::uint32_t kRowGroup = 8;               // rows
inline constexpr std::uint32_t kMaxTileTokens = 192;
inline constexpr std::uint32_t kMaxExperts = 1024;  // columns of logits, and experts of a rank
inline constexpr std::uint32_t kMaxTopK = 32;
inline constexpr std::uint32_t kMaxSharedBytes = 227 * 1024;  // of a block

// A weight tile: 64 x 64 codes of 4 bits, then its block scales.
inline constexpr std::uint32_t kTileCodeBytes = 2048;
constexpr std::uint32_t weight_tile_bytes(bool is_nvfp4) {
  return kTileCodeBytes + kBlockM * kBlockK / (is_nvfp4 ? 16 : 32);
}

enum class ElementType : std::uint32_t { bf16, f16, f32 };

using kernels::Activation;
using kernels::FirstRounding;
using kernels::MiddleRounding;
using kernels::Normalization;
using kernels::OutputForm;
using kernels::Score;
using kernels::SecondRounding;
using kernels::WeightRounding;

// The enumerators of oracle::ActivationKey that kernels have, in their order.
enum class Quantization : std::uint32_t {
  none,
  mxfp8,
  mxfp4,
  nvfp4,
  fp8_static_tensor,
  fp8_block128,
  fp8_token
};

// Rows of device memory, `stride` elements apart.
struct ConstDeviceRows {
  const void* data = nullptr;
  ElementType type = ElementType::bf16;
  std::uint32_t rows = 0;
  std::uint64_t stride = 0;

  friend bool operator==(const ConstDeviceRows&, const ConstDeviceRows&) = default;
};
struct MutableDeviceRows {
  void* data = nullptr;
  ElementType type = ElementType::bf16;
  std::uint32_t rows = 0;
  std::uint64_t stride = 0;

  friend bool operator==(const MutableDeviceRows&, const MutableDeviceRows&) = default;
};

// One matrix of every expert of a rank, in the layout native_sm90.
struct WeightMatrix {
  const std::uint8_t* tiles = nullptr;  // [experts][m_blocks][k_blocks][weight_tile_bytes]
  std::uint64_t expert_bytes = 0;       // from expert to expert
  std::uint32_t m_blocks = 0, k_blocks = 0;
  const float* factor = nullptr;  // multiplies the accumulator; w13: [experts][gate, up] if gated
  const float* bias = nullptr;    // [experts][64 * m_blocks] in the order of rows; null: none
  // [experts][64 * m_blocks]: the largest block scale of a row, where every row fits into E4M3 (see
  // grouped_gemm_fp8/dequantize_e4m3.cuh); else null
  const std::uint8_t* row_scales = nullptr;

  friend bool operator==(const WeightMatrix&, const WeightMatrix&) = default;
};

// Gated: every 16 rows of w13 are eight gate rows, then their eight up rows.
struct LayerParams {
  WeightMatrix w13{}, w2{};
  std::uint32_t experts = 0, hidden = 0, intermediate = 0;
  std::uint32_t is_gated = 1;
  std::uint32_t is_nvfp4 = 0;

  Activation act = Activation::silu;
  float alpha = 1, beta = 0, limit = 0;  // limit: infinity means none
  float situ_beta = 1, situ_linear_beta = 0;

  FirstRounding first = FirstRounding::none;
  MiddleRounding middle = MiddleRounding::none;
  SecondRounding second = SecondRounding::none;
  WeightRounding weight = WeightRounding::none;
  std::uint32_t is_sum_rounded = 0;
  std::uint32_t activations_in_bf16 = 0;  // quantized values take their factor and are rounded

  Quantization quantization = Quantization::none;
  // NVFP4: G; static FP8: the scale. [1] or [experts]; null: not read.
  const float* input_scales = nullptr;
  const float* hidden_scales = nullptr;
  std::uint32_t input_scales_each = 0, hidden_scales_each = 0;  // 1: [experts]
  const float* down_global = nullptr;  // [experts], for bf16_with_global; null: all 1

  friend bool operator==(const LayerParams&, const LayerParams&) = default;
};

// One call of a layer. Ids and weights are given, or the router writes them.
struct CallParams {
  ConstDeviceRows x{};  // [tokens, hidden]; batches: [experts * capacity, hidden]
  std::uint32_t tokens = 0, top_k = 0;
  std::uint32_t x_is_quantized = 0;          // x holds decoded values
  float x_factor = 1;                        // of all x, if x is quantized
  const std::int32_t* ids = nullptr;         // [tokens, top_k], global
  const float* weights = nullptr;            // [tokens, top_k]; null: 1
  const std::int32_t* expert_map = nullptr;  // [map_size]: local expert or -1; null: id - first
  std::uint32_t map_size = 0;                // global experts
  std::int32_t first_expert = 0;
  // Batches: rows [e * capacity, e * capacity + counts[e]) belong to expert e. Null: no batches.
  const std::int32_t* counts = nullptr;
  std::uint32_t capacity = 0;
  std::uint32_t weight_on_input = 0;  // x already contains the weight
  OutputForm form = OutputForm::summed;
  MutableDeviceRows out{};

  friend bool operator==(const CallParams&, const CallParams&) = default;
};

// LoRA matrices, [adapters][experts] pairs.
struct LoraParams {
  const DeviceLoraExpert* pairs = nullptr;  // null: none
  const std::int32_t* adapters = nullptr;   // [tokens], -1: none
  std::uint32_t experts = 0;
  std::uint32_t max_rank = 0;
  float* low = nullptr;  // [rows][max_rank]: A_down h, written by activate, read by combine
};

// --- Sizes of launches.

constexpr std::uint64_t ceil_div_u64(std::uint64_t size, std::uint64_t part) {
  return (size + part - 1) / part;
}
// At least one block, at most `max`.
constexpr std::uint32_t clamp_blocks(std::uint64_t wanted, std::uint64_t max) {
  return static_cast<std::uint32_t>(wanted < 1 ? 1 : wanted > max ? max : wanted);
}
inline constexpr std::uint32_t kSegmentColumns = 256;  // that a warp takes at once, 8 per lane

}  // namespace fp4moe::kernels::cuda::sm90
