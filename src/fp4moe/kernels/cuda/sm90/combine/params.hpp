// Parameters of the kernel combine: rows of GEMM2 become the output.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/routing_tables.hpp"
#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90 {

struct CombineParams {
  CallParams call{};
  LayerParams layer{};
  RoutingTables tables{};           // combine clears the counters for the next call
  const void* rows = nullptr;       // [rows][64 * w2.m_blocks], float32 or bf16 by kernel
  std::uint32_t table_writers = 0;  // blocks of the GEMM that write tables
  LoraParams lora{};
};

inline constexpr std::uint32_t kCombineThreads = 256;  // a warp per 256 columns of a token
// Segments of a row that a warp loads at once: two where few assignments leave registers for them.
constexpr std::uint32_t combine_segments(bool is_bf16, std::uint32_t top_k) {
  return is_bf16 && top_k <= 4 ? 2 : 1;
}
// Several times as many blocks as run at once: an SM that is done with the GEMM early runs more.
constexpr std::uint32_t combine_blocks(const LayerParams& layer, std::uint64_t rows,
                                       std::uint32_t segments, std::uint32_t sms) {
  const std::uint64_t parts = ceil_div_u64(layer.hidden, std::uint64_t{segments} * kSegmentColumns);
  return clamp_blocks(ceil_div_u64(rows * parts, kCombineThreads / 32), sms * 12ull);
}

}  // namespace fp4moe::kernels::cuda::sm90
