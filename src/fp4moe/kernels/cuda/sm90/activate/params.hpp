// Parameters of the kernel activate: float32 sums of GEMM1 become h.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/routing_tables.hpp"
#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90 {

struct ActivateParams {
  CallParams call{};
  LayerParams layer{};
  RoutingTables tables{};
  const float* raw = nullptr;     // [rows][64 * w13.m_blocks]
  std::uint8_t* tiles = nullptr;  // out, of w2.k_blocks
  LoraParams lora{};
  float prescale = 1;  // see activation_prescale
};

// A warp per 256 columns, or a block per row. No more blocks than run at once: the next kernel can
// start early.
inline constexpr std::uint32_t kActivateThreads = 384;
constexpr std::uint32_t activate_blocks(std::uint64_t max_rows, std::uint32_t sms) {
  return clamp_blocks(max_rows, sms * 2ull);
}
// LoRA and one scale per row need a whole row of h before it is quantized.
constexpr bool activate_needs_whole_rows(const LayerParams& layer, const LoraParams& lora) {
  return lora.pairs != nullptr || layer.quantization == Quantization::fp8_token;
}
// Shared memory of a block that takes whole rows, the only place with its offsets, in floats:
//
//   h     a row of h, whole K blocks
//   low   [2][max_rank]: A_gate x, then A_up x
//
// `k_blocks`: of w2. Functions are static: with an object the compiler chooses other registers.
struct ActivateSharedStorage {
  static constexpr std::uint32_t low(std::uint32_t k_blocks) { return k_blocks * kBlockK; }
  static constexpr std::uint64_t bytes(std::uint32_t k_blocks, std::uint64_t max_rank) {
    return sizeof(float) * (low(k_blocks) + 2 * max_rank);
  }
};
constexpr std::uint32_t activate_shared_bytes(const LayerParams& layer, const LoraParams& lora) {
  if (!activate_needs_whole_rows(layer, lora)) return 0;
  return static_cast<std::uint32_t>(ActivateSharedStorage::bytes(layer.w2.k_blocks, lora.max_rank));
}

}  // namespace fp4moe::kernels::cuda::sm90
