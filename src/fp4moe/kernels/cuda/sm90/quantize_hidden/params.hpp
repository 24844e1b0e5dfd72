// Parameters of the kernel quantize_hidden: h in BF16 tiles into token tiles of E4M3, for
// grouped_gemm_fp8.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/routing_tables.hpp"
#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90 {

struct QuantizeHiddenParams {
  RoutingTables tables{};
  Quantization quantization = Quantization::fp8_token;
  const std::uint8_t* h = nullptr;  // of k_blocks
  std::uint32_t k_blocks = 0;       // of w2
  std::uint8_t* tiles = nullptr;    // out, see grouped_gemm_fp8/shape.hpp
  float* token_scales = nullptr;    // out, [rows]: of fp8_token
};

// A warp per row. No more blocks than run at once: the next kernel can start early.
inline constexpr std::uint32_t kQuantizeHiddenThreads = 256;
constexpr std::uint32_t quantize_hidden_blocks(std::uint64_t max_rows, std::uint32_t sms) {
  return clamp_blocks(ceil_div_u64(max_rows, kQuantizeHiddenThreads / 32), sms * 3ull);
}

}  // namespace fp4moe::kernels::cuda::sm90
